//! Faults of links: between a node and the database, the chain, its peers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::cluster::run_blocking;
use proof::{Outcome, ensure};
use rand::Rng as _;
use rig::proxy::{AfterLoss, TcpProxy};
use rig::rpc_proxy::{CallFilter, Fault, OutageKind, RpcProxy, Rule, View};

use super::FaultContext;
use crate::torture::world::ENDPOINTS;

/// Text that only the commit of a turn contains.
const GATE: &str = "lanekeeper_gate";

const POLL_PERIOD: Duration = Duration::from_millis(20);

impl FaultContext<'_> {
    fn database_line(&self) -> &TcpProxy {
        &self.world.links[self.node()].database
    }

    fn peer_line(&self) -> &TcpProxy {
        &self.world.links[self.node()].peers
    }

    fn endpoints(&self) -> &[Arc<RpcProxy>] {
        &self.world.links[self.node()].chain
    }

    /// Silence, or closed connections.
    async fn cut(&self, line: &TcpProxy, is_silent: bool) -> String {
        if is_silent {
            line.freeze();
        } else {
            line.cut();
        }
        self.last().await;
        line.heal();
        if is_silent { "silent" } else { "closed" }.to_owned()
    }

    async fn slow(&self, line: &TcpProxy, by: Duration) -> String {
        line.delay(by);
        self.last().await;
        line.heal();
        format!("{} ms each way", by.as_millis())
    }

    pub(super) async fn cut_from_database(&mut self) -> Outcome<String> {
        let is_silent = self.dice.random();
        Ok(self.cut(self.database_line(), is_silent).await)
    }

    pub(super) async fn slow_database(&mut self) -> Outcome<String> {
        let by = Duration::from_millis(self.dice.random_range(20..400));
        Ok(self.slow(self.database_line(), by).await)
    }

    pub(super) async fn cut_from_peers(&mut self) -> Outcome<String> {
        let is_silent = self.dice.random();
        Ok(self.cut(self.peer_line(), is_silent).await)
    }

    pub(super) async fn slow_peers(&mut self) -> Outcome<String> {
        let by = Duration::from_millis(self.dice.random_range(50..1_000));
        Ok(self.slow(self.peer_line(), by).await)
    }

    /// Commits of any node whose responses are lost, by a closed connection or by silence.
    pub(super) async fn lost_commits(&mut self) -> Outcome<String> {
        let nodes = self.fault.nodes.iter();
        let lines: Vec<&TcpProxy> = nodes.map(|n| &self.world.links[*n].database).collect();
        let mut seen: Vec<Option<u64>> = vec![None; lines.len()];
        let (began, first) = (Instant::now(), all_lost(&lines));
        while began.elapsed() < self.fault.lasts {
            for (line, seen) in lines.iter().zip(&mut seen) {
                let lost = line.lost();
                if *seen == Some(lost) {
                    continue; // no commit has matched yet
                }
                *seen = Some(lost);
                let is_cut: bool = self.dice.random();
                let then = if is_cut {
                    AfterLoss::Cut
                } else {
                    AfterLoss::Silence
                };
                line.lose_answer_to(GATE, then);
            }
            tokio::time::sleep(POLL_PERIOD).await;
        }
        for line in &lines {
            line.heal();
        }
        let lost = all_lost(&lines) - first;
        ensure(lost > 0, "no node committed anything")?;
        Ok(format!("{lost} answers lost"))
    }

    /// No endpoint answers: refused or reset connections, or lost requests.
    pub(super) async fn cut_from_chain(&mut self) -> Outcome<String> {
        let way = self.dice.random_range(0..3);
        for proxy in self.endpoints() {
            match way {
                0 => {
                    let proxy = Arc::clone(proxy);
                    run_blocking(move || proxy.take_down(OutageKind::Refuses)).await?;
                }
                1 => proxy.take_down(OutageKind::Resets),
                _ => {
                    let lost = Fault::LoseRequest(AfterLoss::Silence);
                    proxy.add(Rule::new(CallFilter::all(), lost));
                }
            }
        }
        self.last().await;
        self.heal_endpoints().await?;
        Ok(["refused", "reset", "silent"][way].to_owned())
    }

    /// Slow requests and lost requests and responses, on all endpoints.
    pub(super) async fn lossy_chain(&mut self) -> Outcome<String> {
        let by = Duration::from_millis(self.dice.random_range(50..1_500));
        let chance = self.dice.random_range(0.1..0.5);
        for proxy in self.endpoints() {
            proxy.add(Rule::new(CallFilter::all(), Fault::Delay(by)));
            let request = Fault::LoseRequest(AfterLoss::Cut);
            proxy.add(Rule::new(CallFilter::all(), request).chance(chance / 2.0));
            let answer = Fault::LoseAnswer(AfterLoss::Cut);
            proxy.add(Rule::new(CallFilter::all(), answer).chance(chance));
        }
        self.last().await;
        self.heal_endpoints().await?;
        Ok(format!(
            "{} ms, {:.0} % lost",
            by.as_millis(),
            chance * 100.0
        ))
    }

    /// One endpoint lags behind the other.
    pub(super) async fn behind_chain(&mut self) -> Outcome<String> {
        let blocks = self.dice.random_range(1..20);
        let endpoint = self.dice.random_range(0..ENDPOINTS);
        self.endpoints()[endpoint].show(View::Behind(blocks));
        self.last().await;
        self.heal_endpoints().await?;
        Ok(format!("endpoint {endpoint} by {blocks} blocks"))
    }

    /// One endpoint accepts sends and forwards only some of them.
    pub(super) async fn pretended_sends(&mut self) -> Outcome<String> {
        let endpoint = self.dice.random_range(0..ENDPOINTS);
        let proxy = &self.world.links[self.node()].chain[endpoint];
        let before = proxy.faults();
        proxy.add(Rule::new(CallFilter::sends(), Fault::Pretend).chance(0.5));
        self.last().await;
        self.heal_endpoints().await?;
        let count = proxy.faults() - before;
        Ok(format!("endpoint {endpoint}, {count} sends"))
    }

    async fn heal_endpoints(&self) -> Outcome<()> {
        for proxy in self.endpoints() {
            let proxy = Arc::clone(proxy);
            run_blocking(move || proxy.heal()).await?;
        }
        Ok(())
    }
}

fn all_lost(lines: &[&TcpProxy]) -> u64 {
    lines.iter().map(|line| line.lost()).sum()
}
