//! Faults of the database itself.

use proof::Outcome;
use rand::Rng as _;

use super::{Done, FaultContext};
use crate::torture::world::LANES;

impl FaultContext<'_> {
    pub(super) async fn database_crash(&mut self) -> Outcome<String> {
        self.world.database.crash(self.fault.lasts).await?;
        Ok("kill -9 of all its processes".to_owned())
    }

    pub(super) async fn database_restart(&mut self) -> Outcome<String> {
        self.world.database.restart(self.fault.lasts).await?;
        Ok("in order".to_owned())
    }

    pub(super) async fn promotion(&mut self) -> Outcome<Done> {
        let promoted = self.world.database.promote().await?;
        Ok(Done {
            text: "and a new standby".to_owned(),
            works_again: Some(promoted),
        })
    }

    pub(super) async fn standby_away(&mut self) -> Outcome<String> {
        let database = &self.world.database;
        database.without_standby(self.fault.lasts).await?;
        Ok("commits wait".to_owned())
    }

    pub(super) async fn sessions_ended(&mut self) -> Outcome<String> {
        let ended = self.world.database.end_sessions().await?;
        Ok(format!("{ended} sessions"))
    }

    /// The row that the gate locks, or the row that renewals write.
    pub(super) async fn row_locks(&mut self) -> Outcome<String> {
        let tables = ["signer_nonce_cursor", "signer_lease"];
        let table = tables[self.dice.random_range(0..tables.len())];
        let lanes = self.dice.random_range(1..=LANES as usize);
        let database = &self.world.database;
        database.lock_rows(table, lanes, self.fault.lasts).await?;
        Ok(format!("{lanes} rows of {table}"))
    }
}
