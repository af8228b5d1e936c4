//! Standbys: a copy of the running server that streams from it.
//!
//! By the server's own backup calls and a copy of the folder: not every installed major has
//! `pg_basebackup`, and one of another major refuses.

use std::fs;
use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_postgres::NoTls;

use super::server::{self, first_value, plain};
use super::{Postgres, READY_WITHIN};
use crate::home::Home;
use crate::wait::block_on;

/// How long a promotion may take.
const PROMOTED_WITHIN: Duration = Duration::from_secs(60);

/// What a copy must not have: the running server's own state. WAL comes over the stream.
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
        let home = Home::new(&format!("postgres-{}-{name}", self.major()), "QUIT");
        block_on(self.copy_to(home.workplace()))
            .unwrap_or_else(|error| panic!("a copy for a standby: {error}"));
        let standby = Self::at(home, self.major());
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
                // When its primary comes back, commits there wait for it: not for 5 s.
                ("wal_retrieve_retry_interval", "200ms"),
                // Copied from a primary that waits; a promoted standby has nobody to wait for.
                ("synchronous_standby_names", ""),
            ],
        );
        standby.append("standby.signal", &[]);
        standby.home.give_to_servant();
        standby.start_again();
        if sync {
            self.config(&[("synchronous_standby_names", &name)]);
        }
        let state = if sync { "sync" } else { "async" };
        let streams = format!(
            "SELECT 1 FROM pg_stat_replication WHERE application_name = '{name}' \
             AND state = 'streaming' AND sync_state = '{state}'"
        );
        crate::until("the standby streams", READY_WITHIN, || self.ask(&streams));
        standby
    }

    /// Makes a standby the primary, on a new timeline. Its former primary does not know.
    pub fn promote(&self) {
        let seconds = PROMOTED_WITHIN.as_secs();
        let promoted = self.ask(&format!("SELECT pg_promote(true, {seconds})"));
        assert_eq!(promoted.as_deref(), Some("t"), "{}", self.log_tail());
    }

    /// Both backup calls must come from one session.
    async fn copy_to(&self, to: &Path) -> Result<(), String> {
        let told = |error| plain(&error);
        let (client, connection) = tokio_postgres::connect(self.url(), NoTls)
            .await
            .map_err(told)?;
        let driver = tokio::spawn(connection);
        first_value(&client, "SELECT pg_backup_start('rig', true)")
            .await
            .map_err(told)?;
        copy(self.home.workplace(), to).map_err(|error| error.to_string())?;
        fs::create_dir_all(to.join("pg_wal/archive_status")).map_err(|error| error.to_string())?;
        fs::create_dir_all(to.join("pg_replslot")).map_err(|error| error.to_string())?;
        let label = first_value(&client, "SELECT labelfile FROM pg_backup_stop(false)")
            .await
            .map_err(told)?
            .ok_or("no backup label")?;
        fs::write(to.join("backup_label"), label).map_err(|error| error.to_string())?;
        drop(client);
        driver
            .await
            .map_err(|error| error.to_string())?
            .map_err(told)
    }
}

/// Copies a folder in which files come and go: one that vanished is not part of the backup.
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
