//! How a section of the configuration file is declared: one entry per key, with its kind, default and rule.
//!
//! In the file a key is the field's name in camelCase (`renewInterval`), in the environment it is
//! `LANEKEEPER_SECTION__KEY` (`LANEKEEPER_LEASE__RENEW_INTERVAL`). Parsing, overrides, unknown-key errors,
//! `config show` and docs/configuration.md all follow from the declaration.

use std::time::Duration;

use super::reader::{Fallback, SectionReader};

/// A `[section]` or an entry of a `[[section]]`.
pub(crate) trait Section: Sized {
    const NAME: &'static str;
    /// Reads all keys, so that all problems are found; `None` when a key has no usable value.
    fn read(reader: &mut SectionReader<'_>) -> Option<Self>;
}

/// Declares a section: `/// meaning`, `key: Kind = default` and optionally `, rule` for each key.
macro_rules! section {
    (
        $(#[doc = $section_about:literal])*
        $section:ident = $name:literal {
            $( $(#[doc = $about:literal])* $key:ident: $kind:ty = $fallback:expr $(, $rule:expr)?; )*
        }
    ) => {
        $(#[doc = $section_about])*
        #[derive(Clone, Debug)]
        pub(crate) struct $section {
            $( $(#[doc = $about])* pub(crate) $key: $kind, )*
        }

        impl $crate::config::section::Section for $section {
            const NAME: &'static str = $name;
            fn read(reader: &mut $crate::config::reader::SectionReader<'_>) -> Option<Self> {
                $( let $key = reader.read_key(
                    stringify!($key), concat!($($about),*), $fallback, [$($rule)?],
                ); )*
                Some(Self { $( $key: $key?, )* })
            }
        }
    };
}
pub(crate) use section;

/// The value of a key that is not set, in the form it would have in the environment.
pub(super) fn default(text: &str) -> Fallback {
    Fallback::Value(text.to_owned())
}

/// What a value must satisfy by itself. Relations between keys are checked by `Validation`.
pub(crate) struct Rule<T> {
    is_met: Box<dyn Fn(&T) -> bool>,
    /// What is wrong and how to fix it; continues the sentence "<key> is <value>, ".
    violation: String,
}

impl<T> Rule<T> {
    /// The text for a value that does not satisfy the rule.
    pub(super) fn violation(&self, value: &T) -> Option<&str> {
        (!(self.is_met)(value)).then_some(self.violation.as_str())
    }
}

pub(super) fn rule<T>(
    is_met: impl Fn(&T) -> bool + 'static,
    violation: impl Into<String>,
) -> Rule<T> {
    Rule {
        is_met: Box::new(is_met),
        violation: violation.into(),
    }
}

pub(super) fn in_range(min: u64, max: u64) -> Rule<u64> {
    let violation = format!("but must be from {min} to {max}");
    rule(move |value| (min..=max).contains(value), violation)
}

/// The interval of something that is sent to chain endpoints.
pub(super) fn polling_interval() -> Rule<Duration> {
    at_least_1s("but less than 1s would overload chain endpoints: set it to 1s or more")
}

pub(super) fn at_least_1s(violation: &str) -> Rule<Duration> {
    rule(
        |duration: &Duration| duration.as_millis() >= 1_000,
        violation,
    )
}
