//! 4.6: the resources of a Lanekeeper node for txs that wait to be mined: memory per tx, and CPU per empty block.
//! All are sent to and held by anvil, on several lanes.

use std::time::Duration;

use proof::audit::Audit;
use proof::cluster::postgres;
use proof::config::Config;
use proof::network::{Network, NodeKind, Terms};
use proof::payers::Payers;
use proof::single_node::{self, SingleNode};
use proof::stats::ms;
use proof::usage::{cpu, resident_kib};
use proof::{Outcome, Report, ensure, eventually, flag, print_step};
use rig::postgres::majors;
use serde_json::json;

const PROOF: &str = "04-6-tracking";
/// The budget of a tracked tx: payload, signed bytes, hash in two indexes, and a margin.
const BYTES_PER_TX_MAX: f64 = 2_048.0;
/// The budget of one block.
const CPU_PER_BLOCK_MAX: Duration = Duration::from_millis(300);
/// Room for 2,000 transfers: with more in one block anvil is unresponsive for minutes.
const BLOCK_GAS_LIMIT: u64 = 42_000_000;
/// Concurrent batches: together less than a shard's queue.
const CLIENTS: usize = 8;
/// Warm-up, so that pools, connections and caches exist before memory is measured.
const WARM_UP_TXS: usize = 2_000;
/// Idle blocks for comparison.
const IDLE_BLOCKS: u64 = 15;
/// Blocks between the last send and the CPU measurement.
const SETTLE_BLOCKS: u64 = 5;
const DONE_WITHIN: Duration = Duration::from_secs(600);

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let count: usize = flag("txs", "100000").parse()?;
    let lanes: u32 = flag("lanes", "10").parse()?;
    let blocks: u64 = flag("blocks", "30").parse()?;
    let terms = Terms {
        block_gas_limit: BLOCK_GAS_LIMIT,
        accounts: lanes,
        ..Terms::default()
    };
    let network = Network::start(NodeKind::ANVIL, terms).await?;
    let major = majors().last().copied().ok_or("no PostgreSQL")?;
    let server = postgres(major).await?;
    let database = server.database("tracking");
    let single_node = SingleNode::start(&single_node::Terms {
        proof: PROOF,
        name: "node".to_owned(),
        store: Some(database.url().to_owned()),
        config: Config {
            rpc: vec![network.chain.url().to_owned()],
            lanes,
            confirmations: 2,
            more: format!("[lane]\nmempoolDepth = {count}\n"),
            ..Config::default()
        },
    })
    .await?;
    let trial = Trial {
        network,
        single_node,
        count,
    };
    let (figure, is_small) = trial.run(report, blocks).await?;
    trial.finish().await?;
    ensure(is_small, format!("too much: {figure}"))?;
    Ok(figure)
}

/// One node, one chain, and the requests.
struct Trial {
    network: Network,
    single_node: SingleNode,
    count: usize,
}

impl Trial {
    /// The result, and whether it is within its bounds.
    async fn run(&self, report: &mut Report, blocks: u64) -> Outcome<(String, bool)> {
        let (network, pid) = (&self.network, self.single_node.node.pid()?);
        self.post(WARM_UP_TXS).await?;
        self.quiet().await?;
        let idle = cpu_per_block(network, pid, IDLE_BLOCKS).await?;
        let before = resident_kib(pid)?;
        network.stop_mining().await?;
        self.post(self.count).await?;
        self.all_at_the_node().await?;
        network.mine_without_room().await?;
        network.wait_for_blocks(SETTLE_BLOCKS).await?;
        let waiting = cpu_per_block(network, pid, blocks).await?;
        let after = resident_kib(pid)?;
        let held = self.held().await?;
        ensure(held == self.count, format!("the node holds only {held}"))?;
        #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
        let per_tx = (after as f64 - before as f64) * 1024.0 / self.count as f64;
        report.fact(
            "tracking",
            json!({
                "txs": self.count,
                "lanes": self.single_node.lanes.len(),
                "beforeKib": before,
                "afterKib": after,
                "bytesPerTx": per_tx,
                "blocks": blocks,
                "cpuMsPerBlockIdle": ms(idle),
                "cpuMsPerBlock": ms(waiting),
            }),
        );
        let figure = format!(
            "{} tracked txs on {} lanes: {per_tx:.0} bytes each ({} MiB, before {} MiB), {} ms of CPU per block \
             over {blocks} blocks (without them {} ms)",
            self.count,
            self.single_node.lanes.len(),
            after / 1024,
            before / 1024,
            ms(waiting),
            ms(idle),
        );
        let is_small = per_tx < BYTES_PER_TX_MAX && waiting < CPU_PER_BLOCK_MAX;
        Ok((figure, is_small))
    }

    /// Mines everything, and compares store and chain.
    async fn finish(&self) -> Outcome<()> {
        print_step("mining everything");
        self.network.mine_with_room().await?;
        let counted = self.audit().run().await?;
        let expected = WARM_UP_TXS + self.count;
        ensure(counted.promised == expected, "a promise is missing")
    }

    async fn post(&self, count: usize) -> Outcome<()> {
        let payers = Payers {
            api: &self.single_node.node.api,
            ledger: &self.single_node.ledger,
            lanes: &self.single_node.lanes,
            clients: CLIENTS,
        };
        let posted = payers.post_in_batches(count).await?;
        let took = posted.ended.duration_since(posted.began);
        print_step(format!("{count} txs accepted within {} ms", ms(took)));
        Ok(())
    }

    async fn all_at_the_node(&self) -> Outcome<()> {
        eventually("all are at the node", DONE_WITHIN, || async {
            Ok((self.held().await? == self.count).then_some(()))
        })
        .await
    }

    /// The executable transactions in the pool.
    async fn held(&self) -> Outcome<usize> {
        let status = self.network.chain.call("txpool_status", json!([])).await?;
        let pending = status["pending"]
            .as_str()
            .and_then(|text| text.strip_prefix("0x"));
        let pending = pending.ok_or_else(|| format!("no number: {status}"))?;
        Ok(usize::from_str_radix(pending, 16)?)
    }

    async fn quiet(&self) -> Outcome<()> {
        self.audit().wait_until_idle().await
    }

    fn audit(&self) -> Audit<'_> {
        self.single_node.audit(&self.network.chain, DONE_WITHIN)
    }
}

/// CPU time per block over a number of blocks.
async fn cpu_per_block(network: &Network, pid: u32, blocks: u64) -> Outcome<Duration> {
    let before = cpu(pid)?;
    let passed = network.wait_for_blocks(blocks).await?;
    let spent = cpu(pid)?.saturating_sub(before);
    Ok(spent / u32::try_from(passed)?)
}
