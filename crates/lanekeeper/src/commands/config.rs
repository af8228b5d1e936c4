//! `config check` and `config show`.

use serde_json::json;

use super::{load, print_json};
use crate::cli::{ConfigCommand, ConfigLookArgs};
use crate::config::{Config, Sources, environment, read_file};
use crate::failure::Failure;
use crate::open::secret_problems;
use crate::output::{Columns, Tone, paint, say};

pub(crate) fn run(command: &ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Check(args) => check(args),
        ConfigCommand::Show(args) => show(args),
    }
}

fn check(args: &ConfigLookArgs) -> Result<(), Failure> {
    let path = &args.file.config;
    let read = || {
        let file = Some(read_file(path)?);
        Config::read(Sources {
            file,
            env: environment(),
            ..Sources::default()
        })
    };
    let result = read();
    let told = |problems: &[crate::config::Problem]| -> Vec<String> {
        problems.iter().map(ToString::to_string).collect()
    };
    let (problems, warnings) = match &result {
        Ok(config) => {
            let (wrong, missing) = secret_problems(config);
            (
                wrong,
                told(&config.warnings).into_iter().chain(missing).collect(),
            )
        }
        Err(problems) => (told(problems), Vec::new()),
    };
    if args.json {
        let ok = problems.is_empty();
        print_json(&json!({ "ok": ok, "problems": problems, "warnings": warnings }));
    } else {
        for problem in &problems {
            say!("{} {problem}", paint(Tone::Bad, "error  "));
        }
        for warning in &warnings {
            say!("{} {warning}", paint(Tone::Busy, "warning"));
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
        say!(
            "{} is good: node {} on {}, {} chain(s), {} signer(s)",
            path.display(),
            config.node.name,
            config.http.listen,
            config.chains.len(),
            config.signers.len()
        );
    }
    Ok(())
}

fn show(args: &ConfigLookArgs) -> Result<(), Failure> {
    let config = load(&args.file.config)?;
    if args.json {
        print_json(&config.to_json());
        return Ok(());
    }
    let mut table = Columns::new(&["key", "value", "from", "what it is"]);
    for line in &config.shown {
        let origin = line.origin.words();
        let tone = if origin == "default" {
            Tone::Quiet
        } else {
            Tone::Good
        };
        table.row(vec![
            (Tone::Plain, line.path.clone()),
            (Tone::Strong, line.value.clone()),
            (tone, origin),
            (Tone::Quiet, line.about.clone()),
        ]);
    }
    say!("{table}");
    Ok(())
}
