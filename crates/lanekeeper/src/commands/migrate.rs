//! `migrate`: migrates the tables of the store.

use cli::Failure;
use cli::output::{print_json, print_line};
use serde_json::json;

use super::load;
use crate::adapters;
use crate::command_line::MigrateArgs;

pub(crate) async fn run(args: &MigrateArgs) -> Result<(), Failure> {
    let config = load(&args.file.config)?;
    let applied = adapters::migrate_store(&config, args.role.as_deref()).await?;
    if !args.json {
        print_line!("{}", describe(&applied));
    }
    let mut declared = None;
    if let Some(reason) = &args.reason {
        let history = adapters::declare_restore(&config, reason).await?;
        if !args.json {
            print_line!(
                "the restore is declared: the store is on history {history}. Every lane is compared with its chain \
                 before it takes work; cursors of the event feed from before are refused"
            );
        }
        declared = Some(history);
    }
    if args.json {
        print_json(&json!({ "applied": applied, "declaredHistory": declared }));
    }
    Ok(())
}

fn describe(applied: &[i64]) -> String {
    if applied.is_empty() {
        return "nothing to do: the store is up to date".to_owned();
    }
    let versions: Vec<String> = applied.iter().map(i64::to_string).collect();
    format!("the store is up to date; applied {}", versions.join(", "))
}
