//! `dev --nodes 3 --store postgres://…`: a local cluster. The chain runs in this process and every node in its
//! own process, so that nodes can be killed one by one.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use cli::client::LaneView;
use cli::output::{Columns, Tone, paint, print_json, print_line, print_quiet};
use cli::process::{NodeFile, NodeProcess, node_name, start_node, table, write_private_file};
use cli::{Failure, PostgresUrl, Signals};
use futures::future::try_join_all;
use serde_json::{Value, json};

use super::keepers::KeeperWatch;
use super::{ACCOUNTS_SHOWN_MAX, DevNetwork, refuse_own_sections};
use crate::adapters;
use crate::command_line::DevArgs;
use crate::commands::read_generated;
use crate::jsonrpc::JsonRpc;

/// The port of the second node; 8646 is the chain's.
const SECOND_PORT: u16 = 8647;
/// Short enough to watch a takeover, long enough for a busy laptop.
const LEASE: Duration = Duration::from_secs(5);
const RENEW: Duration = Duration::from_millis(1_500);
/// How often keepers and processes are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub(super) async fn run(args: &DevArgs, store: &str, mut signals: Signals) -> Result<(), Failure> {
    let store = PostgresUrl::parse(store).ok_or_else(|| {
        Failure::Usage("--store takes postgres://user:password@host:5432/database".into())
    })?;
    let base = match &args.config {
        Some(path) => NodeFile::read(path)?,
        None => NodeFile::default(),
    };
    refuse_own_sections(|section| base.has_section(section))?;
    std::fs::create_dir_all(args.dir.join("keys"))
        .map_err(|e| Failure::refused(&format!("cannot create {}", args.dir.display()), &e))?;
    let chain = DevNetwork::open(args).await?;
    let cluster = Cluster::start(args, &chain, base, &store).await;
    let mut cluster = match cluster {
        Ok(cluster) => cluster,
        Err(failure) => {
            chain.close().await;
            return Err(failure);
        }
    };
    if args.json {
        print_json(&cluster.ready_line(&chain));
    } else {
        cluster.print_welcome(&chain, &store).await;
    }
    let mut pace = tokio::time::interval(POLL_INTERVAL);
    loop {
        tokio::select! {
            biased;
            () = signals.wait_for_stop() => break,
            _ = pace.tick() => cluster.report_changes(args.json).await,
        }
    }
    cluster.stop().await;
    chain.close().await;
    Ok(())
}

struct Cluster {
    nodes: Vec<NodeProcess>,
    keepers: KeeperWatch,
}

impl Cluster {
    async fn start(
        args: &DevArgs,
        chain: &DevNetwork,
        base: NodeFile,
        store: &PostgresUrl,
    ) -> Result<Self, Failure> {
        let dir = args
            .dir
            .canonicalize()
            .map_err(|e| Failure::refused(&args.dir.display().to_string(), &e))?;
        let common = common_file(&dir, chain, base, store)?;
        let mut files = Vec::new();
        for number in 1..=usize::from(args.nodes) {
            let mut file = common.clone();
            let listen = SocketAddr::from(([127, 0, 0, 1], node_port(args, number)));
            file.set_key("node", "name", node_name(number).into());
            file.set_key("http", "listen", listen.to_string().into());
            let path = dir.join(format!("{}.toml", node_name(number)));
            file.write(&path)?;
            files.push((node_name(number), path));
        }
        let (_, first) = files.first().expect("there is at least one node");
        adapters::migrate_store(&read_generated(first)?, None).await?;
        let starts = files.iter().map(|(name, path)| async move {
            let log = path.with_extension("log");
            start_node(name, path, Some(&log)).await
        });
        let nodes = try_join_all(starts).await?;
        let urls = nodes.iter().map(|node| node.url.clone()).collect();
        Ok(Self {
            nodes,
            keepers: KeeperWatch::new(urls),
        })
    }

    fn ready_line(&self, chain: &DevNetwork) -> Value {
        let nodes: Vec<Value> = self
            .nodes
            .iter()
            .map(|node| {
                json!({
                    "node": node.name, "api": node.url, "pid": node.child.pid,
                    "config": node.config,
                })
            })
            .collect();
        json!({
            "ready": true, "api": self.nodes[0].url, "nodes": nodes, "chain": chain.url,
            "chainId": chain.id, "accounts": chain.addresses(),
            "lender": chain.reserved_json(),
        })
    }

    /// Prints which nodes have ended and which lanes have a new keeper.
    async fn report_changes(&mut self, silent: bool) {
        let mut rest = Vec::new();
        for mut node in std::mem::take(&mut self.nodes) {
            let Some(status) = node.child.exit_status() else {
                rest.push(node);
                continue;
            };
            if !silent {
                let ended = format!("{} (pid {}) ended: {status}.", node.name, node.child.pid);
                print_line!(
                    "{} Start it again in another terminal:",
                    paint(Tone::Bad, &ended)
                );
                print_line!("  lanekeeper serve --config {}", node.config.display());
            }
        }
        self.nodes = rest;
        if !silent {
            for line in self.keepers.poll_changes().await {
                print_line!("{line}");
            }
        }
    }

    async fn stop(mut self) {
        for node in &mut self.nodes {
            node.child.request_stop();
        }
        for node in self.nodes {
            node.child.wait_until_stopped().await;
        }
    }

    async fn print_welcome(&mut self, chain: &DevNetwork, store: &PostgresUrl) {
        let strong = |text: &str| paint(Tone::Strong, text);
        print_line!("{}", strong("The cluster is ready."));
        print_line!("");
        let mut table = Columns::new(&["node", "API", "pid#", "log"]);
        for node in &self.nodes {
            table.add_row(vec![
                (Tone::Strong, node.name.clone()),
                (Tone::Plain, node.url.clone()),
                (Tone::Plain, node.child.pid.to_string()),
                (
                    Tone::Quiet,
                    node.config.with_extension("log").display().to_string(),
                ),
            ]);
        }
        print_line!("{table}");
        print_line!("");
        print_line!("  chain  {} (id {})", strong(&chain.url), chain.id);
        print_line!("  store  {}", store.redacted());
        print_line!("");
        let lanes = self.keepers.fetch_lanes().await;
        print_line!("{}", self.keepers.table(&lanes, ACCOUNTS_SHOWN_MAX));
        if belongs_to_another_chain(chain, &lanes).await {
            let warning = "The database contains txs that this chain does not know: use an empty \
                           database, or the --dir of the run that wrote them.";
            print_line!("{}", paint(Tone::Bad, warning));
        }
        print_line!("");
        self.print_suggestions(chain);
    }

    fn print_suggestions(&self, chain: &DevNetwork) {
        let [first, .., last] = self.nodes.as_slice() else {
            let [only] = self.nodes.as_slice() else {
                return;
            };
            print_line!("Try: lanekeeper tx send --url {} --help", only.url);
            return;
        };
        let addresses = chain.addresses();
        let from: Vec<&str> = addresses.iter().take(4).map(String::as_str).collect();
        let to = addresses.last().map_or("", String::as_str);
        print_line!("Try, in another terminal (every node accepts every request):");
        print_line!("  for from in {}; do", from.join(" "));
        print_line!(
            "    lanekeeper tx send --url {} --from $from --to {to} --value 1 --wait confirmed",
            last.url
        );
        print_line!("  done");
        print_line!("  lanekeeper node list --url {}", first.url);
        for node in &self.nodes {
            print_line!("  curl -s {}/api/v1/lanes", node.url);
        }
        print_line!("");
        let seconds = LEASE.as_secs() + 1;
        print_line!(
            "Then kill a keeper and send again through another node: its lanes are taken over within \
             about {seconds} s."
        );
        for node in &self.nodes {
            print_line!("  kill -9 {:<7} # {}", node.child.pid, node.name);
        }
        print_quiet("Ctrl-C stops all nodes and keeps the data in the database.");
        print_line!("");
    }
}

/// Whether a lane without in-flight txs has used nonces that the chain has never seen.
async fn belongs_to_another_chain(chain: &DevNetwork, lanes: &[LaneView]) -> bool {
    let quiet: Vec<&LaneView> = lanes.iter().filter(|lane| lane.in_flight == 0).collect();
    let accounts: Vec<String> = quiet.iter().map(|lane| lane.signer.clone()).collect();
    let mined = match JsonRpc::new(&chain.url) {
        Ok(rpc) => rpc.fetch_nonces(&accounts).await.unwrap_or_default(),
        Err(_) => Vec::new(), // this only omits a warning
    };
    let mut both = quiet.iter().zip(mined);
    both.any(|(lane, mined)| mined.is_some_and(|mined| mined < lane.next_nonce))
}

/// The configuration that all nodes share. Keys and the cluster secret are in separate files.
fn common_file(
    dir: &Path,
    chain: &DevNetwork,
    base: NodeFile,
    store: &PostgresUrl,
) -> Result<NodeFile, Failure> {
    let secret_file = dir.join("cluster.secret");
    let random: [u8; 32] = rand::random();
    write_private_file(&secret_file, &format!("{}\n", hex::encode(random)))?;
    let mut signers = Vec::new();
    for (number, (_, key)) in chain.accounts.iter().enumerate() {
        let file = dir.join("keys").join(format!("{number}.key"));
        write_private_file(&file, &format!("{key}\n"))?;
        signers.push(table([
            ("kind", "key".into()),
            ("keyFile", path_value(&file)),
        ]));
    }
    signers.push(chain.reserved_signer());
    let mut file = chain.add_settings(base);
    file.add_section("signer", signers.into());
    let node = table([
        ("drainDelay", "1s".into()),
        ("clusterSecretFile", path_value(&secret_file)),
    ]);
    file.add_section("node", node);
    file.add_section("store", table([("url", store.secret().into())]));
    let lease = table([
        ("duration", cli::duration::format(LEASE).into()),
        ("renewInterval", cli::duration::format(RENEW).into()),
        // A demonstrated lane keeps its keeper while nothing is sent.
        ("idleRelease", "10m".into()),
    ]);
    file.add_section("lease", lease);
    Ok(file)
}

fn path_value(path: &Path) -> toml::Value {
    path.display().to_string().into()
}

/// The first node uses the default port, the others the ports after the chain's. 0 is any free port.
fn node_port(args: &DevArgs, number: usize) -> u16 {
    let after = u16::try_from(number).unwrap_or(u16::MAX).saturating_sub(2);
    match (args.port, number) {
        (Some(0), _) => 0,
        (Some(port), 1) => port,
        (None, 1) => 8645,
        (Some(port), _) => port.saturating_add(after).saturating_add(2),
        (None, _) => SECOND_PORT.saturating_add(after),
    }
}
