//! `dev --nodes 3 --store postgres://…`: a cluster to play with. The chain is in this process, every
//! node in one of its own, so that they can be killed one by one.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use futures::future::try_join_all;
use serde_json::{Value, json};

use super::keepers::Keepers;
use super::{ACCOUNTS_SHOWN_MAX, World, refuse_own};
use crate::cli::DevArgs;
use crate::client::LaneView;
use crate::commands::{print_json, read_generated};
use crate::config::PostgresUrl;
use crate::failure::Failure;
use crate::fleet::{NodeProcess, Settings, node_name, private_file, start_node, table};
use crate::jsonrpc::JsonRpc;
use crate::open;
use crate::output::{Columns, Tone, paint, say};
use crate::signals::Signals;

/// Where the second node listens; 8646 is the chain's.
const SECOND_PORT: u16 = 8647;
/// Short enough to be watched, long enough for a busy laptop.
const LEASE: Duration = Duration::from_secs(5);
const RENEW: Duration = Duration::from_millis(1_500);
/// How often keepers and processes are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn run(args: &DevArgs, store: &str, mut signals: Signals) -> Result<(), Failure> {
    let store = PostgresUrl::parse(store).ok_or_else(|| {
        Failure::Usage("--store takes postgres://user:password@host:5432/database".into())
    })?;
    let base = match &args.config {
        Some(path) => Settings::read(path)?,
        None => Settings::default(),
    };
    refuse_own(|section| base.has(section))?;
    std::fs::create_dir_all(args.dir.join("keys"))
        .map_err(|e| Failure::refused(&format!("{} cannot be made", args.dir.display()), &e))?;
    let world = World::open(args).await?;
    let cluster = Cluster::start(args, &world, base, &store).await;
    let mut cluster = match cluster {
        Ok(cluster) => cluster,
        Err(failure) => {
            world.close().await;
            return Err(failure);
        }
    };
    if args.json {
        print_json(&cluster.ready_line(&world));
    } else {
        cluster.welcome(&world, &store).await;
    }
    let mut pace = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            biased;
            () = signals.stop() => break,
            _ = pace.tick() => cluster.look(args.json).await,
        }
    }
    cluster.stop().await;
    world.close().await;
    Ok(())
}

struct Cluster {
    nodes: Vec<NodeProcess>,
    keepers: Keepers,
}

impl Cluster {
    async fn start(
        args: &DevArgs,
        world: &World,
        base: Settings,
        store: &PostgresUrl,
    ) -> Result<Self, Failure> {
        let dir = args
            .dir
            .canonicalize()
            .map_err(|e| Failure::refused(&args.dir.display().to_string(), &e))?;
        let settings = common(&dir, world, base, store)?;
        let mut files = Vec::new();
        for number in 1..=usize::from(args.nodes) {
            let mut settings = settings.clone();
            let listen = SocketAddr::from(([127, 0, 0, 1], port(args, number)));
            settings.set("node", "name", node_name(number).into());
            settings.set("http", "listen", listen.to_string().into());
            let path = dir.join(format!("{}.toml", node_name(number)));
            settings.write(&path)?;
            files.push((node_name(number), path));
        }
        let (_, first) = files.first().expect("there is at least one node");
        open::migrate(&read_generated(first)?, None).await?;
        let starts = files.iter().map(|(name, path)| async move {
            let log = path.with_extension("log");
            start_node(name, path, Some(&log)).await
        });
        let nodes = try_join_all(starts).await?;
        let urls = nodes.iter().map(|node| node.url.clone()).collect();
        Ok(Self {
            nodes,
            keepers: Keepers::new(urls),
        })
    }

    fn ready_line(&self, world: &World) -> Value {
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
            "ready": true, "api": self.nodes[0].url, "nodes": nodes, "chain": world.chain_url,
            "chainId": world.chain_id, "accounts": world.addresses(),
            "lender": world.lender_json(),
        })
    }

    /// Tells who ended and which lane has another keeper.
    async fn look(&mut self, silent: bool) {
        let mut rest = Vec::new();
        for mut node in std::mem::take(&mut self.nodes) {
            let Some(how) = node.child.ended() else {
                rest.push(node);
                continue;
            };
            if !silent {
                let who = format!("{} (pid {}) ended: {how}.", node.name, node.child.pid);
                say!(
                    "{} Start it again in another terminal:",
                    paint(Tone::Bad, &who)
                );
                say!("  lanekeeper serve --config {}", node.config.display());
            }
        }
        self.nodes = rest;
        if !silent {
            for line in self.keepers.changes().await {
                say!("{line}");
            }
        }
    }

    async fn stop(mut self) {
        for node in &mut self.nodes {
            node.child.ask_to_stop();
        }
        for node in self.nodes {
            node.child.gone().await;
        }
    }

    async fn welcome(&mut self, world: &World, store: &PostgresUrl) {
        let strong = |text: &str| paint(Tone::Strong, text);
        say!("{}", strong("The cluster is ready."));
        say!("");
        let mut table = Columns::new(&["node", "API", "pid#", "log"]);
        for node in &self.nodes {
            table.row(vec![
                (Tone::Strong, node.name.clone()),
                (Tone::Plain, node.url.clone()),
                (Tone::Plain, node.child.pid.to_string()),
                (
                    Tone::Quiet,
                    node.config.with_extension("log").display().to_string(),
                ),
            ]);
        }
        say!("{table}");
        say!("");
        say!(
            "  chain  {} (id {})",
            strong(&world.chain_url),
            world.chain_id
        );
        say!("  store  {}", store.shown());
        say!("");
        let lanes = self.keepers.ask().await;
        say!("{}", self.keepers.table(&lanes, ACCOUNTS_SHOWN_MAX));
        if is_of_another_chain(world, &lanes).await {
            let warning = "The database holds txs that this chain does not know: take an empty \
                           database, or the --dir of the run that filled it.";
            say!("{}", paint(Tone::Bad, warning));
        }
        say!("");
        self.suggest(world);
    }

    /// What to try next.
    fn suggest(&self, world: &World) {
        let [first, .., last] = self.nodes.as_slice() else {
            let [only] = self.nodes.as_slice() else {
                return;
            };
            say!("Try: lanekeeper tx send --url {} --help", only.url);
            return;
        };
        let addresses = world.addresses();
        let from: Vec<&str> = addresses.iter().take(4).map(String::as_str).collect();
        let to = addresses.last().map_or("", String::as_str);
        say!("Try, in another terminal (any node takes any request):");
        say!("  for from in {}; do", from.join(" "));
        say!(
            "    lanekeeper tx send --url {} --from $from --to {to} --value 1 --wait confirmed",
            last.url
        );
        say!("  done");
        say!("  lanekeeper node list --url {}", first.url);
        for node in &self.nodes {
            say!("  curl -s {}/api/v1/lanes", node.url);
        }
        say!("");
        let seconds = LEASE.as_secs() + 1;
        say!(
            "Then kill a keeper and send again through another node: within about {seconds} s its \
             lanes have another one."
        );
        for node in &self.nodes {
            say!("  kill -9 {:<7} # {}", node.child.pid, node.name);
        }
        let quiet = "Ctrl-C stops all of them; what they hold stays in the database.";
        say!("{}", paint(Tone::Quiet, quiet));
        say!("");
    }
}

/// Whether nonces were used up that the chain has never seen, and nothing is on its way there.
async fn is_of_another_chain(world: &World, lanes: &[LaneView]) -> bool {
    let quiet: Vec<&LaneView> = lanes.iter().filter(|lane| lane.in_flight == 0).collect();
    let accounts: Vec<String> = quiet.iter().map(|lane| lane.signer.clone()).collect();
    let mined = match JsonRpc::new(&world.chain_url) {
        Ok(chain) => chain.mined(&accounts).await.unwrap_or_default(),
        Err(_) => Vec::new(), // only a hint is lost
    };
    let mut both = quiet.iter().zip(mined);
    both.any(|(lane, mined)| mined.is_some_and(|mined| mined < lane.next_nonce))
}

/// What all nodes have in common. Keys and secret are in files of their own.
fn common(
    dir: &Path,
    world: &World,
    base: Settings,
    store: &PostgresUrl,
) -> Result<Settings, Failure> {
    let secret_file = dir.join("cluster.secret");
    let random: [u8; 32] = rand::random();
    private_file(&secret_file, &format!("{}\n", hex::encode(random)))?;
    let mut signers = Vec::new();
    for (number, (_, key)) in world.accounts.iter().enumerate() {
        let file = dir.join("keys").join(format!("{number}.key"));
        private_file(&file, &format!("{key}\n"))?;
        signers.push(table([
            ("kind", "key".into()),
            ("keyFile", path_value(&file)),
        ]));
    }
    signers.push(world.lender_setting());
    let mut settings = world.settings(base);
    settings.put("signer", signers.into());
    let node = table([
        ("drainDelay", "1s".into()),
        ("clusterSecretFile", path_value(&secret_file)),
    ]);
    settings.put("node", node);
    settings.put("store", table([("url", store.secret().into())]));
    let lease = table([
        ("duration", crate::config::show_duration(LEASE).into()),
        ("renewInterval", crate::config::show_duration(RENEW).into()),
        // A lane that is looked at keeps its keeper, also when nothing is sent for a while.
        ("idleRelease", "10m".into()),
    ]);
    settings.put("lease", lease);
    Ok(settings)
}

fn path_value(path: &Path) -> toml::Value {
    path.display().to_string().into()
}

/// The first node has the usual port, the others those after the chain's. 0 is any free one.
fn port(args: &DevArgs, number: usize) -> u16 {
    let after = u16::try_from(number).unwrap_or(u16::MAX).saturating_sub(2);
    match (args.port, number) {
        (Some(0), _) => 0,
        (Some(port), 1) => port,
        (None, 1) => 8645,
        (Some(port), _) => port.saturating_add(after).saturating_add(2),
        (None, _) => SECOND_PORT.saturating_add(after),
    }
}
