//! `migrate`: the store's tables, brought up to date.

use super::load;
use crate::cli::ConfigArgs;
use crate::failure::Failure;
use crate::open;

pub(crate) async fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let config = load(&args.config)?;
    // The embedded store belongs to one process, so opening it brings it up to date.
    drop(open::store(&config).await?);
    println!("{:?} is up to date", config.store.url);
    Ok(())
}
