//! `migrate`: the store's tables, brought up to date.

use super::load;
use crate::cli::ConfigArgs;
use crate::failure::Failure;
use crate::open;

pub(crate) async fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let config = load(&args.config)?;
    let applied = open::migrate(&config).await?;
    if applied.is_empty() {
        println!("nothing to do: the store is up to date");
    } else {
        let versions: Vec<String> = applied.iter().map(i64::to_string).collect();
        println!("the store is up to date; applied {}", versions.join(", "));
    }
    Ok(())
}
