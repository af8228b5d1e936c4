//! `migrate`: the store's tables, brought up to date.

use super::load;
use crate::cli::ConfigArgs;
use crate::failure::Failure;
use crate::open;
use crate::output::say;

pub(crate) async fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let config = load(&args.config)?;
    let applied = open::migrate(&config).await?;
    if applied.is_empty() {
        say!("nothing to do: the store is up to date");
    } else {
        let versions: Vec<String> = applied.iter().map(i64::to_string).collect();
        say!("the store is up to date; applied {}", versions.join(", "));
    }
    Ok(())
}
