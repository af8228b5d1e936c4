//! PgBouncer in transaction mode, in front of a server.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::home::Home;
use crate::ports::{Port, free_port};
use crate::postgres::Server;
use crate::tools;

/// How long it may take until it answers.
const READY_WITHIN: Duration = Duration::from_secs(30);

/// A running PgBouncer. Each transaction may run on another connection of the server.
#[derive(Debug)]
pub struct PgBouncer {
    port: Port,
    home: Home,
    process: Child,
}

impl PgBouncer {
    /// Starts one with at most `pool_size` connections to the server per database and user. Every
    /// database and every role of the server can be reached with the role's own password.
    pub fn in_front_of(server: &Server, pool_size: u32) -> Self {
        let home = Home::new("pgbouncer", "TERM");
        let port = free_port();
        let config = home.path().join("pgbouncer.ini");
        let users = home.path().join("users.txt");
        let (user, password) = server.account();
        let write = |path: &Path, text: String| {
            fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        };
        write(&users, format!("\"{user}\" \"{password}\"\n"));
        write(
            &config,
            format!(
                "[databases]\n\
                 * = host=127.0.0.1 port={server_port}\n\
                 [pgbouncer]\n\
                 listen_addr = 127.0.0.1\n\
                 listen_port = {port}\n\
                 unix_socket_dir =\n\
                 auth_type = scram-sha-256\n\
                 auth_file = {users}\n\
                 auth_user = {user}\n\
                 pool_mode = transaction\n\
                 default_pool_size = {pool_size}\n\
                 max_client_conn = 1000\n\
                 ignore_startup_parameters = extra_float_digits,options\n",
                server_port = server.port(),
                port = port.number(),
                users = users.display(),
            ),
        );
        home.give_to_servant();
        let program = tools::pgbouncer().unwrap_or_else(|missing| panic!("{missing}"));
        let log = fs::File::create(home.path().join("log")).expect("the home is ours");
        let process = home
            .command(&program)
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let mut bouncer = Self {
            port,
            home,
            process,
        };
        bouncer.wait_until_ready(server);
        bouncer
    }

    /// Its port on loopback.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Its log until now.
    pub fn log(&self) -> String {
        fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    fn wait_until_ready(&mut self, server: &Server) {
        let behind = server.through(self.port());
        crate::until("PgBouncer answers", READY_WITHIN, || {
            let ended = self.process.try_wait().expect("it was started by us");
            assert!(ended.is_none(), "PgBouncer does not start:\n{}", self.log());
            behind.try_ask("SELECT 1").ok()
        });
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.home.close();
        // The undertaker has ended it; this only takes its zombie away.
        self.process.wait().ok();
    }
}
