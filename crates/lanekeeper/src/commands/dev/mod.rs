//! `dev`: a node, a store and a chain in one process on loopback; or a cluster of processes.

mod cluster;
mod keepers;

use std::path::{Path, PathBuf};

use alloy_primitives::{Address, B256};
use chain::devchain::{DEV_CHAIN_ID, dev_account, dev_accounts};
use serde_json::json;

use super::devchain::{RunningChain, forget, forget_chain};
use super::{print_json, wrong_config};
use crate::cli::DevArgs;
use crate::config::{Config, RawFile, Sources, environment, read_file};
use crate::failure::Failure;
use crate::fleet::{Settings, table};
use crate::jsonrpc::JsonRpc;
use crate::open;
use crate::output::{Tone, paint, say};
use crate::signals::Signals;
use crate::wiring::Running;

const ACCOUNTS_SHOWN_MAX: usize = 10;
/// The account of the test mnemonic that lends its nonces: beyond all that `--accounts` can name, because an account
/// lends or sends, and never both.
const LENDER_INDEX: u32 = 1_000_000;

pub(crate) async fn run(args: &DevArgs) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    if args.while_stdin {
        signals.also_when_stdin_ends();
    }
    match &args.store {
        Some(store) => cluster::run(args, store, signals).await,
        None if args.nodes > 1 => Err(Failure::Usage(format!(
            "{} nodes need a store that they can share, and the embedded one has one owner: name a \
             PostgreSQL database, such as --store postgres://postgres@127.0.0.1:5432/lanekeeper",
            args.nodes
        ))),
        None => one_node(args, signals).await,
    }
}

async fn one_node(args: &DevArgs, mut signals: Signals) -> Result<(), Failure> {
    if args.fresh {
        forget(&args.dir, "lanekeeper.lock", "lanekeeper.db")?;
        forget_chain(&chain_dir(args))?;
    }
    let world = World::open(args).await?;
    let config = read_config(args, &world)?;
    open::migrate(&config, None).await?;
    let running = Running::start(&config).await?;
    let api = format!("http://{}", running.address);
    if args.json {
        print_json(&json!({
            "ready": true, "api": api, "chain": world.chain_url, "chainId": world.chain_id,
            "accounts": world.addresses(), "lender": world.lender_json(),
        }));
    } else {
        welcome(args, &world, &api);
    }
    let ended = running.serve(&mut signals).await;
    world.close().await;
    ended
}

fn chain_dir(args: &DevArgs) -> PathBuf {
    args.dir.join("chain")
}

/// The chain that `dev` uses, and the accounts it gives out.
struct World {
    chain_url: String,
    chain_id: u64,
    accounts: Vec<(Address, B256)>,
    /// The account that lends its nonces; its key is for whoever borrows them.
    lender: (Address, B256),
    /// `None` when it runs in another process.
    chain: Option<RunningChain>,
}

impl World {
    /// Starts the chain, or looks for the one that was named, and sees to it that accounts have funds.
    async fn open(args: &DevArgs) -> Result<Self, Failure> {
        let world = match &args.chain_url {
            Some(url) => Self::elsewhere(url, args.chain.accounts).await?,
            None => {
                let port = args.chain_port;
                let dir = chain_dir(args);
                Self::here(RunningChain::start(dir, port, "--chain-port", &args.chain).await?)
            }
        };
        let rpc = JsonRpc::new(&world.chain_url)?;
        let mut accounts = world.accounts.clone();
        accounts.push(world.lender);
        rpc.fund_new_accounts(&accounts).await?;
        Ok(world)
    }

    /// The signer whose nonces are lent: its key is not here.
    fn lender_setting(&self) -> toml::Value {
        let address = self.lender.0.to_string();
        table([("kind", "external".into()), ("address", address.into())])
    }

    fn lender_json(&self) -> serde_json::Value {
        let (address, key) = &self.lender;
        json!({ "address": address.to_string(), "key": key.to_string() })
    }

    fn addresses(&self) -> Vec<String> {
        let accounts = self.accounts.iter();
        accounts.map(|(address, _)| address.to_string()).collect()
    }

    /// What every node of this world must be told, without store, keys and name.
    fn settings(&self, mut settings: Settings) -> Settings {
        let chain_id = i64::try_from(self.chain_id).unwrap_or(i64::MAX);
        let chain = table([
            ("id", chain_id.into()),
            ("name", "dev".into()),
            ("rpc", vec![self.chain_url.clone()].into()),
            // Blocks come at once, so the head is looked for often.
            ("blockTime", "200ms".into()),
        ]);
        settings.put("chain", vec![chain].into());
        settings.put("confirmations", table([("required", 2.into())]));
        settings
    }

    async fn close(self) {
        if let Some(chain) = self.chain {
            chain.stop().await;
        }
    }

    fn here(chain: RunningChain) -> Self {
        let accounts = chain.accounts.clone();
        Self {
            chain_url: chain.url(),
            chain_id: DEV_CHAIN_ID,
            accounts,
            lender: dev_account(LENDER_INDEX),
            chain: Some(chain),
        }
    }

    async fn elsewhere(url: &str, accounts: u32) -> Result<Self, Failure> {
        let chain_id = JsonRpc::new(url)?.chain_id().await?;
        let accounts = tokio::task::spawn_blocking(move || dev_accounts(accounts)).await;
        let accounts = accounts.map_err(|e| Failure::refused("the accounts", &e))?;
        Ok(Self {
            chain_url: url.to_owned(),
            chain_id,
            accounts,
            lender: dev_account(LENDER_INDEX),
            chain: None,
        })
    }
}

/// dev's own settings, under the file, the environment and the flags.
fn read_config(args: &DevArgs, world: &World) -> Result<Config, Failure> {
    let read = || {
        let file = args.config.as_deref().map(read_file).transpose()?;
        let flags = args
            .port
            .map(|port| ("http.listen", format!("127.0.0.1:{port}")));
        let sources = Sources {
            dev: Some(settings(&args.dir, world)?),
            file,
            env: environment(),
            flags: flags.into_iter().collect(),
        };
        Ok(sources)
    };
    let sources = read().map_err(|problems: Vec<_>| wrong_config(&problems))?;
    let file = sources.file.as_ref();
    refuse_own(|section| file.is_some_and(|file| file.has(section)))?;
    let config = Config::read(sources).map_err(|problems| wrong_config(&problems))?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    Ok(config)
}

/// Refuses a file that has what `dev` itself brings.
fn refuse_own(has: impl Fn(&str) -> bool) -> Result<(), Failure> {
    match ["store", "chain", "signer"]
        .into_iter()
        .find(|own| has(own))
    {
        None => Ok(()),
        Some(own) => Err(Failure::Usage(format!(
            "`dev` brings its own store, chain and signers: take {own} out of the file, or use \
             `lanekeeper serve`"
        ))),
    }
}

fn settings(dir: &Path, world: &World) -> Result<RawFile, Vec<crate::config::Problem>> {
    let mut signers: Vec<toml::Value> = (world.accounts.iter())
        .map(|(_, key)| table([("kind", "key".into()), ("key", key.to_string().into())]))
        .collect();
    signers.push(world.lender_setting());
    let store = format!("sqlite:{}", dir.display());
    let mut settings = world.settings(Settings::default());
    // Nobody takes over from a dev node, so it need not wait for anyone to notice.
    let node = table([("name", "dev".into()), ("drainDelay", "0s".into())]);
    settings.put("node", node);
    settings.put("store", table([("url", store.into())]));
    settings.put("signer", signers.into());
    RawFile::parse(Path::new("dev"), &settings.text())
}

fn welcome(args: &DevArgs, world: &World, api: &str) {
    let strong = |text: &str| paint(Tone::Strong, text);
    say!("{}", strong("Lanekeeper is ready."));
    say!("");
    say!("  API    {}", strong(api));
    say!(
        "  chain  {} (id {})",
        strong(&world.chain_url),
        world.chain_id
    );
    say!("  data   {}", args.dir.display());
    say!("");
    say!("Accounts of the public test mnemonic \"test test … junk\", 10000 eth each:");
    for (address, _) in world.accounts.iter().take(ACCOUNTS_SHOWN_MAX) {
        say!("  {address}");
    }
    if world.accounts.len() > ACCOUNTS_SHOWN_MAX {
        say!("  … and {} more", world.accounts.len() - ACCOUNTS_SHOWN_MAX);
    }
    let (lender, key) = world.lender;
    say!("");
    say!("Lends its nonces to whoever signs and sends by himself:");
    say!("  {lender} (key {key})");
    let from = world
        .accounts
        .first()
        .map_or(Address::ZERO, |(address, _)| *address);
    let to = world.accounts.get(1).map_or(from, |(address, _)| *address);
    let url = if api == "http://127.0.0.1:8645" {
        String::new()
    } else {
        format!(" --url {api}")
    };
    say!("");
    say!("Try:");
    say!("  lanekeeper tx send{url} --from {from} --to {to} --value 0.1eth --wait confirmed");
    say!("  lanekeeper events tail{url}");
    say!("  lanekeeper nonce allocate{url} {lender}");
    say!("  curl -s '{api}/api/v1/tx?wait=confirmed' -H 'content-type: application/json' \\");
    say!(
        "    -d '{{\"signer\":\"{from}\",\"requestId\":\"try-1\",\"payload\":{{\"to\":\"{to}\",\"value\":\"1\"}}}}'"
    );
    say!("");
    say!(
        "{}",
        paint(
            Tone::Quiet,
            "Ctrl-C stops it; what it holds stays (--fresh forgets it)."
        )
    );
}
