//! `key new` and `key hash`.

use std::io::Read as _;

use api::keys::{self, ApiKey, Scope};
use clap::{Args, Subcommand};
use cli::Failure;
use cli::output::{Tone, paint, print_json, print_line, print_quiet};
use serde_json::json;

/// The longest text that is read as a key.
const KEY_LEN_MAX: u64 = 4_096;

#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Create an API key: prints the key, once, and the lines for the configuration
    #[command(after_help = "\
Examples:
  lanekeeper key new --name shop
  lanekeeper key new --name prometheus --scopes metrics
  lanekeeper key new --name shop --json | jq -r .key

The configuration contains only the hash of the key. To rotate a key without downtime, list two keys
with the same name for a while.")]
    New(NewArgs),
    /// Read a key from standard input and print its hash for the configuration
    #[command(after_help = "Example:\n  lanekeeper key hash < key.txt")]
    Hash(HashArgs),
}

#[derive(Debug, Args)]
pub(crate) struct HashArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// The name of the caller, of letters, digits, hyphens and dots
    #[arg(long, value_name = "NAME")]
    name: String,
    /// What the key permits: read, send, operate, metrics
    #[arg(
        long,
        value_name = "SCOPES",
        value_delimiter = ',',
        default_value = "read,send"
    )]
    scopes: Vec<Scope>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(command: &KeyCommand) -> Result<(), Failure> {
    match command {
        KeyCommand::New(args) => create_key(args),
        KeyCommand::Hash(args) => hash_key(args),
    }
}

fn create_key(args: &NewArgs) -> Result<(), Failure> {
    let usage = |e: keys::BadKey| Failure::Usage(e.to_string());
    let (key, hash) = keys::generate(&args.name).map_err(usage)?;
    let mut scopes = args.scopes.clone();
    scopes.sort();
    scopes.dedup();
    // The printed lines must be valid in a configuration.
    ApiKey::new(&args.name, &hash, &scopes).map_err(usage)?;
    let names: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
    if args.json {
        print_json(&json!({ "name": args.name, "key": key, "hash": hash, "scopes": names }));
        return Ok(());
    }
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    print_quiet("# for the caller; it is not shown again");
    print_line!("{}", paint(Tone::Strong, &key));
    print_line!("");
    print_quiet("# for the configuration of every node");
    print_line!("[[auth.key]]");
    print_line!("name = \"{}\"", args.name);
    print_line!("hash = \"{hash}\"");
    print_line!("scopes = [{}]", quoted.join(", "));
    Ok(())
}

fn hash_key(args: &HashArgs) -> Result<(), Failure> {
    let mut text = String::new();
    std::io::stdin()
        .lock()
        .take(KEY_LEN_MAX)
        .read_to_string(&mut text)
        .map_err(|e| Failure::refused("standard input cannot be read", &e))?;
    let key = text.trim();
    // The configuration would accept the hash of any text, and no key would match it.
    let is_key = key.starts_with("lk_") && key.chars().all(|c| c.is_ascii_graphic());
    if !is_key {
        // The input is not shown: it may be another secret.
        let message =
            "standard input is not an API key: create one with `lanekeeper key new --name NAME`";
        return Err(Failure::Usage(message.into()));
    }
    let hash = keys::hash(key);
    if args.json {
        print_json(&json!({ "hash": hash }));
    } else {
        print_line!("{hash}");
    }
    Ok(())
}
