//! `dev`: a node, a store and a chain in one process on loopback.

use std::path::Path;

use alloy_primitives::{Address, B256};
use chain::devchain::{DEV_CHAIN_ID, dev_accounts};
use serde_json::json;

use super::devchain::{RunningChain, forget, forget_chain};
use super::{print_json, wrong_config};
use crate::cli::DevArgs;
use crate::config::{Config, RawFile, Sources, environment, read_file};
use crate::failure::Failure;
use crate::jsonrpc::JsonRpc;
use crate::open;
use crate::output::{Tone, paint, say};
use crate::signals::Signals;
use crate::wiring::Running;

const ACCOUNTS_SHOWN_MAX: usize = 10;

pub(crate) async fn run(args: &DevArgs) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let chain_dir = args.dir.join("chain");
    if args.fresh {
        forget(&args.dir, "lanekeeper.lock", "lanekeeper.db")?;
        forget_chain(&chain_dir)?;
    }
    let world = match &args.chain_url {
        Some(url) => World::elsewhere(url, args.chain.accounts).await?,
        None => {
            let port = args.chain_port;
            World::here(RunningChain::start(chain_dir, port, "--chain-port", &args.chain).await?)
        }
    };
    let rpc = JsonRpc::new(&world.chain_url)?;
    rpc.fund_new_accounts(&world.accounts).await?;
    let config = read_config(args, &world)?;
    open::migrate(&config).await?;
    let running = Running::start(&config).await?;
    let api = format!("http://{}", running.address);
    if args.json {
        let accounts: Vec<String> = world.accounts.iter().map(|(a, _)| a.to_string()).collect();
        print_json(&json!({
            "ready": true, "api": api, "chain": world.chain_url, "chainId": world.chain_id,
            "accounts": accounts,
        }));
    } else {
        welcome(args, &world, &api);
    }
    let ended = running.serve(&mut signals).await;
    if let Some(chain) = world.chain {
        chain.stop().await;
    }
    ended
}

/// The chain that `dev` uses, and the accounts it gives out.
struct World {
    chain_url: String,
    chain_id: u64,
    accounts: Vec<(Address, B256)>,
    /// `None` when it runs in another process.
    chain: Option<RunningChain>,
}

impl World {
    fn here(chain: RunningChain) -> Self {
        let accounts = chain.accounts.clone();
        Self {
            chain_url: chain.url(),
            chain_id: DEV_CHAIN_ID,
            accounts,
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
    if let Some(own) = file.and_then(|file| {
        ["store", "chain", "signer"]
            .into_iter()
            .find(|s| file.has(s))
    }) {
        return Err(Failure::Usage(format!(
            "`dev` brings its own store, chain and signers: take {own} out of the file, or use \
             `lanekeeper serve`"
        )));
    }
    let config = Config::read(sources).map_err(|problems| wrong_config(&problems))?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    Ok(config)
}

fn settings(dir: &Path, world: &World) -> Result<RawFile, Vec<crate::config::Problem>> {
    let signers: Vec<toml::Value> = (world.accounts.iter())
        .map(|(_, key)| table([("kind", "key".into()), ("key", key.to_string().into())]))
        .collect();
    let chain_id = i64::try_from(world.chain_id).unwrap_or(i64::MAX);
    let chain = table([
        ("id", chain_id.into()),
        ("name", "dev".into()),
        ("rpc", vec![world.chain_url.clone()].into()),
        // Blocks come at once, so the head is looked for often.
        ("blockTime", "200ms".into()),
    ]);
    let store = format!("sqlite:{}", dir.display());
    let all = [
        // Nobody takes over from a dev node, so it need not wait for anyone to notice.
        (
            "node",
            table([("name", "dev".into()), ("drainDelay", "0s".into())]),
        ),
        ("store", table([("url", store.into())])),
        ("confirmations", table([("required", 2.into())])),
        ("chain", vec![chain].into()),
        ("signer", signers.into()),
    ];
    let document: toml::Table = all
        .into_iter()
        .map(|(section, value)| (section.to_owned(), value))
        .collect();
    RawFile::parse(Path::new("dev"), &document.to_string())
}

fn table<const N: usize>(entries: [(&str, toml::Value); N]) -> toml::Value {
    let entries = entries
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value));
    toml::Value::Table(entries.collect())
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
