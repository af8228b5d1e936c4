//! Schemas: as empty as a new database, and created in a few milliseconds. For tests of programs that use only
//! their default schema; others need a [`super::Database`].

use super::server::{Server, error_with_cause, query_value, unique_name};

/// The database of all schemas.
const DATABASE: &str = "rig_schemas";

/// A schema for one test. Dropping the value drops it.
#[derive(Debug)]
pub struct Schema {
    server: Server,
    name: String,
    url: String,
}

impl Server {
    /// A new, empty schema that is dropped with the value. The name is only a hint for people.
    pub fn schema(&self, hint: &str) -> Schema {
        let database = self.url_of(DATABASE);
        let name = unique_name(hint);
        let make = format!("CREATE SCHEMA \"{name}\"");
        if query_value(&database, &make).is_err() {
            self.create_database_of_schemas();
            query_value(&database, &make)
                .unwrap_or_else(|error| panic!("{make}: {}", error_with_cause(&error)));
        }
        let joint = if database.contains('?') { '&' } else { '?' };
        Schema {
            server: self.clone(),
            url: format!("{database}{joint}options=-csearch_path%3D{name}"),
            name,
        }
    }

    /// Several processes may try at once: all but one fail, and the database exists for all of them.
    fn create_database_of_schemas(&self) {
        let made = self.try_query_value(&format!("CREATE DATABASE {DATABASE} TEMPLATE template0"));
        if let Err(error) = made {
            let is_there = format!("SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'");
            assert!(
                self.query_value(&is_there).is_some(),
                "{}",
                error_with_cause(&error)
            );
        }
    }
}

impl Schema {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL of its database, with it as the default schema, as superuser.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let sql = format!("DROP SCHEMA IF EXISTS \"{}\" CASCADE", self.name);
        // The test may have stopped the server already, and the schema with it.
        query_value(&self.server.url_of(DATABASE), &sql).ok();
    }
}
