//! `config show`: every key with its value and origin.

use super::{Config, Origin};

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Dev => f.write_str("dev"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Env(variable) => write!(f, "${variable}"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

impl Config {
    /// `{path: {value, origin, about}}`.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let keys = self.keys.iter().map(|key| {
            let detail = serde_json::json!({
                "value": key.value, "origin": key.origin.to_string(), "about": key.about,
            });
            (key.path.clone(), detail)
        });
        keys.collect::<serde_json::Map<_, _>>().into()
    }
}
