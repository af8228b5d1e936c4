//! Paths of the server programs. `scripts/tools` installs them.

use std::path::{Path, PathBuf};

use crate::server_dir;

/// The supported majors of PostgreSQL, which `scripts/tools` installs.
pub const POSTGRES_MAJORS: &[u32] = &[15, 16, 17, 18];

/// Debian's path of PostgreSQL.
const DEBIAN: &str = "/usr/lib/postgresql";

/// Overrides the folder of `scripts/tools`' downloads.
const FOLDER_VARIABLE: &str = "LANEKEEPER_TOOLS";

/// A program that is not installed.
#[derive(Debug, thiserror::Error)]
#[error("{0} is missing: run scripts/tools")]
pub struct MissingTool(pub String);

/// A program of one major of PostgreSQL. Every major has `postgres`, `initdb` and `pg_ctl`.
pub fn postgres(major: u32, program: &str) -> Result<PathBuf, MissingTool> {
    let folders = [
        Path::new(DEBIAN).join(major.to_string()),
        folder().join(format!("postgresql-{major}")),
    ];
    folders
        .iter()
        .map(|folder| folder.join("bin").join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| MissingTool(format!("{program} of PostgreSQL {major}")))
}

/// The newest `psql`, `pgbench`, `pg_waldump`, …: only Debian's PostgreSQL has them.
pub fn postgres_client(program: &str) -> Result<PathBuf, MissingTool> {
    let newest_first = POSTGRES_MAJORS.iter().rev();
    newest_first
        .filter_map(|major| postgres(*major, program).ok())
        .next()
        .ok_or_else(|| MissingTool(program.into()))
}

pub fn pgbouncer() -> Result<PathBuf, MissingTool> {
    // Debian's folder is not in every PATH.
    in_path("pgbouncer", &["/usr/sbin"])
}

/// `redis-server`, `redis-cli` or `redis-benchmark`.
pub fn redis(program: &str) -> Result<PathBuf, MissingTool> {
    in_path(program, &["/usr/bin"])
}

/// Anvil: from the npm package, which exists for some architectures only, or an installed one.
pub fn anvil() -> Result<PathBuf, MissingTool> {
    const PACKAGE: &str = "@foundry-rs/anvil-linux-amd64";
    match node_modules(PACKAGE) {
        Ok(modules) => Ok(modules.join(PACKAGE).join("bin/anvil")),
        Err(_) => in_path("anvil", &[]),
    }
}

/// The folder with this JavaScript package and its dependencies.
pub fn node_modules(package: &str) -> Result<PathBuf, MissingTool> {
    let modules = folder().join("evm-nodes/node_modules");
    match modules.join(package).is_dir() {
        true => Ok(modules),
        false => Err(MissingTool(package.into())),
    }
}

/// Debian's package, or an installed one under the name of other distributions.
pub fn chromium() -> Result<PathBuf, MissingTool> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = names.iter().find_map(|name| in_path(name, &[]).ok());
    found.ok_or_else(|| MissingTool("chromium".into()))
}

pub fn node() -> Result<PathBuf, MissingTool> {
    in_path("node", &[])
}

fn in_path(program: &str, extra_dirs: &[&str]) -> Result<PathBuf, MissingTool> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .chain(extra_dirs.iter().map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| MissingTool(program.into()))
}

/// The download folder; `scripts/tools` has the same rule. Root's home is not readable for the user that runs the
/// servers.
fn folder() -> PathBuf {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return folder.into();
    }
    if server_dir::is_root() {
        return "/var/tmp/lanekeeper-tools".into();
    }
    let dir = std::env::home_dir().unwrap_or_default();
    dir.join(".cache/lanekeeper-tools")
}
