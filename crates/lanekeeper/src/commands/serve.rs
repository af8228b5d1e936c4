//! `serve`: runs a node with a configuration file.

use cli::output::print_json;
use cli::{Failure, Signals};
use serde_json::json;

use super::load;
use crate::command_line::ServeArgs;
use crate::wiring::RunningNode;

pub(crate) async fn run(args: &ServeArgs) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    if args.while_stdin {
        signals.stop_when_stdin_ends();
    }
    let config = load(&args.file.config)?;
    let running = RunningNode::start(&config).await?;
    if args.json {
        print_json(&json!({
            "ready": true, "api": format!("http://{}", running.address), "node": config.node.name,
        }));
    }
    running.serve(&mut signals).await
}
