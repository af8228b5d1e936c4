//! `serve`: a node, as configured.

use serde_json::json;

use super::{load, print_json};
use crate::cli::ServeArgs;
use crate::failure::Failure;
use crate::signals::Signals;
use crate::wiring::Running;

pub(crate) async fn run(args: &ServeArgs) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    if args.while_stdin {
        signals.also_when_stdin_ends();
    }
    let config = load(&args.file.config)?;
    let running = Running::start(&config).await?;
    if args.json {
        print_json(&json!({
            "ready": true, "api": format!("http://{}", running.address), "node": config.node.name,
        }));
    }
    running.serve(&mut signals).await
}
