//! Where the programs are. `scripts/tools` installs them.

use std::path::{Path, PathBuf};

use crate::home;

/// The supported majors of PostgreSQL, which `scripts/tools` installs.
pub const POSTGRES_MAJORS: &[u32] = &[15, 16, 17, 18];

/// Where Debian puts PostgreSQL.
const DEBIAN: &str = "/usr/lib/postgresql";

/// Another folder for what `scripts/tools` downloads.
const FOLDER_VARIABLE: &str = "LANEKEEPER_TOOLS";

/// A program that is not there.
#[derive(Debug, thiserror::Error)]
#[error("{0} is missing: run scripts/tools")]
pub struct Missing(pub String);

/// A program of one major of PostgreSQL. Every major has `postgres`, `initdb` and `pg_ctl`.
pub fn postgres(major: u32, program: &str) -> Result<PathBuf, Missing> {
    let folders = [
        Path::new(DEBIAN).join(major.to_string()),
        folder().join(format!("postgresql-{major}")),
    ];
    folders
        .iter()
        .map(|folder| folder.join("bin").join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| Missing(format!("{program} of PostgreSQL {major}")))
}

/// The newest `psql`, `pgbench`, `pg_waldump`, …: only Debian's PostgreSQL has them.
pub fn postgres_client(program: &str) -> Result<PathBuf, Missing> {
    let newest_first = POSTGRES_MAJORS.iter().rev();
    newest_first
        .filter_map(|major| postgres(*major, program).ok())
        .next()
        .ok_or_else(|| Missing(program.into()))
}

/// PgBouncer.
pub fn pgbouncer() -> Result<PathBuf, Missing> {
    // Debian's place is not in everybody's path.
    in_path("pgbouncer", &["/usr/sbin"])
}

/// `redis-server`, `redis-cli` or `redis-benchmark`.
pub fn redis(program: &str) -> Result<PathBuf, Missing> {
    in_path(program, &["/usr/bin"])
}

/// Anvil: the package, which there is for one kind of machine, or one that somebody installed.
pub fn anvil() -> Result<PathBuf, Missing> {
    const PACKAGE: &str = "@foundry-rs/anvil-linux-amd64";
    match node_modules(PACKAGE) {
        Ok(modules) => Ok(modules.join(PACKAGE).join("bin/anvil")),
        Err(_) => in_path("anvil", &[]),
    }
}

/// The folder that holds this package of JavaScript, and what it needs.
pub fn node_modules(package: &str) -> Result<PathBuf, Missing> {
    let modules = folder().join("evm-nodes/node_modules");
    match modules.join(package).is_dir() {
        true => Ok(modules),
        false => Err(Missing(package.into())),
    }
}

/// Node.js.
pub fn node() -> Result<PathBuf, Missing> {
    in_path("node", &[])
}

fn in_path(program: &str, and_in: &[&str]) -> Result<PathBuf, Missing> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .chain(and_in.iter().map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| Missing(program.into()))
}

/// Where downloads are; `scripts/tools` has the same rule. Root's home is closed to the user under
/// which servers run.
fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return folder.into();
    }
    if home::is_root() {
        return "/var/tmp/lanekeeper-tools".into();
    }
    let home = std::env::home_dir().unwrap_or_default();
    home.join(".cache/lanekeeper-tools")
}
