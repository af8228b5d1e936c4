//! `migrate`: migrates the tables of the store.

use cli::Failure;
use cli::output::print_line;

use super::load;
use crate::adapters;
use crate::command_line::MigrateArgs;

pub(crate) async fn run(args: &MigrateArgs) -> Result<(), Failure> {
    let config = load(&args.file.config)?;
    let applied = adapters::migrate_store(&config, args.role.as_deref()).await?;
    if applied.is_empty() {
        print_line!("nothing to do: the store is up to date");
    } else {
        let versions: Vec<String> = applied.iter().map(i64::to_string).collect();
        print_line!("the store is up to date; applied {}", versions.join(", "));
    }
    Ok(())
}
