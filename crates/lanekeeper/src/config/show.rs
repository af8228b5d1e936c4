//! `config show`: every key with its value, and where that came from.

use super::{Config, Origin};

impl Origin {
    /// In words.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Default => "default".to_owned(),
            Self::Dev => "dev".to_owned(),
            Self::File { path, line } => format!("{}:{line}", path.display()),
            Self::Env(variable) => format!("${variable}"),
            Self::Flag => "flag".to_owned(),
        }
    }
}

impl Config {
    /// For programs: `{path: {value, origin, about}}`.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let lines = self.shown.iter().map(|line| {
            let detail = serde_json::json!({
                "value": line.value, "origin": line.origin.words(), "about": line.about,
            });
            (line.path.clone(), detail)
        });
        lines.collect::<serde_json::Map<_, _>>().into()
    }
}
