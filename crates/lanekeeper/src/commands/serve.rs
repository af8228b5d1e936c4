//! `serve`: a node, as configured.

use super::load;
use crate::cli::ConfigArgs;
use crate::failure::Failure;
use crate::signals::Signals;
use crate::wiring::Running;

pub(crate) async fn run(args: &ConfigArgs) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let config = load(&args.config)?;
    Running::start(&config).await?.serve(&mut signals).await
}
