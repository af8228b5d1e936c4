//! From configured places to open ports.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::Auth;
use api::keys::ApiKey;
use api::peers::ClusterSecret;
use chain::keys::{self, KeyEntry, KeySource};
use chain::rpc::{RpcChain, RpcChainConfig};
use domain::ChainId;
use engine::ports::{Chain, Signer, Store};
use store::postgres::{self, PostgresConfig, PostgresStore};
use store::sqlite::SqliteStore;
use tokio::net::TcpListener;

use crate::config::sections;
use crate::config::{AuthMode, Config, StoreUrl};
use crate::failure::{Failure, with_sources};
use crate::lend;

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

/// Brings the store's tables up to date, and gives `role` (or whoever the address names) its
/// rights and timeouts; says which versions were applied.
pub(crate) async fn migrate(config: &Config, role: Option<&str>) -> Result<Vec<i64>, Failure> {
    match config.store.url.clone() {
        StoreUrl::Sqlite(folder) => {
            if role.is_some() {
                let message = "--role is of PostgreSQL, and store.url names the embedded store";
                return Err(Failure::Usage(message.into()));
            }
            tokio::task::spawn_blocking(move || SqliteStore::migrate(&folder))
                .await
                .map_err(|e| Failure::refused("the store", &e))?
                .map_err(|e| Failure::refused("the store cannot be migrated", &e))
        }
        StoreUrl::Postgres(url) => {
            let applied = postgres::migrate(url.secret(), role, config.lease.duration).await;
            let applied = applied.map_err(|e| unopened("the store cannot be migrated", &e))?;
            lend::migrate(config, role).await?;
            Ok(applied)
        }
    }
}

/// The store. Its tables must be up to date.
pub(crate) async fn store(config: &Config) -> Result<Arc<dyn Store>, Failure> {
    match config.store.url.clone() {
        StoreUrl::Sqlite(folder) => {
            let opening = tokio::task::spawn_blocking(move || SqliteStore::open(&folder)).await;
            let store = opening
                .map_err(|e| Failure::refused("the store", &e))?
                .map_err(|e| Failure::refused("the store cannot be opened", &e))?;
            Ok(Arc::new(store))
        }
        StoreUrl::Postgres(url) => {
            let opening = PostgresStore::open(PostgresConfig {
                url: url.secret().to_owned(),
                pool_size: usize::try_from(config.store.pool_size).unwrap_or(usize::MAX),
                lease: config.lease.duration,
            });
            let store = opening
                .await
                .map_err(|e| unopened("the store cannot be opened", &e))?;
            Ok(Arc::new(store))
        }
    }
}

/// Nobody answering is told apart from being refused: scripts wait for the one and not the other.
fn unopened(what: &str, error: &postgres::OpenError) -> Failure {
    let message = format!("{what}: {}", with_sources(error));
    match error {
        postgres::OpenError::NotReached { .. } => Failure::Unreachable(message),
        postgres::OpenError::Address { .. } => Failure::Usage(message),
        postgres::OpenError::NotMigrated { .. }
        | postgres::OpenError::Newer { .. }
        | postgres::OpenError::Timeout { .. }
        | postgres::OpenError::NotDurable { .. }
        | postgres::OpenError::ReadOnly { .. }
        | postgres::OpenError::Refused { .. } => Failure::Refused(message),
    }
}

/// Whom the node serves.
pub(crate) fn auth(config: &Config) -> Result<Auth, Failure> {
    match config.auth.mode {
        AuthMode::None => Ok(Auth::None),
        AuthMode::Keys => {
            let keys = config.auth_keys.iter();
            let keys = keys.map(|key| ApiKey::new(&key.name, &key.hash, &key.scopes));
            let keys: Result<Vec<ApiKey>, _> = keys.collect();
            keys.map(Auth::Keys)
                .map_err(|e| Failure::refused("an API key cannot be used", &e))
        }
    }
}

/// What the nodes of the cluster know each other by.
pub(crate) fn cluster_secret(config: &Config) -> Result<Option<ClusterSecret>, Failure> {
    let node = &config.node;
    let text = match (&node.cluster_secret, &node.cluster_secret_file) {
        (Some(secret), _) => secret.0.clone(),
        (None, Some(path)) => std::fs::read_to_string(path).map_err(|e| {
            let what = format!("node.clusterSecretFile {} cannot be read", path.display());
            Failure::refused(&what, &e)
        })?,
        (None, None) => return Ok(None),
    };
    let secret = ClusterSecret::parse(&text);
    secret
        .map(Some)
        .map_err(|e| Failure::refused("node.clusterSecret", &e))
}

/// A chain behind its endpoints. Nothing is asked yet: a node may start before its chain does.
pub(crate) fn chain(config: &sections::Chain) -> Result<Arc<dyn Chain>, Failure> {
    let id = ChainId(config.id);
    let endpoints = config.rpc.clone();
    let ws = config.ws.as_ref().map(|ws| ws.0.clone());
    tracing::info!(chain = %id, name = config.name, ?endpoints, ?ws, "serves a chain");
    // The numbers were checked to be small.
    let per_second = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let chain = RpcChain::new(RpcChainConfig {
        id,
        endpoints,
        ws,
        send_to: usize::try_from(config.send_to).unwrap_or(usize::MAX),
        requests_per_second: config.requests_per_second.map(per_second),
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

/// What is wrong with keys and secrets: what the file itself says (first), and what may only be
/// missing on the machine that looks (second).
pub(crate) fn secret_problems(config: &Config) -> (Vec<String>, Vec<String>) {
    let (mut wrong, mut missing) = (Vec::new(), Vec::new());
    missing.extend(cluster_secret(config).err().map(|e| e.to_string()));
    for (at, signer) in config.signers.iter().enumerate() {
        let entry = key_entry(signer).into_iter().collect();
        if let Err(error) = keys::load(entry) {
            let place = if signer.key.is_some() {
                &mut wrong
            } else {
                &mut missing
            };
            place.push(format!("signer {}: {}", at + 1, with_sources(&error)));
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
