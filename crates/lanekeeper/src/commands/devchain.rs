//! `devchain`: the dev chain alone, and the same chain inside `dev`.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use alloy_primitives::{Address, B256, U256};
use chain::devchain::{DEV_CHAIN_ID, DevChain, DevChainConfig, Mining, Served, dev_accounts};
use serde_json::json;

use super::print_json;
use crate::cli::{DevChainArgs, DevchainArgs};
use crate::failure::Failure;
use crate::open;
use crate::output::{Tone, paint, say};
use crate::signals::Signals;

/// With instant mining, an empty block comes after this long without one: slow enough to read
/// along, fast enough that two confirmations do not bore.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A chain that answers.
pub(crate) struct RunningChain {
    pub(crate) address: SocketAddr,
    pub(crate) accounts: Vec<(Address, B256)>,
    served: Served,
    /// Held for its miner: it mines for as long as this lives.
    chain: DevChain,
}

impl RunningChain {
    /// `flag` is the one that sets the port, for whom it is taken.
    pub(crate) async fn start(
        dir: PathBuf,
        port: u16,
        flag: &str,
        args: &DevChainArgs,
    ) -> Result<Self, Failure> {
        let listener = open::bind(SocketAddr::from(([127, 0, 0, 1], port)), flag).await?;
        let count = args.accounts;
        let mining = args.block_time.map_or(Mining::Instant, Mining::Interval);
        let open = move || {
            let accounts = dev_accounts(count);
            let mut config = DevChainConfig::new(Some(dir));
            let wealth = config
                .genesis_accounts
                .first()
                .map_or(U256::ZERO, |(_, wei)| *wei);
            config.genesis_accounts = accounts
                .iter()
                .map(|(address, _)| (*address, wealth))
                .collect();
            config.heartbeat = Some(HEARTBEAT);
            config.mining = mining;
            DevChain::open(config).map(|chain| (chain, accounts))
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let (chain, accounts) = opened
            .map_err(|e| Failure::refused("the dev chain", &e))?
            .map_err(|e| Failure::refused("the dev chain does not start", &e))?;
        let served = chain
            .serve(listener)
            .map_err(|e| Failure::refused("the dev chain", &e))?;
        Ok(Self {
            address: served.local_addr(),
            accounts,
            served,
            chain,
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) async fn stop(self) {
        self.served.shutdown().await;
        // The miner finishes its block on the way out, on its own thread: wait for it off the
        // runtime.
        let chain = self.chain;
        tokio::task::spawn_blocking(move || drop(chain)).await.ok();
    }
}

pub(crate) async fn run(args: &DevchainArgs) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    if args.fresh {
        forget_chain(&args.dir)?;
    }
    let chain = RunningChain::start(args.dir.clone(), args.port, "--port", &args.chain).await?;
    let addresses: Vec<String> = chain
        .accounts
        .iter()
        .map(|(address, _)| address.to_string())
        .collect();
    if args.json {
        print_json(&json!({
            "ready": true, "chain": chain.url(), "chainId": DEV_CHAIN_ID, "accounts": addresses,
        }));
    } else {
        say!(
            "chain {DEV_CHAIN_ID} on {}",
            paint(Tone::Strong, &chain.url())
        );
        say!(
            "{} funded accounts, the first is {}",
            addresses.len(),
            addresses[0]
        );
        say!("Ctrl-C stops it; its blocks stay in {}", args.dir.display());
    }
    signals.stop().await;
    chain.stop().await;
    Ok(())
}

/// Deletes a chain's own files, and nothing else that a folder may hold.
pub(crate) fn forget_chain(dir: &Path) -> Result<(), Failure> {
    forget(dir, "lock", "chain.sqlite")
}

/// Deletes a database in a folder, unless a process holds its lock.
pub(crate) fn forget(dir: &Path, lock: &str, database: &str) -> Result<(), Failure> {
    let held = File::open(dir.join(lock)).map(|lock| (lock.try_lock().is_err(), lock));
    if let Ok((true, _)) = held {
        let dir = dir.display();
        return Err(Failure::Refused(format!(
            "{dir} is in use by another process: stop it first"
        )));
    }
    for suffix in ["", "-wal", "-shm"] {
        let path = dir.join(format!("{database}{suffix}"));
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => {
                return Err(Failure::refused(
                    &format!("{} cannot be deleted", path.display()),
                    &e,
                ));
            }
        }
    }
    Ok(())
}
