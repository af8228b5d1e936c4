//! Finds each key's value where it stands: flag over environment over file over `dev` over default.
//!
//! Reading is how keys become known: what no section asked for is an unknown key. So there is no
//! second list of keys that could differ from the first.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::Problem;
use super::problem::nearest;
use super::raw::{Placed, Raw, RawFile, RawSection};
use super::values::{Setting, Wrong};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    /// The settings that `lanekeeper dev` brings.
    Dev,
    File {
        path: PathBuf,
        line: usize,
    },
    Env(String),
    Flag,
}

/// Everything that may say something, strongest last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// What `lanekeeper dev` brings.
    pub(crate) dev: Option<RawFile>,
    pub(crate) file: Option<RawFile>,
    /// `LANEKEEPER_SECTION__KEY` and values.
    pub(crate) env: BTreeMap<String, String>,
    /// `section.key` and values.
    pub(crate) flags: BTreeMap<&'static str, String>,
}

/// What a key is when nobody sets it.
pub(crate) enum Fallback {
    /// This value, in the form it would have in the environment.
    Value(String),
    /// Nothing; what that means.
    Unset(&'static str),
    /// It must be set.
    Required,
}

/// One line of `config show`.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) path: String,
    pub(crate) value: String,
    pub(crate) origin: Origin,
    pub(crate) about: String,
}

/// A `[section]` or an entry of a `[[section]]`.
pub(crate) trait Section: Sized {
    const NAME: &'static str;
    /// Reads all keys, so that all problems are found; `None` when there is any.
    fn read(reader: &mut SectionReader<'_>) -> Option<Self>;
}

pub(crate) struct Reader {
    sources: Sources,
    problems: Vec<Problem>,
    shown: Vec<Shown>,
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
            shown: Vec::new(),
            known: BTreeMap::new(),
            lists: BTreeSet::new(),
        }
    }

    /// Reads `[section]`.
    pub(crate) fn one<S: Section>(&mut self) -> Option<S> {
        self.known.entry(S::NAME).or_default();
        S::read(&mut SectionReader {
            reader: self,
            section: S::NAME,
            entry: None,
        })
    }

    /// Reads all `[[section]]`, of which there must be one: `when_none` says what to add.
    pub(crate) fn some<S: Section>(&mut self, when_none: &str) -> Option<Vec<S>> {
        let found = self.many::<S>();
        let is_single = |file: &RawFile| file.single.contains_key(S::NAME);
        if found.as_ref().is_none_or(|found| !found.is_empty()) {
            return found;
        }
        // `[section]` with single brackets is told by itself.
        if !self.sources.file.as_ref().is_some_and(is_single) {
            let message = format!("no {} is configured: {when_none}", S::NAME);
            self.problems.push(Problem::nowhere(message));
        }
        None
    }

    /// Reads all `[[section]]`: those of the file, or else those that `dev` brings.
    pub(crate) fn many<S: Section>(&mut self) -> Option<Vec<S>> {
        self.known.entry(S::NAME).or_default();
        self.lists.insert(S::NAME);
        let entries = |file: &RawFile, origin: fn(&RawFile, usize) -> Origin| {
            let entries = file.many.get(S::NAME).cloned()?;
            Some(
                entries
                    .into_iter()
                    .map(|e| (origin(file, e.line), e))
                    .collect::<Vec<_>>(),
            )
        };
        let from_file = |file: &RawFile, line| Origin::File {
            path: file.path.clone(),
            line,
        };
        let found = (self.sources.file.as_ref())
            .and_then(|file| entries(file, from_file))
            .or_else(|| {
                self.sources
                    .dev
                    .as_ref()
                    .and_then(|dev| entries(dev, |_, _| Origin::Dev))
            })
            .unwrap_or_default();
        // Every entry is read before any failure counts, so that all problems are found.
        let read: Vec<Option<S>> = found
            .into_iter()
            .enumerate()
            .map(|(index, (origin, keys))| {
                let entry = Some((index, keys, origin));
                S::read(&mut SectionReader {
                    reader: self,
                    section: S::NAME,
                    entry,
                })
            })
            .collect();
        read.into_iter().collect()
    }

    /// Says what nobody asked for, and gives back all lines and problems.
    pub(crate) fn finish(mut self) -> (Vec<Shown>, Vec<Problem>) {
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
        (self.shown, self.problems)
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
        for (key, Placed { line, .. }) in &section.keys {
            // A list without entries was never read, so its keys are unknown to us: no complaint.
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
            .flat_map(|(section, keys)| keys.iter().map(|key| variable(section, key)))
            .collect();
        for name in self
            .sources
            .env
            .keys()
            .filter(|name| !known.contains(*name))
        {
            let hint = did_you_mean(nearest(name, known.iter().map(String::as_str)));
            let message = format!("no key can be set by this variable{hint}");
            self.problems.push(Problem::in_env(name, message));
        }
    }
}

impl SectionReader<'_> {
    /// Reads one key, given by its field's name.
    pub(crate) fn key<T: Setting>(
        &mut self,
        field: &str,
        about: &str,
        fallback: Fallback,
    ) -> Option<T> {
        let key = camel(field);
        let path = match &self.entry {
            None => format!("{}.{key}", self.section),
            Some((index, ..)) => format!("{}[{index}].{key}", self.section),
        };
        let found = self.find(&key, &path);
        self.reader
            .known
            .entry(self.section)
            .or_default()
            .insert(key.clone());

        let (raw, origin) = match (found, fallback) {
            (Some(found), _) => found,
            (None, Fallback::Value(word)) => (Raw::Word(word), Origin::Default),
            (None, Fallback::Unset(meaning)) => {
                self.show(path, format!("({meaning})"), Origin::Default, about);
                return T::unset();
            }
            (None, Fallback::Required) => {
                let message = format!("{path} is missing: set it to {}", T::FORM);
                let origin = self
                    .entry
                    .as_ref()
                    .map_or(Origin::Default, |(.., o)| o.clone());
                self.reader.problems.push(Problem::of(&origin, message));
                return None;
            }
        };
        match T::from_raw(&raw) {
            Ok(value) => {
                self.show(path, value.shown(), origin, about);
                Some(value)
            }
            Err(wrong) => {
                let message = match wrong {
                    Wrong::Form if T::IS_SECRET => format!("{path} must be {}", T::FORM),
                    Wrong::Form => format!("{path} is {raw}, but must be {}", T::FORM),
                    Wrong::Because(why) if T::IS_SECRET => format!("{path}: {why}"),
                    Wrong::Because(why) => format!("{path} is {raw}: {why}"),
                };
                self.reader.problems.push(Problem::of(&origin, message));
                None
            }
        }
    }

    fn find(&self, key: &str, path: &str) -> Option<(Raw, Origin)> {
        let sources = &self.reader.sources;
        let placed = |file: &RawFile, section: &RawSection| {
            let Placed { raw, line } = section.keys.get(key)?.clone();
            Some((
                raw,
                Origin::File {
                    path: file.path.clone(),
                    line,
                },
            ))
        };
        if let Some((_, section, origin)) = &self.entry {
            let Placed { raw, line } = section.keys.get(key)?.clone();
            return Some((raw, origin.at(line)));
        }
        if let Some(flag) = sources.flags.get(path) {
            return Some((Raw::Word(flag.clone()), Origin::Flag));
        }
        let variable = variable(self.section, key);
        if let Some(word) = sources.env.get(&variable) {
            return Some((Raw::Word(word.clone()), Origin::Env(variable)));
        }
        let in_file = sources
            .file
            .as_ref()
            .and_then(|f| placed(f, f.single.get(self.section)?));
        in_file.or_else(|| {
            let dev = sources.dev.as_ref()?.single.get(self.section)?;
            Some((dev.keys.get(key)?.raw.clone(), Origin::Dev))
        })
    }

    fn show(&mut self, path: String, value: String, origin: Origin, about: &str) {
        let about = about.trim().to_owned();
        self.reader.shown.push(Shown {
            path,
            value,
            origin,
            about,
        });
    }
}

impl Origin {
    fn at(&self, line: usize) -> Self {
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
fn camel(field: &str) -> String {
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

/// `lease`, `renewInterval` → `LANEKEEPER_LEASE__RENEW_INTERVAL`
pub(crate) fn variable(section: &str, key: &str) -> String {
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
    fn names_of_keys_and_variables() {
        assert_eq!(camel("renew_interval"), "renewInterval");
        assert_eq!(camel("id"), "id");
        assert_eq!(
            variable("lease", "renewInterval"),
            "LANEKEEPER_LEASE__RENEW_INTERVAL"
        );
        assert_eq!(variable("http", "listen"), "LANEKEEPER_HTTP__LISTEN");
    }
}
