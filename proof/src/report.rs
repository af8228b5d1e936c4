//! The report of a proof: the result as the last line, JSON in proof/out, and an exit code.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Map, Value};

use crate::Outcome;

pub struct Report {
    name: String,
    facts: Map<String, Value>,
    /// The current part of the report, if it has parts.
    part: Option<String>,
}

impl Report {
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            facts: Map::new(),
            part: None,
        }
    }

    /// Records and prints a fact.
    pub fn fact(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        crate::print_step(format!("{name}: {value}"));
        self.note(name, value);
    }

    /// Records a fact that is too long to print.
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

    /// Starts a part: later facts belong to it and do not replace facts of other parts.
    pub fn part(&mut self, name: impl Into<String>) {
        let name = name.into();
        crate::print_step(&name);
        self.part = Some(name);
    }

    /// Prints the result last, writes JSON, and returns the exit code.
    #[expect(
        clippy::print_stdout,
        reason = "the figure is the last line of a proof"
    )]
    pub fn close(mut self, outcome: Outcome<String>) -> ExitCode {
        let (holds, figure) = match outcome {
            Ok(figure) => (true, figure),
            Err(error) => (false, error.to_string()),
        };
        self.facts.insert("proof".into(), self.name.clone().into());
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
        let evaluation = if holds { "HOLDS" } else { "FAILS" };
        println!("{evaluation} {}: {figure}", self.name);
        if holds {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
