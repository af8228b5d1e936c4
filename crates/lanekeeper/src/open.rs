//! From configured places to open ports.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use chain::keys::{self, KeyEntry, KeySource};
use chain::rpc::{RpcChain, RpcChainConfig};
use domain::ChainId;
use engine::ports::{Chain, Signer, Store};
use store::sqlite::SqliteStore;
use tokio::net::TcpListener;

use crate::config::sections;
use crate::config::{Config, StoreUrl};
use crate::failure::Failure;

/// How long one request to a chain's node may take.
const RPC_TIMEOUT: Duration = Duration::from_secs(10);

/// A listener, or words that help: `by` names what else could be set.
pub(crate) async fn bind(address: SocketAddr, by: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|e| {
        if e.kind() != ErrorKind::AddrInUse {
            return Failure::refused(&format!("cannot listen on {address}"), &e);
        }
        Failure::Refused(format!(
            "port {} on {} is taken (by another Lanekeeper?): stop that process, or set {by} to \
             another port",
            address.port(),
            address.ip()
        ))
    })
}

/// Brings the store's tables up to date; gives the versions that were applied.
pub(crate) async fn migrate(config: &Config) -> Result<Vec<i64>, Failure> {
    let StoreUrl::Sqlite(folder) = config.store.url.clone();
    let migrating = tokio::task::spawn_blocking(move || SqliteStore::migrate(&folder)).await;
    migrating
        .map_err(|e| Failure::refused("the store", &e))?
        .map_err(|e| Failure::refused("the store cannot be migrated", &e))
}

/// The store. Its tables must be up to date.
pub(crate) async fn store(config: &Config) -> Result<Arc<dyn Store>, Failure> {
    let StoreUrl::Sqlite(folder) = config.store.url.clone();
    let opening = tokio::task::spawn_blocking(move || SqliteStore::open(&folder)).await;
    let store = opening
        .map_err(|e| Failure::refused("the store", &e))?
        .map_err(|e| Failure::refused("the store cannot be opened", &e))?;
    Ok(Arc::new(store))
}

/// A chain behind its endpoints. Nothing is asked yet: a node may start before its chain does.
pub(crate) fn chain(config: &sections::Chain) -> Result<Arc<dyn Chain>, Failure> {
    let id = ChainId(config.id);
    let endpoints = config.rpc.clone();
    tracing::info!(chain = %id, name = config.name, ?endpoints, "serves a chain");
    let chain = RpcChain::new(RpcChainConfig {
        id,
        endpoints,
        request_timeout: RPC_TIMEOUT,
    })
    .map_err(|e| Failure::refused("the chain cannot be used", &e))?;
    Ok(Arc::new(chain))
}

/// All keys.
pub(crate) async fn signer(config: &Config) -> Result<Arc<dyn Signer>, Failure> {
    let entries: Vec<KeyEntry> = config.signers.iter().filter_map(key_entry).collect();
    let loading = tokio::task::spawn_blocking(move || keys::load(entries)).await;
    let signer = loading
        .map_err(|e| Failure::refused("the signers", &e))?
        .map_err(|e| Failure::refused("a signer cannot be used", &e))?;
    Ok(Arc::new(signer))
}

/// What is wrong with the signers' keys: what the file itself says (first), and what may only be
/// missing on the machine that looks (second).
pub(crate) fn signer_problems(config: &Config) -> (Vec<String>, Vec<String>) {
    let (mut wrong, mut missing) = (Vec::new(), Vec::new());
    for (at, signer) in config.signers.iter().enumerate() {
        let entry = key_entry(signer).into_iter().collect();
        if let Err(error) = keys::load(entry) {
            let place = if signer.key.is_some() {
                &mut wrong
            } else {
                &mut missing
            };
            place.push(format!(
                "signer {}: {}",
                at + 1,
                crate::failure::with_sources(&error)
            ));
        }
    }
    (wrong, missing)
}

/// Where a key is. The check of the configuration leaves exactly one place for each signer.
fn key_entry(signer: &sections::Signer) -> Option<KeyEntry> {
    let keystore = || {
        let (path, password_file) = (signer.path.clone()?, signer.password_file.clone()?);
        Some(KeySource::Keystore {
            path,
            password_file,
        })
    };
    let source = None
        .or_else(|| signer.key.clone().map(|key| KeySource::Inline(key.0)))
        .or_else(|| signer.key_file.clone().map(KeySource::File))
        .or_else(|| signer.key_env.clone().map(KeySource::Env))
        .or_else(keystore)?;
    let chains = signer
        .chains
        .iter()
        .flatten()
        .map(|id| ChainId(*id))
        .collect();
    Some(KeyEntry { source, chains })
}
