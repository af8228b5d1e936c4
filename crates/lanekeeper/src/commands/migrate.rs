//! `migrate`: the store's tables, brought up to date.

use super::load;
use crate::cli::MigrateArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::say;

pub(crate) async fn run(args: &MigrateArgs) -> Result<(), Failure> {
    let config = load(&args.file.config)?;
    let applied = open::migrate(&config, args.role.as_deref()).await?;
    if applied.is_empty() {
        say!("nothing to do: the store is up to date");
    } else {
        let versions: Vec<String> = applied.iter().map(i64::to_string).collect();
        say!("the store is up to date; applied {}", versions.join(", "));
    }
    Ok(())
}
