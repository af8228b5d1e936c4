//! Faults of processes.

use futures::future::{join_all, try_join_all};
use proof::Outcome;
use proof::cluster::Signal;
use rand::Rng as _;

use super::FaultContext;
use crate::torture::plan::letter;

/// The largest clock offset in either direction: an hour.
const JUMP_MAX_S: i64 = 3_600;

impl FaultContext<'_> {
    pub(super) async fn kill(&mut self) -> Outcome<String> {
        let nodes = &self.world.nodes;
        let kills = self.fault.nodes.iter().map(|node| nodes.kill(*node));
        let killed: Outcome<Vec<()>> = try_join_all(kills).await;
        self.last().await;
        // They must run again in any case.
        let starts = self.fault.nodes.iter().map(|node| nodes.start_again(*node));
        for started in join_all(starts).await {
            started?;
        }
        killed?;
        Ok("kill -9".to_owned())
    }

    /// SIGSTOP for longer than a lease, SIGCONT.
    pub(super) async fn freeze(&mut self) -> Outcome<String> {
        let nodes = &self.world.nodes;
        nodes.signal(self.node(), Signal::Stop).await?;
        self.last().await;
        nodes.signal(self.node(), Signal::Continue).await?;
        Ok(format!("{} ms", self.fault.lasts.as_millis()))
    }

    pub(super) async fn drain(&mut self) -> Outcome<String> {
        let nodes = &self.world.nodes;
        let drained = nodes.drain(self.node()).await;
        self.last().await;
        nodes.start_again(self.node()).await?;
        drained?;
        Ok("SIGTERM".to_owned())
    }

    pub(super) async fn clock_jump(&mut self) -> Outcome<String> {
        let seconds = self.dice.random_range(-JUMP_MAX_S..=JUMP_MAX_S);
        let clock = &self.world.links[self.node()].clock;
        clock.set(seconds)?;
        self.last().await;
        clock.set(0)?;
        Ok(format!(
            "the clock of {} by {seconds} s",
            letter(self.node())
        ))
    }
}
