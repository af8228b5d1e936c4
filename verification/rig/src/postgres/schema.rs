//! Schemas of one's own: as empty as a new database, and made in a few milliseconds. For tests of programs that
//! keep to their default schema; others need a [`super::Database`].

use super::server::{Server, ask, plain, unique};

/// The database that they are in.
const DATABASE: &str = "rig_schemas";

/// A schema of one's own. Dropping it drops it.
#[derive(Debug)]
pub struct Schema {
    server: Server,
    name: String,
    url: String,
}

impl Server {
    /// A new, empty schema that goes away with the value. The name is only a hint for people who look.
    pub fn schema(&self, hint: &str) -> Schema {
        let database = self.url_of(DATABASE);
        let name = unique(hint);
        let make = format!("CREATE SCHEMA \"{name}\"");
        if ask(&database, &make).is_err() {
            self.make_database_of_schemas();
            ask(&database, &make).unwrap_or_else(|error| panic!("{make}: {}", plain(&error)));
        }
        let joint = if database.contains('?') { '&' } else { '?' };
        Schema {
            server: self.clone(),
            url: format!("{database}{joint}options=-csearch_path%3D{name}"),
            name,
        }
    }

    /// Several may try at once, in as many processes: all but one fail, and it is there for all.
    fn make_database_of_schemas(&self) {
        let made = self.try_ask(&format!("CREATE DATABASE {DATABASE} TEMPLATE template0"));
        if let Err(error) = made {
            let is_there = format!("SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'");
            assert!(self.ask(&is_there).is_some(), "{}", plain(&error));
        }
    }
}

impl Schema {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of its database, with it as the default schema, as superuser.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let sql = format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE", self.name);
        // A test may have ended the server already, and the schema with it.
        ask(&self.server.url_of(DATABASE), &sql).ok();
    }
}
