//! The end of a proof: its figure as the last line, the same as JSON beside it, and an exit code.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Map, Value};

use crate::Outcome;

/// What a proof found out.
pub struct Report {
    name: &'static str,
    facts: Map<String, Value>,
    /// The object in which facts are put, when there are several parts of one kind.
    part: Option<String>,
}

impl Report {
    /// A report with nothing in it yet.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            facts: Map::new(),
            part: None,
        }
    }

    /// Writes a fact down and says it.
    pub fn fact(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        crate::say(format!("{name}: {value}"));
        self.note(name, value);
    }

    /// Writes a fact down that is too long to be said.
    pub fn note(&mut self, name: &str, value: impl Into<Value>) {
        let part = self.part.as_ref().map(|part| {
            let empty = || Value::Object(Map::new());
            self.facts.entry(part).or_insert_with(empty)
        });
        match part.and_then(Value::as_object_mut) {
            Some(part) => part.insert(name.into(), value.into()),
            None => self.facts.insert(name.into(), value.into()),
        };
    }

    /// What follows belongs to this part: it does not replace what the part before told.
    pub fn part(&mut self, name: impl Into<String>) {
        let name = name.into();
        crate::say(&name);
        self.part = Some(name);
    }

    /// Prints the figure last, writes JSON, and turns the outcome into an exit code.
    #[expect(
        clippy::print_stdout,
        reason = "the figure is the last line of a proof"
    )]
    pub fn close(mut self, outcome: Outcome<String>) -> ExitCode {
        let (holds, figure) = match outcome {
            Ok(figure) => (true, figure),
            Err(error) => (false, error.to_string()),
        };
        self.facts.insert("proof".into(), self.name.into());
        self.facts.insert("holds".into(), holds.into());
        self.facts.insert("figure".into(), figure.clone().into());
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("out");
        let file = folder.join(format!("{}.json", self.name));
        let text = format!("{:#}\n", Value::Object(self.facts));
        if let Err(error) =
            std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, text))
        {
            println!(
                "the report could not be written to {}: {error}",
                file.display()
            );
        }
        let verdict = if holds { "HOLDS" } else { "FAILS" };
        println!("{verdict} {}: {figure}", self.name);
        if holds {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
