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
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|folder| folder.join("pgbouncer"))
        .find(|path| path.is_file())
        .ok_or_else(|| Missing("pgbouncer".into()))
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
