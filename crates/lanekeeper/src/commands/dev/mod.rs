//! `dev`: a node, a store and a chain in one process on loopback, or a cluster of node processes.

mod cluster;
mod keepers;

use std::path::{Path, PathBuf};

use alloy_primitives::{Address, B256};
use cli::output::{Tone, paint, print_json, print_line, print_quiet};
use cli::process::{NodeFile, table};
use cli::{Failure, Signals};
use devchain::{DEV_CHAIN_ID, dev_account, dev_accounts};
use serde_json::json;

use super::devchain::{RunningChain, delete_chain, delete_database};
use super::{config_failure, log_warnings};
use crate::adapters;
use crate::command_line::DevArgs;
use crate::config::{Config, RawFile, Sources, environment, read_file};
use crate::jsonrpc::JsonRpc;
use crate::wiring::RunningNode;

const ACCOUNTS_SHOWN_MAX: usize = 10;
/// The account of the test mnemonic whose nonces applications reserve: outside the range of `--accounts`, because
/// the node must not send from it.
const RESERVED_INDEX: u32 = 1_000_000;

pub(crate) async fn run(args: &DevArgs) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    if args.while_stdin {
        signals.stop_when_stdin_ends();
    }
    match &args.store {
        Some(store) => cluster::run(args, store, signals).await,
        None if args.nodes > 1 => Err(Failure::Usage(format!(
            "{} nodes need a shared store, and the embedded one belongs to one process: give a PostgreSQL \
             database, such as --store postgres://postgres@127.0.0.1:5432/lanekeeper",
            args.nodes
        ))),
        None => run_single_node(args, signals).await,
    }
}

async fn run_single_node(args: &DevArgs, mut signals: Signals) -> Result<(), Failure> {
    if args.fresh {
        delete_database(&args.dir, "lanekeeper.lock", "lanekeeper.db")?;
        delete_chain(&chain_dir(args))?;
    }
    let chain = DevNetwork::open(args).await?;
    let config = read_config(args, &chain)?;
    adapters::migrate_store(&config, None).await?;
    let running = RunningNode::start(&config).await?;
    let api = format!("http://{}", running.address);
    if args.json {
        print_json(&json!({
            "ready": true, "api": api, "chain": chain.url, "chainId": chain.id,
            "accounts": chain.addresses(), "lender": chain.reserved_json(),
        }));
    } else {
        print_welcome(args, &chain, &api);
    }
    let ended = running.serve(&mut signals).await;
    chain.close().await;
    ended
}

fn chain_dir(args: &DevArgs) -> PathBuf {
    args.dir.join("chain")
}

/// The chain of `dev` and its funded accounts.
struct DevNetwork {
    url: String,
    id: u64,
    accounts: Vec<(Address, B256)>,
    /// The account whose nonces applications reserve, with its key for them.
    reserved: (Address, B256),
    /// `None` when the chain runs in another process.
    process: Option<RunningChain>,
}

impl DevNetwork {
    /// Starts the chain, or connects to the one of `--chain-url`, and funds the accounts.
    async fn open(args: &DevArgs) -> Result<Self, Failure> {
        let (url, id, accounts, process) = match &args.chain_url {
            Some(url) => {
                let id = JsonRpc::new(url)?.chain_id().await?;
                let count = args.chain.accounts;
                let deriving = tokio::task::spawn_blocking(move || dev_accounts(count)).await;
                let accounts =
                    deriving.map_err(|e| Failure::refused("cannot derive the accounts", &e))?;
                (url.clone(), id, accounts, None)
            }
            None => {
                let (dir, port) = (chain_dir(args), args.chain_port);
                let process = RunningChain::start(dir, port, "--chain-port", &args.chain).await?;
                let accounts = process.accounts.clone();
                (process.url(), DEV_CHAIN_ID, accounts, Some(process))
            }
        };
        let reserved = dev_account(RESERVED_INDEX);
        let mut funded = accounts.clone();
        funded.push(reserved);
        JsonRpc::new(&url)?.fund_new_accounts(&funded).await?;
        Ok(Self {
            url,
            id,
            accounts,
            reserved,
            process,
        })
    }

    /// The `[[signer]]` of the reserved account, without its key.
    fn reserved_signer(&self) -> toml::Value {
        let address = self.reserved.0.to_string();
        table([("kind", "external".into()), ("address", address.into())])
    }

    fn reserved_json(&self) -> serde_json::Value {
        let (address, key) = &self.reserved;
        json!({ "address": address.to_string(), "key": key.to_string() })
    }

    fn addresses(&self) -> Vec<String> {
        let accounts = self.accounts.iter();
        accounts.map(|(address, _)| address.to_string()).collect()
    }

    /// Adds the settings of every node of this chain, except store, keys and name.
    fn add_settings(&self, mut file: NodeFile) -> NodeFile {
        let chain_id = i64::try_from(self.id).unwrap_or(i64::MAX);
        let chain = table([
            ("id", chain_id.into()),
            ("name", "dev".into()),
            ("rpc", vec![self.url.clone()].into()),
            // Blocks are mined immediately, so that the head is polled often.
            ("blockTime", "200ms".into()),
        ]);
        file.add_section("chain", vec![chain].into());
        file.add_section("confirmations", table([("required", 2.into())]));
        file
    }

    async fn close(self) {
        if let Some(chain) = self.process {
            chain.stop().await;
        }
    }
}

/// The settings of `dev`, overridden by the file, the environment and the flags.
fn read_config(args: &DevArgs, chain: &DevNetwork) -> Result<Config, Failure> {
    let file = args.config.as_deref().map(read_file).transpose();
    let file = file.map_err(config_failure)?;
    refuse_own_sections(|section| file.as_ref().is_some_and(|file| file.has_section(section)))?;
    let listen = |port: u16| ("http.listen", format!("127.0.0.1:{port}"));
    let config = Config::read(Sources {
        dev: Some(dev_settings(&args.dir, chain).map_err(config_failure)?),
        file,
        env: environment().map_err(config_failure)?,
        flags: args.port.map(listen).into_iter().collect(),
    })
    .map_err(config_failure)?;
    log_warnings(&config);
    Ok(config)
}

/// Refuses a file with sections that `dev` sets itself.
fn refuse_own_sections(has: impl Fn(&str) -> bool) -> Result<(), Failure> {
    match ["store", "chain", "signer"]
        .into_iter()
        .find(|own| has(own))
    {
        None => Ok(()),
        Some(own) => Err(Failure::Usage(format!(
            "`dev` sets store, chain and signers itself: remove {own} from the file, or use \
             `lanekeeper serve`"
        ))),
    }
}

fn dev_settings(dir: &Path, chain: &DevNetwork) -> Result<RawFile, Vec<crate::config::Problem>> {
    let mut signers: Vec<toml::Value> = (chain.accounts.iter())
        .map(|(_, key)| table([("kind", "key".into()), ("key", key.to_string().into())]))
        .collect();
    signers.push(chain.reserved_signer());
    let store = format!("sqlite:{}", dir.display());
    let mut file = chain.add_settings(NodeFile::default());
    // No load balancer has to notice that a dev node stops.
    let node = table([("name", "dev".into()), ("drainDelay", "0s".into())]);
    file.add_section("node", node);
    file.add_section("store", table([("url", store.into())]));
    file.add_section("signer", signers.into());
    RawFile::parse(Path::new("dev"), &file.to_toml())
}

fn print_welcome(args: &DevArgs, chain: &DevNetwork, api: &str) {
    let strong = |text: &str| paint(Tone::Strong, text);
    print_line!("{}", strong("Lanekeeper is ready."));
    print_line!("");
    print_line!("  API    {}", strong(api));
    print_line!("  chain  {} (id {})", strong(&chain.url), chain.id);
    print_line!("  data   {}", args.dir.display());
    print_line!("");
    print_line!("Accounts of the public test mnemonic \"test test … junk\", 10000 eth each:");
    for (address, _) in chain.accounts.iter().take(ACCOUNTS_SHOWN_MAX) {
        print_line!("  {address}");
    }
    if chain.accounts.len() > ACCOUNTS_SHOWN_MAX {
        print_line!("  … and {} more", chain.accounts.len() - ACCOUNTS_SHOWN_MAX);
    }
    let (reserved, key) = chain.reserved;
    print_line!("");
    print_line!(
        "Account for nonce reservations (an application signs and sends its transactions):"
    );
    print_line!("  {reserved} (key {key})");
    let from = chain
        .accounts
        .first()
        .map_or(Address::ZERO, |(address, _)| *address);
    let to = chain.accounts.get(1).map_or(from, |(address, _)| *address);
    let url = if api == "http://127.0.0.1:8645" {
        String::new()
    } else {
        format!(" --url {api}")
    };
    print_line!("");
    print_line!("Try:");
    print_line!(
        "  lanekeeper tx send{url} --from {from} --to {to} --value 0.1eth --wait confirmed"
    );
    print_line!("  lanekeeper events tail{url}");
    print_line!("  lanekeeper nonce allocate{url} {reserved}");
    print_line!(
        "  curl -s '{api}/api/v1/tx?wait=confirmed' -H 'content-type: application/json' \\"
    );
    print_line!(
        "    -d '{{\"signer\":\"{from}\",\"requestId\":\"try-1\",\"payload\":{{\"to\":\"{to}\",\"value\":\"1\"}}}}'"
    );
    print_line!("");
    print_quiet("Ctrl-C stops it and keeps the data; --fresh deletes it.");
}
