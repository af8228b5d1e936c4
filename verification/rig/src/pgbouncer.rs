//! PgBouncer in transaction mode, in front of a server.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::ports::{Port, free_port};
use crate::postgres::Server;
use crate::server_dir::ServerDir;
use crate::tools;

const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// A running PgBouncer. Every transaction may use another connection of the server.
#[derive(Debug)]
pub struct PgBouncer {
    port: Port,
    dir: ServerDir,
    process: Child,
}

impl PgBouncer {
    /// Starts one with at most `pool_size` server connections per database and user. Every database and role of the
    /// server is reachable with the role's own password.
    pub fn in_front_of(server: &Server, pool_size: u32) -> Self {
        let dir = ServerDir::new("pgbouncer", "TERM");
        let port = free_port();
        let config = dir.path().join("pgbouncer.ini");
        let users = dir.path().join("users.txt");
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
        dir.chown_to_server_user();
        let program = tools::pgbouncer().unwrap_or_else(|missing| panic!("{missing}"));
        let log =
            fs::File::create(dir.path().join("log")).expect("the directory was created by the rig");
        let process = dir
            .command(&program)
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let mut bouncer = Self { port, dir, process };
        bouncer.wait_until_ready(server);
        bouncer
    }

    /// The port on loopback.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn wait_until_ready(&mut self, server: &Server) {
        let behind = server.through(self.port());
        crate::wait_until("PgBouncer answers", READY_TIMEOUT, || {
            let ended = self.process.try_wait().expect("it is a child process");
            assert!(ended.is_none(), "PgBouncer does not start:\n{}", self.log());
            behind.try_query_value("SELECT 1").ok()
        });
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.dir.close();
        // The reaper has ended the process; this only reaps the zombie.
        self.process.wait().ok();
    }
}
