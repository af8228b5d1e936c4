//! Standbys: a copy of the running server that streams from it.
//!
//! Made with the backup functions and a copy of the data directory: not every installed major has `pg_basebackup`,
//! and one of another major refuses.

use std::fs;
use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_postgres::NoTls;

use super::server::{self, error_with_cause, first_value};
use super::{Postgres, READY_TIMEOUT};
use crate::server_dir::ServerDir;
use crate::wait::block_on;

/// How long a promotion may take.
const PROMOTED_WITHIN: Duration = Duration::from_secs(60);

/// Not copied: the running server's own state. WAL is streamed.
const NOT_COPIED: &[&str] = &["postmaster.pid", "postmaster.opts", "pg_wal", "pg_replslot"];

impl Postgres {
    /// A new standby with a replication slot, streaming when this returns. With `sync`, commits on
    /// this server wait for it from now on.
    pub fn standby(&self, sync: bool) -> Self {
        let number = self.standbys.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("standby_{number}");
        self.exec(&format!(
            "SELECT pg_create_physical_replication_slot('{name}', true)"
        ));
        let dir = ServerDir::new(&format!("postgres-{}-{name}", self.major()), "QUIT");
        block_on(self.copy_to(dir.work_dir()))
            .unwrap_or_else(|error| panic!("a copy for a standby: {error}"));
        let standby = Self::at(dir, self.major());
        let primary = format!(
            "host=127.0.0.1 port={} user={} password={} application_name={name}",
            self.port(),
            server::USER,
            server::PASSWORD
        );
        standby.append(
            "postgresql.auto.conf",
            &[
                ("primary_conninfo", &primary),
                ("primary_slot_name", &name),
                // When its primary restarts, commits there wait for it: shorter than the default of 5 s.
                ("wal_retrieve_retry_interval", "200ms"),
                // Copied from a primary with a synchronous standby; a promoted standby has none.
                ("synchronous_standby_names", ""),
            ],
        );
        standby.append("standby.signal", &[]);
        standby.dir.chown_to_server_user();
        standby.start_again();
        if sync {
            self.config(&[("synchronous_standby_names", &name)]);
        }
        let state = if sync { "sync" } else { "async" };
        let streams = format!(
            "SELECT 1 FROM pg_stat_replication WHERE application_name = '{name}' \
             AND state = 'streaming' AND sync_state = '{state}'"
        );
        crate::wait_until("the standby streams", READY_TIMEOUT, || {
            self.query_value(&streams)
        });
        standby
    }

    /// Promotes a standby to primary, on a new timeline. The former primary is not informed.
    pub fn promote(&self) {
        let seconds = PROMOTED_WITHIN.as_secs();
        let promoted = self.query_value(&format!("SELECT pg_promote(true, {seconds})"));
        assert_eq!(promoted.as_deref(), Some("t"), "{}", self.log_tail());
    }

    /// Both backup functions must be called in one session.
    async fn copy_to(&self, to: &Path) -> Result<(), String> {
        let to_text = |error| error_with_cause(&error);
        let (client, connection) = tokio_postgres::connect(self.url(), NoTls)
            .await
            .map_err(to_text)?;
        let driver = tokio::spawn(connection);
        first_value(&client, "SELECT pg_backup_start('rig', true)")
            .await
            .map_err(to_text)?;
        copy(self.dir.work_dir(), to).map_err(|error| error.to_string())?;
        fs::create_dir_all(to.join("pg_wal/archive_status")).map_err(|error| error.to_string())?;
        fs::create_dir_all(to.join("pg_replslot")).map_err(|error| error.to_string())?;
        let label = first_value(&client, "SELECT labelfile FROM pg_backup_stop(false)")
            .await
            .map_err(to_text)?
            .ok_or("no backup label")?;
        fs::write(to.join("backup_label"), label).map_err(|error| error.to_string())?;
        drop(client);
        driver
            .await
            .map_err(|error| error.to_string())?
            .map_err(to_text)
    }
}

/// Copies a directory that is in use: a file that vanishes meanwhile is not part of the backup.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if NOT_COPIED.iter().any(|left_out| name == *left_out) {
            continue;
        }
        let (source, target) = (entry.path(), to.join(&name));
        let done = match source.is_dir() {
            true => fs::create_dir_all(&target).and_then(|()| copy(&source, &target)),
            false => fs::copy(&source, &target).map(|_| ()),
        };
        match done {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            done => done?,
        }
    }
    Ok(())
}
