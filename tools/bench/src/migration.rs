//! The tables of a database, made by this program's own `migrate` command.

use std::path::Path;

use cli::Failure;
use cli::process::{program_command, remove_node_variables, run_to_end};

/// Runs `lanekeeper migrate` with a generated configuration file.
pub(crate) async fn migrate_store(config: &Path) -> Result<(), Failure> {
    let mut command = program_command()?;
    command.args(["migrate", "--config"]).arg(config);
    remove_node_variables(&mut command);
    run_to_end(command, "lanekeeper migrate").await
}
