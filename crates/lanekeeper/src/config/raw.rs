//! A parsed TOML file: values with their lines, before they are interpreted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::Problem;

/// A value before its kind is known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Raw {
    /// A quoted string of the file.
    Text(String),
    /// Unquoted text from the environment, a flag or a default. It may be any scalar.
    Bare(String),
    Integer(i128),
    Float(f64),
    Bool(bool),
    List(Vec<Raw>),
    /// What no key accepts: a date, a table.
    Other(String),
}

impl std::fmt::Display for Raw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Bare(text) => f.write_str(text),
            Self::Integer(n) => n.fmt(f),
            Self::Float(n) => n.fmt(f),
            Self::Bool(b) => b.fmt(f),
            Self::List(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            Self::Other(what) => f.write_str(what),
        }
    }
}

/// A value and its line.
#[derive(Clone, Debug)]
pub(crate) struct LocatedValue {
    pub(crate) raw: Raw,
    pub(crate) line: usize,
}

/// The keys of one `[section]`, or of one entry of a `[[section]]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawSection {
    pub(crate) keys: BTreeMap<String, LocatedValue>,
    pub(crate) line: usize,
}

/// A whole file.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawFile {
    pub(crate) path: PathBuf,
    /// `[section]`
    pub(crate) single: BTreeMap<String, RawSection>,
    /// `[[section]]`
    pub(crate) many: BTreeMap<String, Vec<RawSection>>,
}

impl RawFile {
    pub(crate) fn has_section(&self, section: &str) -> bool {
        self.single.contains_key(section) || self.many.contains_key(section)
    }

    /// Parses TOML. Keys outside of a section are a problem.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, Vec<Problem>> {
        let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        let line_of = |offset: usize| ends.partition_point(|end| *end < offset) + 1;
        let table = DeTable::parse(text).map_err(|e| {
            let line = e.span().map_or(1, |span| line_of(span.start));
            vec![Problem::in_file(
                path,
                line,
                format!("this is not TOML: {}", e.message()),
            )]
        })?;

        let mut file = Self {
            path: path.to_owned(),
            ..Self::default()
        };
        let mut problems = Vec::new();
        for (name, value) in table.get_ref() {
            let line = line_of(name.span().start);
            let name = name.get_ref().to_string();
            match value.get_ref() {
                DeValue::Table(section) => {
                    let mut keys = raw_section(section, line, &line_of);
                    // `[[auth.key]]` is a separate list beside `[auth]`.
                    for (key, value) in section {
                        if let Some(entries) = raw_entries(value.get_ref(), &line_of) {
                            keys.keys.remove(key.get_ref().as_ref());
                            let name = format!("{name}.{}", key.get_ref());
                            file.many.insert(name, entries);
                        }
                    }
                    file.single.insert(name, keys);
                }
                DeValue::Array(entries)
                    if entries.iter().all(|entry| entry.get_ref().is_table()) =>
                {
                    let entries = raw_entries(value.get_ref(), &line_of);
                    file.many.insert(name, entries.unwrap_or_default());
                }
                DeValue::String(_)
                | DeValue::Integer(_)
                | DeValue::Float(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_)
                | DeValue::Array(_) => problems.push(Problem::in_file(
                    path,
                    line,
                    format!("{name} is outside of any section: put it under its [section]"),
                )),
            }
        }
        if problems.is_empty() {
            Ok(file)
        } else {
            Err(problems)
        }
    }
}

/// The entries of a `[[section]]`; `None` for any other value.
fn raw_entries(value: &DeValue<'_>, line_of: &impl Fn(usize) -> usize) -> Option<Vec<RawSection>> {
    let DeValue::Array(entries) = value else {
        return None;
    };
    let entries: Option<Vec<RawSection>> = entries
        .iter()
        .map(|entry| {
            let line = line_of(entry.span().start);
            Some(raw_section(entry.get_ref().as_table()?, line, line_of))
        })
        .collect();
    entries.filter(|entries| !entries.is_empty())
}

fn raw_section(table: &DeTable<'_>, line: usize, line_of: &impl Fn(usize) -> usize) -> RawSection {
    let keys = table.iter().map(|(key, value)| {
        let located = LocatedValue {
            raw: raw_value(value.get_ref()),
            line: line_of(key.span().start),
        };
        (key.get_ref().to_string(), located)
    });
    RawSection {
        keys: keys.collect(),
        line,
    }
}

fn raw_value(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::Text(text.to_string()),
        DeValue::Integer(n) => i128::from_str_radix(n.as_str(), n.radix())
            .map_or_else(|_| Raw::Other(n.as_str().to_owned()), Raw::Integer),
        DeValue::Float(n) => n
            .as_str()
            .parse()
            .map_or_else(|_| Raw::Other(n.as_str().to_owned()), Raw::Float),
        DeValue::Boolean(b) => Raw::Bool(*b),
        DeValue::Array(items) => {
            Raw::List(items.iter().map(|item| raw_value(item.get_ref())).collect())
        }
        DeValue::Datetime(_) => Raw::Other("a date".to_owned()),
        DeValue::Table(_) => Raw::Other("a table".to_owned()),
    }
}
