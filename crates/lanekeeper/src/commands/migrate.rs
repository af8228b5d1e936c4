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
    if let Some(reason) = &args.reason {
        let history = adapters::declare_restore(&config, reason).await?;
        print_line!(
            "the restore is declared: the store is on history {history}. Every lane is compared with its chain before it \
             takes work; cursors of the event feed from before are refused"
        );
    }
    Ok(())
}
