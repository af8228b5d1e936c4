//! `config check` and `config show`.

use cli::Failure;
use cli::output::{Columns, Tone, paint, print_json, print_line};
use serde_json::json;

use super::load;
use crate::adapters::find_secret_problems;
use crate::command_line::{ConfigCommand, ConfigOutputArgs};
use crate::config::{Config, Problem, environment};

pub(crate) fn run(command: &ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Check(args) => check(args),
        ConfigCommand::Show(args) => show(args),
    }
}

fn check(args: &ConfigOutputArgs) -> Result<(), Failure> {
    let path = &args.file.config;
    let result = environment().and_then(|env| Config::read_file(path, env));
    let to_lines = |problems: &[Problem]| -> Vec<String> {
        problems.iter().map(ToString::to_string).collect()
    };
    let (problems, warnings) = match &result {
        Ok(config) => {
            let (errors, missing) = find_secret_problems(config);
            (errors, [to_lines(&config.warnings), missing].concat())
        }
        Err(problems) => (to_lines(problems), Vec::new()),
    };
    if args.json {
        let ok = problems.is_empty();
        print_json(&json!({ "ok": ok, "problems": problems, "warnings": warnings }));
    } else {
        for problem in &problems {
            print_line!("{} {problem}", paint(Tone::Bad, "error  "));
        }
        for warning in &warnings {
            print_line!("{} {warning}", paint(Tone::Busy, "warning"));
        }
    }
    let (Ok(config), true) = (result, problems.is_empty()) else {
        let count = problems.len();
        let noun = if count == 1 { "problem" } else { "problems" };
        return Err(Failure::Usage(format!(
            "{}: {count} {noun}",
            path.display()
        )));
    };
    if !args.json {
        print_line!(
            "{} is valid: node {} on {}, {} chain(s), {} signer(s)",
            path.display(),
            config.node.name,
            config.http.listen,
            config.chains.len(),
            config.signers.len()
        );
    }
    Ok(())
}

fn show(args: &ConfigOutputArgs) -> Result<(), Failure> {
    let config = load(&args.file.config)?;
    if args.json {
        print_json(&config.to_json());
        return Ok(());
    }
    let mut table = Columns::new(&["key", "value", "origin", "meaning"]);
    for key in &config.keys {
        let origin = key.origin.to_string();
        let tone = if origin == "default" {
            Tone::Quiet
        } else {
            Tone::Good
        };
        table.add_row(vec![
            (Tone::Plain, key.path.clone()),
            (Tone::Strong, key.value.clone()),
            (tone, origin),
            (Tone::Quiet, key.about.clone()),
        ]);
    }
    print_line!("{table}");
    Ok(())
}
