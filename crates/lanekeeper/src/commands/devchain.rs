//! `devchain`: the dev chain alone; `dev` runs the same chain.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use alloy_primitives::{Address, B256, U256};
use cli::output::{Tone, paint, print_json, print_line};
use cli::{Failure, Signals, listener};
use devchain::{DEV_CHAIN_ID, DevChain, DevChainConfig, DevChainServer, Mining, dev_accounts};
use serde_json::json;

use crate::command_line::{DevChainArgs, DevchainArgs};

/// With instant mining, an empty block is mined after this time without one: slow enough to follow, fast
/// enough for two confirmations.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// A dev chain that serves JSON-RPC.
pub(crate) struct RunningChain {
    pub(crate) address: SocketAddr,
    pub(crate) accounts: Vec<(Address, B256)>,
    served: DevChainServer,
    /// Its miner runs until this is dropped.
    chain: DevChain,
}

impl RunningChain {
    /// `flag` names the flag that sets the port, for the error message of a port that is in use.
    pub(crate) async fn start(
        dir: PathBuf,
        port: u16,
        flag: &str,
        args: &DevChainArgs,
    ) -> Result<Self, Failure> {
        let listener = listener::bind(SocketAddr::from(([127, 0, 0, 1], port)), flag).await?;
        let count = args.accounts;
        let mining = args.block_time.map_or(Mining::Instant, Mining::Interval);
        let open = move || {
            let accounts = dev_accounts(count);
            let mut config = DevChainConfig::new(Some(dir));
            let balance = config
                .genesis_accounts
                .first()
                .map_or(U256::ZERO, |(_, wei)| *wei);
            config.genesis_accounts = accounts
                .iter()
                .map(|(address, _)| (*address, balance))
                .collect();
            config.heartbeat = Some(HEARTBEAT);
            config.mining = mining;
            DevChain::open(config).map(|chain| (chain, accounts))
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let (chain, accounts) = opened
            .map_err(|e| Failure::refused("the dev chain failed", &e))?
            .map_err(|e| Failure::refused("cannot start the dev chain", &e))?;
        let served = chain
            .serve(listener)
            .map_err(|e| Failure::refused("cannot serve the dev chain", &e))?;
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
        // Dropping waits until the miner has finished its block, which would block the runtime.
        let chain = self.chain;
        tokio::task::spawn_blocking(move || drop(chain)).await.ok();
    }
}

pub(crate) async fn run(args: &DevchainArgs) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    if args.fresh {
        delete_chain(&args.dir)?;
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
        print_line!(
            "chain {DEV_CHAIN_ID} on {}",
            paint(Tone::Strong, &chain.url())
        );
        print_line!(
            "{} funded accounts, the first is {}",
            addresses.len(),
            addresses[0]
        );
        print_line!(
            "Ctrl-C stops it; its blocks are kept in {}",
            args.dir.display()
        );
    }
    signals.wait_for_stop().await;
    chain.stop().await;
    Ok(())
}

/// Deletes the files of a chain, and no other file of the folder.
pub(crate) fn delete_chain(dir: &Path) -> Result<(), Failure> {
    delete_database(dir, "lock", "chain.sqlite")
}

/// Deletes a database in a folder, unless a process holds its lock.
pub(crate) fn delete_database(dir: &Path, lock: &str, database: &str) -> Result<(), Failure> {
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
