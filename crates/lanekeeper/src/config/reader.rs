//! Finds the value of each key: flag over environment over file over `dev` over default.
//!
//! A key is known because a section reads it; all others are reported as unknown. There is no second list of
//! keys that could differ from the declarations.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::Problem;
use super::problem::nearest;
use super::raw::{LocatedValue, Raw, RawFile, RawSection};
use super::section::{Rule, Section};
use super::setting::{Setting, ValueError};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    Default,
    /// The settings of `lanekeeper dev`.
    Dev,
    File {
        path: PathBuf,
        line: usize,
    },
    Env(String),
    Flag,
}

/// All sources of values, the strongest last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// The settings of `lanekeeper dev`.
    pub(crate) dev: Option<RawFile>,
    pub(crate) file: Option<RawFile>,
    /// `LANEKEEPER_SECTION__KEY` and values.
    pub(crate) env: BTreeMap<String, String>,
    /// `section.key` and values.
    pub(crate) flags: BTreeMap<&'static str, String>,
}

impl Sources {
    /// Finds something and its line in the file, or else in the settings of `dev`.
    fn find_in_files<T>(
        &self,
        find: impl Fn(&RawFile) -> Option<(T, usize)>,
    ) -> Option<(T, Origin)> {
        let in_file = self.file.as_ref().and_then(|file| {
            let (found, line) = find(file)?;
            let path = file.path.clone();
            Some((found, Origin::File { path, line }))
        });
        in_file.or_else(|| Some((find(self.dev.as_ref()?)?.0, Origin::Dev)))
    }
}

/// The value of a key that is not set.
pub(crate) enum Fallback {
    /// This value, in the form it would have in the environment.
    Value(String),
    /// Nothing, and what that means.
    Unset(&'static str),
    /// The key must be set.
    Required,
}

/// One line of `config show`.
#[derive(Clone, Debug)]
pub(crate) struct EffectiveKey {
    pub(crate) path: String,
    pub(crate) value: String,
    pub(crate) origin: Origin,
    pub(crate) about: String,
    /// The accepted values, for docs/configuration.md.
    #[cfg(test)]
    pub(super) form: &'static str,
}

pub(crate) struct Reader {
    sources: Sources,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    keys: Vec<EffectiveKey>,
    /// Known keys by section, in camelCase.
    known: BTreeMap<&'static str, BTreeSet<String>>,
    /// Sections that are written `[[section]]`.
    lists: BTreeSet<&'static str>,
}

pub(crate) struct SectionReader<'r> {
    reader: &'r mut Reader,
    section: &'static str,
    /// For an entry of a list: its number and keys.
    entry: Option<(usize, RawSection, Origin)>,
}

impl Reader {
    pub(crate) fn new(sources: Sources) -> Self {
        Self {
            sources,
            problems: Vec::new(),
            warnings: Vec::new(),
            keys: Vec::new(),
            known: BTreeMap::new(),
            lists: BTreeSet::new(),
        }
    }

    /// Reads a `[section]`.
    pub(crate) fn read_section<S: Section>(&mut self) -> Option<S> {
        self.known.entry(S::NAME).or_default();
        S::read(&mut SectionReader {
            reader: self,
            section: S::NAME,
            entry: None,
        })
    }

    /// Reads all `[[section]]`, of which there must be at least one: `fix` is what to add.
    pub(crate) fn read_required_list<S: Section>(&mut self, fix: &str) -> Option<Vec<S>> {
        let found = self.read_list::<S>();
        let is_single = |file: &RawFile| file.single.contains_key(S::NAME);
        if found.as_ref().is_none_or(|found| !found.is_empty()) {
            return found;
        }
        // `[section]` with single brackets is reported elsewhere.
        if !self.sources.file.as_ref().is_some_and(is_single) {
            let message = format!("no {} is configured: {fix}", S::NAME);
            self.problems.push(Problem::without_location(message));
        }
        None
    }

    /// Reads all `[[section]]`: those of the file, or else those of `dev`.
    pub(crate) fn read_list<S: Section>(&mut self) -> Option<Vec<S>> {
        self.known.entry(S::NAME).or_default();
        self.lists.insert(S::NAME);
        let found = self.sources.find_in_files(|file| {
            let entries = file.many.get(S::NAME)?.clone();
            Some((entries, 0)) // each entry has its own line
        });
        let (entries, origin) = found.unwrap_or((Vec::new(), Origin::Default));
        // All entries are read before the first failure counts, so that all problems are found.
        let read: Vec<Option<S>> = entries
            .into_iter()
            .enumerate()
            .map(|(index, keys)| {
                let origin = origin.at_line(keys.line);
                S::read(&mut SectionReader {
                    reader: self,
                    section: S::NAME,
                    entry: Some((index, keys, origin)),
                })
            })
            .collect();
        read.into_iter().collect()
    }

    /// Reports unknown sections, keys and variables; returns all keys, problems and warnings.
    pub(crate) fn finish(mut self) -> (Vec<EffectiveKey>, Vec<Problem>, Vec<Problem>) {
        if let Some(file) = self.sources.file.take() {
            self.refuse_unknown_sections(&file);
            for (name, section) in &file.single {
                self.refuse_unknown_keys(&file, name, section);
            }
            for (name, entries) in &file.many {
                for section in entries {
                    self.refuse_unknown_keys(&file, name, section);
                }
            }
        }
        self.refuse_unknown_variables();
        self.problems.sort();
        (self.keys, self.problems, self.warnings)
    }

    fn refuse_unknown_sections(&mut self, file: &RawFile) {
        let single = file
            .single
            .iter()
            .map(|(name, section)| (name, section.line, false));
        let many = file
            .many
            .iter()
            .map(|(name, entries)| (name, entries.first().map_or(1, |entry| entry.line), true));
        for (name, line, is_list) in single.chain(many) {
            let message = if !self.known.contains_key(name.as_str()) {
                let hint = nearest(name, self.known.keys().copied());
                format!("unknown section {name}{}", did_you_mean(hint))
            } else if is_list && !self.lists.contains(name.as_str()) {
                format!("[[{name}]] is written with single brackets: [{name}]")
            } else if !is_list && self.lists.contains(name.as_str()) {
                format!("[{name}] is written with double brackets, once per {name}: [[{name}]]")
            } else {
                continue;
            };
            self.problems
                .push(Problem::in_file(&file.path, line, message));
        }
    }

    fn refuse_unknown_keys(&mut self, file: &RawFile, name: &str, section: &RawSection) {
        let Some(known) = self.known.get(name) else {
            return;
        };
        for (key, LocatedValue { line, .. }) in &section.keys {
            // The keys of a list without entries were never read, so that none can be called unknown.
            if known.is_empty() || known.contains(key) {
                continue;
            }
            if self.lists.contains(format!("{name}.{key}").as_str()) {
                let message = format!(
                    "[{name}.{key}] is written with double brackets, once per {key}: [[{name}.{key}]]"
                );
                self.problems
                    .push(Problem::in_file(&file.path, *line, message));
                continue;
            }
            let elsewhere = self.known.iter().find(|(_, keys)| keys.contains(key));
            let hint = match (nearest(key, known.iter().map(String::as_str)), elsewhere) {
                (Some(near), _) => did_you_mean(Some(&format!("{name}.{near}"))),
                (None, Some((other, _))) => format!("; it belongs to [{other}]"),
                (None, None) => {
                    let all: Vec<&str> = known.iter().map(String::as_str).collect();
                    format!("; [{name}] has {}", all.join(", "))
                }
            };
            let message = format!("unknown key {name}.{key}{hint}");
            self.problems
                .push(Problem::in_file(&file.path, *line, message));
        }
    }

    fn refuse_unknown_variables(&mut self) {
        let known: BTreeSet<String> = (self.known.iter())
            .filter(|(section, _)| !self.lists.contains(*section))
            .flat_map(|(section, keys)| keys.iter().map(|key| variable_name(section, key)))
            .collect();
        let set = self.sources.env.keys();
        for name in set.filter(|name| !known.contains(*name)) {
            let hint = did_you_mean(nearest(name, known.iter().map(String::as_str)));
            let message = format!("no key can be set by this variable{hint}");
            let problem = Problem::in_env(name, message);
            if is_key_variable(name) {
                self.problems.push(problem);
            } else {
                // Orchestrators set such variables too, such as LANEKEEPER_SERVICE_HOST.
                self.warnings.push(problem);
            }
        }
    }
}

impl SectionReader<'_> {
    /// Reads one key, given by its field's name. A value that violates a rule is reported and returned, so that
    /// the relations between keys are checked too.
    pub(crate) fn read_key<T: Setting>(
        &mut self,
        field: &str,
        about: &str,
        fallback: Fallback,
        rules: impl IntoIterator<Item = Rule<T>>,
    ) -> Option<T> {
        let key = camel_case(field);
        let path = match &self.entry {
            None => format!("{}.{key}", self.section),
            Some((index, ..)) => format!("{}[{index}].{key}", self.section),
        };
        let found = self.find_value(&key, &path);
        self.reader
            .known
            .entry(self.section)
            .or_default()
            .insert(key.clone());

        let (raw, origin) = match (found, fallback) {
            (Some(found), _) => found,
            (None, Fallback::Value(text)) => (Raw::Bare(text), Origin::Default),
            (None, Fallback::Unset(meaning)) => {
                self.record::<T>(path, format!("({meaning})"), Origin::Default, about);
                return T::unset();
            }
            (None, Fallback::Required) => {
                let message = format!("{path} is missing: set it to {}", T::FORM);
                let origin = match &self.entry {
                    Some((.., origin)) => origin.clone(),
                    None => Origin::Default,
                };
                self.report(&origin, message);
                return None;
            }
        };
        match T::from_raw(&raw) {
            Ok(value) => {
                for rule in rules {
                    if let Some(violation) = rule.violation(&value) {
                        let message = format!("{path} is {}, {violation}", value.to_text());
                        self.report(&origin, message);
                    }
                }
                self.record::<T>(path, value.to_text(), origin, about);
                Some(value)
            }
            Err(error) => {
                let message = match error {
                    ValueError::Malformed if T::IS_SECRET => format!("{path} must be {}", T::FORM),
                    ValueError::Malformed => format!("{path} is {raw}, but must be {}", T::FORM),
                    ValueError::Rejected(why) if T::IS_SECRET => format!("{path}: {why}"),
                    ValueError::Rejected(why) => format!("{path} is {raw}: {why}"),
                };
                self.report(&origin, message);
                None
            }
        }
    }

    fn find_value(&self, key: &str, path: &str) -> Option<(Raw, Origin)> {
        let sources = &self.reader.sources;
        if let Some((_, section, origin)) = &self.entry {
            let LocatedValue { raw, line } = section.keys.get(key)?.clone();
            return Some((raw, origin.at_line(line)));
        }
        if let Some(flag) = sources.flags.get(path) {
            return Some((Raw::Bare(flag.clone()), Origin::Flag));
        }
        let variable = variable_name(self.section, key);
        if let Some(text) = sources.env.get(&variable) {
            return Some((Raw::Bare(text.clone()), Origin::Env(variable)));
        }
        sources.find_in_files(|file| {
            let LocatedValue { raw, line } = file.single.get(self.section)?.keys.get(key)?.clone();
            Some((raw, line))
        })
    }

    fn report(&mut self, origin: &Origin, message: String) {
        let problem = Problem::at_origin(origin, message);
        self.reader.problems.push(problem);
    }

    fn record<T: Setting>(&mut self, path: String, value: String, origin: Origin, about: &str) {
        let about = about.trim().to_owned();
        self.reader.keys.push(EffectiveKey {
            path,
            value,
            origin,
            about,
            #[cfg(test)]
            form: T::FORM,
        });
    }
}

impl Origin {
    fn at_line(&self, line: usize) -> Self {
        match self {
            Self::File { path, .. } => Self::File {
                path: path.clone(),
                line,
            },
            Self::Default | Self::Dev | Self::Env(_) | Self::Flag => self.clone(),
        }
    }
}

/// `renew_interval` → `renewInterval`
fn camel_case(field: &str) -> String {
    let mut key = String::with_capacity(field.len());
    let mut words = field.split('_');
    key.push_str(words.next().unwrap_or_default());
    for word in words {
        let (first, rest) = word.split_at(1.min(word.len()));
        key.push_str(&first.to_uppercase());
        key.push_str(rest);
    }
    key
}

/// Whether a variable has the form of those that set a key.
pub(super) fn is_key_variable(name: &str) -> bool {
    name.starts_with("LANEKEEPER_") && name.contains("__")
}

/// `lease`, `renewInterval` → `LANEKEEPER_LEASE__RENEW_INTERVAL`
fn variable_name(section: &str, key: &str) -> String {
    let mut name = format!("LANEKEEPER_{}__", section.to_uppercase());
    for c in key.chars() {
        if c.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(c.to_ascii_uppercase());
    }
    name
}

fn did_you_mean(hint: Option<&str>) -> String {
    hint.map_or_else(String::new, |hint| format!("; did you mean {hint}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_become_keys_and_variables() {
        assert_eq!(camel_case("renew_interval"), "renewInterval");
        assert_eq!(camel_case("id"), "id");
        assert_eq!(
            variable_name("lease", "renewInterval"),
            "LANEKEEPER_LEASE__RENEW_INTERVAL"
        );
        assert_eq!(variable_name("http", "listen"), "LANEKEEPER_HTTP__LISTEN");
    }
}
