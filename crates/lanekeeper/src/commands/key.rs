//! `key new` and `key hash`.

use std::io::Read as _;

use api::keys::{self, ApiKey, Scope};
use clap::{Args, Subcommand};
use serde_json::json;

use super::print_json;
use crate::failure::Failure;
use crate::output::{Tone, paint, say};

/// The longest text that is taken for a key.
const KEY_LEN_MAX: u64 = 4_096;

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make an API key: the key itself, shown once, and the lines for the configuration
    #[command(after_help = "\
Examples:
  lanekeeper key new --name shop
  lanekeeper key new --name prometheus --scopes metrics
  lanekeeper key new --name shop --json | jq -r .key

The configuration holds the key's hash only. To change a key over without a pause, list two keys
under one name for a while.")]
    New(NewArgs),
    /// Read a key from standard input and print its hash for the configuration
    #[command(after_help = "Example:\n  lanekeeper key hash < key.txt")]
    Hash,
}

#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// Who will show it: letters, digits, - and .
    #[arg(long, value_name = "NAME")]
    name: String,
    /// What it may do: read, send, operate, metrics
    #[arg(
        long,
        value_name = "SCOPES",
        value_delimiter = ',',
        default_value = "read,send"
    )]
    scopes: Vec<Scope>,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &KeyCommand) -> Result<(), Failure> {
    match command {
        KeyCommand::New(args) => new(args),
        KeyCommand::Hash => hash(),
    }
}

fn new(args: &NewArgs) -> Result<(), Failure> {
    let unusable = |e: keys::BadKey| Failure::Usage(e.to_string());
    let (key, hash) = keys::generate(&args.name).map_err(unusable)?;
    let mut scopes = args.scopes.clone();
    scopes.sort();
    scopes.dedup();
    // What is printed must be what the configuration takes.
    ApiKey::new(&args.name, &hash, &scopes).map_err(unusable)?;
    let words: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
    if args.json {
        print_json(&json!({ "name": args.name, "key": key, "hash": hash, "scopes": words }));
        return Ok(());
    }
    let quoted: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    say!(
        "{}",
        paint(Tone::Quiet, "# for the caller; it is not shown again")
    );
    say!("{}", paint(Tone::Strong, &key));
    say!("");
    say!(
        "{}",
        paint(Tone::Quiet, "# for the configuration of every node")
    );
    say!("[[auth.key]]");
    say!("name = \"{}\"", args.name);
    say!("hash = \"{hash}\"");
    say!("scopes = [{}]", quoted.join(", "));
    Ok(())
}

fn hash() -> Result<(), Failure> {
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .take(KEY_LEN_MAX)
        .read_to_string(&mut text)
        .map_err(|e| Failure::refused("standard input cannot be read", &e))?;
    let key = text.trim();
    // A hash of anything else would be taken by the configuration and open nothing.
    let is_key = key.starts_with("lk_") && key.chars().all(|c| c.is_ascii_graphic());
    if !is_key {
        // What was given is not repeated: it may be a secret of something else.
        let message = "this is no API key: make one with `lanekeeper key new --name NAME`";
        return Err(Failure::Usage(message.into()));
    }
    say!("{}", keys::hash(key));
    Ok(())
}
