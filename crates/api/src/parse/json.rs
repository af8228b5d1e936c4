//! JSON in one pass, borrowed from the body, with errors that know their field.
//!
//! serde's own messages do not say which field was wrong, and one bad item would fail a whole batch.
//! So a value of a wrong type is read as what it is, and the rules complain later. Only broken
//! syntax fails here. What has no place is skipped without recursion, so depth costs no stack.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::parse::Broken;

/// A JSON value, as far as the schema goes.
#[derive(Debug)]
pub(super) enum Json<'a, Object = Skipped, List = Skipped> {
    Null,
    Bool,
    /// A whole number that is not negative.
    Number(u64),
    /// Any other number.
    OtherNumber,
    Text(Cow<'a, str>),
    List(List),
    Object(Object),
}

/// A list or an object where none belongs.
#[derive(Debug)]
pub(super) struct Skipped;

/// A type that is read from a JSON object.
pub(super) trait ReadObject<'de>: Sized {
    fn read_object<M: MapAccess<'de>>(map: M) -> Result<Self, M::Error>;
}

/// A type that is read from a JSON array.
pub(super) trait ReadList<'de>: Sized {
    fn read_list<S: SeqAccess<'de>>(seq: S) -> Result<Self, S::Error>;
}

impl<O, L> Json<'_, O, L> {
    /// What it is, for a message.
    fn noun(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::Number(_) | Self::OtherNumber => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "an array",
            Self::Object(_) => "an object",
        }
    }

    /// It is not what it should be.
    pub(super) fn is_not(&self, wanted: &'static str) -> Broken {
        Broken::by(format!("must be {wanted}, not {}", self.noun()))
    }

    /// The text of a string.
    pub(super) fn text(&self, wanted: &'static str) -> Result<&str, Broken> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Null
            | Self::Bool
            | Self::Number(_)
            | Self::OtherNumber
            | Self::List(_)
            | Self::Object(_) => Err(self.is_not(wanted)),
        }
    }
}

/// The fields of an object that are plain values.
pub(super) trait Fields<'a> {
    /// The names, for a message.
    const KNOWN: &'static str;

    /// The place for a field.
    fn slot(&mut self, name: &str) -> Option<&mut Option<Json<'a>>>;
}

/// What is wrong with the shape of an object: the field, relative to the object, and the rule.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) field: String,
    pub(super) broken: Broken,
}

/// Reads the value of one field into its place. The first fault is kept.
pub(super) fn read_field<'de, M: MapAccess<'de>, F: Fields<'de>>(
    map: &mut M,
    fields: &mut F,
    name: &str,
    fault: &mut Option<Fault>,
) -> Result<(), M::Error> {
    let Some(slot) = fields.slot(name) else {
        map.next_value::<IgnoredAny>()?;
        fault.get_or_insert_with(|| Fault {
            field: name.chars().take(FIELD_NAME_CHARS).collect(),
            broken: Broken::by(format!(
                "is not a field here: remove it (known fields are {})",
                F::KNOWN
            )),
        });
        return Ok(());
    };
    if slot.replace(map.next_value()?).is_some() {
        fault.get_or_insert_with(|| Fault {
            field: name.to_owned(),
            broken: Broken::rule("is there twice: send it once"),
        });
    }
    Ok(())
}

/// How much of an unknown field's name an answer repeats.
const FIELD_NAME_CHARS: usize = 64;

/// The name of a field, borrowed where it has no escapes.
pub(super) struct Name<'a>(pub(super) Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;

        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field name")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(NameVisitor)
    }
}

impl<'de> ReadObject<'de> for Skipped {
    fn read_object<M: MapAccess<'de>>(mut map: M) -> Result<Self, M::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self)
    }
}

impl<'de> ReadList<'de> for Skipped {
    fn read_list<S: SeqAccess<'de>>(mut seq: S) -> Result<Self, S::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self)
    }
}

impl<'de, O: ReadObject<'de>, L: ReadList<'de>> Deserialize<'de> for Json<'de, O, L> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor(PhantomData))
    }
}

struct JsonVisitor<O, L>(PhantomData<(O, L)>);

impl<'de, O: ReadObject<'de>, L: ReadList<'de>> Visitor<'de> for JsonVisitor<O, L> {
    type Value = Json<'de, O, L>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Json::Bool)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Json::Number(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(u64::try_from(number).map_or(Json::OtherNumber, Json::Number))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(Json::OtherNumber)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Json::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Json::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<S: SeqAccess<'de>>(self, seq: S) -> Result<Self::Value, S::Error> {
        L::read_list(seq).map(Json::List)
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
        O::read_object(map).map(Json::Object)
    }
}
