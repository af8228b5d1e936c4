//! JSON parsing in one pass, borrowed from the body, with errors that name the field.
//!
//! serde's own messages do not name the field, and one invalid item would fail a whole batch. So a value of a wrong
//! type is read as what it is and refused later, by the rules of its field. Only invalid syntax fails here. Unknown
//! values are skipped without recursion, so nesting costs no stack.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::parse::RuleViolation;

/// A JSON value, as deep as the schema needs.
#[derive(Debug)]
pub(super) enum Json<'a, Object = Skipped, List = Skipped> {
    Null,
    Bool(bool),
    /// A non-negative integer.
    Number(u64),
    /// Any other number.
    OtherNumber,
    Text(Cow<'a, str>),
    List(List),
    Object(Object),
}

/// A list or an object where the schema has none.
#[derive(Debug)]
pub(super) struct Skipped;

pub(super) trait ReadObject<'de>: Sized {
    fn read_object<M: MapAccess<'de>>(map: M) -> Result<Self, M::Error>;
}

pub(super) trait ReadList<'de>: Sized {
    fn read_list<S: SeqAccess<'de>>(seq: S) -> Result<Self, S::Error>;
}

impl<O, L> Json<'_, O, L> {
    /// For messages.
    fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) | Self::OtherNumber => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "an array",
            Self::Object(_) => "an object",
        }
    }

    /// The violation of a value whose type is not `expected`.
    pub(super) fn type_mismatch(&self, expected: &'static str) -> RuleViolation {
        RuleViolation::new(format!("must be {expected}, not {}", self.type_name()))
    }

    pub(super) fn text(&self, expected: &'static str) -> Result<&str, RuleViolation> {
        let Self::Text(text) = self else {
            return Err(self.type_mismatch(expected));
        };
        Ok(text)
    }
}

/// The known fields of an object.
pub(super) trait Fields<'de>: Default {
    /// The names of the fields, for messages.
    const KNOWN: &'static str;

    /// Reads the value of a field, and returns whether it was there before; `None` for an unknown field.
    fn read_value<M: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut M,
    ) -> Result<Option<bool>, M::Error>;
}

/// Reads the value of a known field into its slot: see [`Fields::read_value`].
pub(super) fn fill<'de, M: MapAccess<'de>, T: Deserialize<'de>>(
    slot: &mut Option<T>,
    map: &mut M,
) -> Result<Option<bool>, M::Error> {
    Ok(Some(slot.replace(map.next_value()?).is_some()))
}

/// The known fields of an object, or its first fault.
#[derive(Debug)]
pub(super) struct Object<F>(pub(super) Result<F, FieldFault>);

/// An unknown or repeated field of an object, and the rule.
#[derive(Debug)]
pub(super) struct FieldFault {
    pub(super) field: String,
    pub(super) violation: RuleViolation,
}

impl<'de, F: Fields<'de>> ReadObject<'de> for Object<F> {
    fn read_object<M: MapAccess<'de>>(mut map: M) -> Result<Self, M::Error> {
        let (mut fields, mut fault) = (F::default(), None);
        while let Some(FieldName(name)) = map.next_key()? {
            let rule = match fields.read_value(&name, &mut map)? {
                Some(false) => continue,
                Some(true) => RuleViolation::new("is there twice: send it once"),
                None => {
                    map.next_value::<IgnoredAny>()?;
                    RuleViolation::new(format!(
                        "is not a field here: remove it (known fields are {})",
                        F::KNOWN
                    ))
                }
            };
            fault.get_or_insert_with(|| FieldFault {
                field: name.chars().take(FIELD_NAME_CHARS).collect(),
                violation: rule,
            });
        }
        Ok(Self(fault.map_or(Ok(fields), Err)))
    }
}

/// Characters of an unknown field's name that a response repeats.
const FIELD_NAME_CHARS: usize = 64;

/// The name of a field, borrowed unless it has escapes.
struct FieldName<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for FieldName<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldNameVisitor;

        impl<'de> Visitor<'de> for FieldNameVisitor {
            type Value = FieldName<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field name")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(FieldName(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(FieldName(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(FieldNameVisitor)
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

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Json::Bool(value))
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
