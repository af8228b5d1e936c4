//! Opens the adapters that the configuration names: store, chains, signers, access.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::Auth;
use api::keys::ApiKey;
use api::peers::ClusterSecret;
use chain::keys::{self, KeyEntry, KeySource};
use chain::rpc::{RpcChain, RpcChainConfig};
use cli::Failure;
use cli::failure::with_sources;
use domain::{Address, ChainId, NodeName};
use engine::ports::{Chain, Signer, Store, Witness};
use store::postgres::{self, PostgresConfig, PostgresStore};
use store::sqlite::SqliteStore;

use crate::config::{self, AuthMode, Config, StoreUrl};
use crate::reservations;
use crate::witness::WitnessFile;

/// How long one request to a chain's node may take.
const RPC_TIMEOUT: Duration = Duration::from_secs(10);

/// Migrates the tables of the store, and grants `role` (by default the role of the URL) its privileges and
/// timeouts. Returns the applied versions.
pub(crate) async fn migrate_store(
    config: &Config,
    role: Option<&str>,
) -> Result<Vec<i64>, Failure> {
    match config.store.url.clone() {
        StoreUrl::Sqlite(folder) => {
            if role.is_some() {
                let message =
                    "--role requires a PostgreSQL store, and store.url names the embedded store";
                return Err(Failure::Usage(message.into()));
            }
            tokio::task::spawn_blocking(move || SqliteStore::migrate(&folder))
                .await
                .map_err(|e| Failure::refused("the store failed", &e))?
                .map_err(|e| Failure::refused("cannot migrate the store", &e))
        }
        StoreUrl::Postgres(url) => {
            let applied = postgres::migrate(url.secret(), role, config.lease.duration).await;
            let applied = applied.map_err(|e| open_failure("cannot migrate the store", &e))?;
            reservations::migrate_tables(config, role).await?;
            Ok(applied)
        }
    }
}

/// Declares that a backup of the store was restored; returns its new history.
pub(crate) async fn declare_restore(config: &Config, reason: &str) -> Result<String, Failure> {
    match config.store.url.clone() {
        StoreUrl::Sqlite(folder) => {
            let reason = reason.to_owned();
            let declaring = move || SqliteStore::declare_restore(&folder, &reason);
            let history = tokio::task::spawn_blocking(declaring).await;
            let history = history
                .map_err(|e| Failure::refused("the store failed", &e))?
                .map_err(|e| Failure::refused("cannot declare the restore", &e))?;
            Ok(history.to_string())
        }
        StoreUrl::Postgres(url) => {
            let declared = postgres::declare_restore(url.secret(), reason, config.lease.duration);
            let history = declared.await;
            history.map_err(|e| open_failure("cannot declare the restore", &e))
        }
    }
}

/// Opens the store, whose tables must be migrated.
pub(crate) async fn open_store(config: &Config) -> Result<Arc<dyn Store>, Failure> {
    match config.store.url.clone() {
        StoreUrl::Sqlite(folder) => {
            let opening = tokio::task::spawn_blocking(move || SqliteStore::open(&folder)).await;
            let store = opening
                .map_err(|e| Failure::refused("the store failed", &e))?
                .map_err(|e| Failure::refused("cannot open the store", &e))?;
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
                .map_err(|e| open_failure("cannot open the store", &e))?;
            Ok(Arc::new(store))
        }
    }
}

/// Opens the folder in which the node records what it has committed.
pub(crate) async fn open_witness(
    config: &Config,
    node: &NodeName,
) -> Result<Option<Arc<dyn Witness>>, Failure> {
    let Some(dir) = config.node.state_dir.clone() else {
        tracing::info!(
            "node.stateDir is not set: a backup of the store that is restored while this node is stopped is \
             noticed only when it is declared (`lanekeeper migrate --restored`)"
        );
        return Ok(None);
    };
    let node = node.clone();
    let opening = tokio::task::spawn_blocking(move || WitnessFile::open(&dir, &node)).await;
    let file = opening.map_err(|e| Failure::refused("node.stateDir failed", &e))??;
    Ok(Some(Arc::new(file)))
}

/// An unreachable database has its own exit code: a script may wait for it, but not after a refusal.
fn open_failure(what: &str, error: &postgres::OpenError) -> Failure {
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

/// The authentication of API callers.
pub(crate) fn load_auth(config: &Config) -> Result<Auth, Failure> {
    match config.auth.mode {
        AuthMode::None => Ok(Auth::None),
        AuthMode::Keys => {
            let keys = config.auth_keys.iter();
            let keys = keys.map(|key| ApiKey::new(&key.name, &key.hash, &key.scopes));
            let keys: Result<Vec<ApiKey>, _> = keys.collect();
            keys.map(Auth::Keys)
                .map_err(|e| Failure::refused("an API key is invalid", &e))
        }
    }
}

/// The secret by which the nodes of the cluster authenticate each other.
pub(crate) fn load_cluster_secret(config: &Config) -> Result<Option<ClusterSecret>, Failure> {
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

/// A chain behind its endpoints. No request is sent yet: a node may start before its chain.
pub(crate) fn open_chain(config: &config::Chain) -> Result<Arc<dyn Chain>, Failure> {
    let id = ChainId(config.id);
    let endpoints = config.rpc.clone();
    let ws = config.ws.as_ref().map(|ws| ws.0.clone());
    tracing::info!(chain = %id, name = config.name, ?endpoints, ?ws, "chain configured");
    // Configured numbers have small upper bounds.
    let per_second = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let chain = RpcChain::new(RpcChainConfig {
        id,
        endpoints,
        ws,
        send_to: usize::try_from(config.send_to).unwrap_or(usize::MAX),
        requests_per_second: config.requests_per_second.map(per_second),
        request_timeout: RPC_TIMEOUT,
        dead_endpoint_after: config.dead_endpoint_after,
    })
    .map_err(|e| Failure::refused("cannot open the chain", &e))?;
    Ok(Arc::new(chain))
}

/// Loads all signing keys.
pub(crate) async fn load_signers(config: &Config) -> Result<Arc<dyn Signer>, Failure> {
    let entries: Vec<KeyEntry> = config.signers.iter().filter_map(key_entry).collect();
    let loading = tokio::task::spawn_blocking(move || keys::load(entries)).await;
    let signer = loading
        .map_err(|e| Failure::refused("cannot load the signing keys", &e))?
        .map_err(|e| Failure::refused("cannot load a signing key", &e))?;
    Ok(Arc::new(signer))
}

/// Problems with keys and secrets: errors, and sources that are not there and may only be missing on the machine
/// that runs the check.
pub(crate) fn find_secret_problems(config: &Config) -> (Vec<String>, Vec<String>) {
    let (mut errors, mut missing) = (Vec::new(), Vec::new());
    if let Err(error) = load_cluster_secret(config) {
        let file = config.node.cluster_secret_file.as_deref();
        let is_absent = file.is_some_and(is_absent);
        let list = if is_absent { &mut missing } else { &mut errors };
        list.push(error.to_string());
    }
    let mut accounts: BTreeMap<Address, usize> = BTreeMap::new();
    for (index, signer) in config.signers.iter().enumerate() {
        let number = index + 1;
        let loaded = match keys::load(key_entry(signer).into_iter().collect()) {
            Ok(loaded) => loaded,
            Err(error) => {
                let is_absent = error.is_absence();
                let list = if is_absent { &mut missing } else { &mut errors };
                list.push(format!("signer {number}: {}", with_sources(&error)));
                continue;
            }
        };
        let keys = loaded.accounts().into_iter().map(|(account, _)| account);
        for account in keys {
            if let Some(other) = accounts.insert(account, number) {
                errors.push(format!(
                    "signer {number}: {account} is the account of signer {other} too: an account has one \
                     signer, so remove one of them"
                ));
            }
        }
    }
    (errors, missing)
}

fn is_absent(path: &Path) -> bool {
    let found = std::fs::metadata(path);
    found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// The source of a key. The validation guarantees exactly one for each signer with a key.
fn key_entry(signer: &config::Signer) -> Option<KeyEntry> {
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
