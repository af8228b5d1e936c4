//! Many requests in one body. Each stands for itself: one that is wrong fails no other.

use engine::node::NewTx;
use serde::de::{IgnoredAny, MapAccess, SeqAccess};

use crate::parse::Broken;
use crate::parse::json::{Fault, Fields, Json, Name, ReadList, ReadObject, Skipped, read_field};
use crate::parse::tx::{Door, RawTx, check, not_json};
use crate::problem::{Problem, ProblemKind};

/// The most requests in one batch.
const BATCH_MAX: usize = 500;

/// Reads the body of a batch: for each item the request, or what is wrong with it.
pub(crate) fn batch(body: &[u8], door: Door<'_>) -> Result<Vec<Result<NewTx, Problem>>, Problem> {
    let raw: Json<'_, RawBatch<'_>> = serde_json::from_slice(body).map_err(|e| not_json(&e))?;
    let Json::Object(raw) = raw else {
        let detail = format!("the body {}", raw.is_not("an object").0);
        return Err(Problem::new(ProblemKind::InvalidField, detail));
    };
    if let Some(Fault { field, broken }) = raw.fault {
        return Err(broken.field(&field));
    }
    let items = match raw.txs {
        Some(Json::List(items)) => items,
        None => return Err(Broken::rule("is missing: send the requests as an array").field("txs")),
        Some(other) => return Err(other.is_not("an array").field("txs")),
    };
    if items.count > BATCH_MAX {
        let rule = format!(
            "has {} items, but at most {BATCH_MAX} are allowed: split the batch",
            items.count
        );
        return Err(Broken::by(rule).field("txs"));
    }
    let items = items.raw.into_iter().enumerate();
    Ok(items
        .map(|(item, raw)| check(raw, door, Some(item)))
        .collect())
}

#[derive(Default)]
struct RawBatch<'a> {
    txs: Option<Json<'a, Skipped, Items<'a>>>,
    fault: Option<Fault>,
}

/// The items up to the limit, and how many there were.
struct Items<'a> {
    raw: Vec<Json<'a, RawTx<'a>>>,
    count: usize,
}

impl<'a> Fields<'a> for RawBatch<'a> {
    const KNOWN: &'static str = "txs";

    fn slot(&mut self, _name: &str) -> Option<&mut Option<Json<'a>>> {
        None
    }
}

impl<'de> ReadObject<'de> for RawBatch<'de> {
    fn read_object<M: MapAccess<'de>>(mut map: M) -> Result<Self, M::Error> {
        let mut raw = Self::default();
        let mut fault = None;
        while let Some(Name(name)) = map.next_key()? {
            if name != "txs" {
                read_field(&mut map, &mut raw, &name, &mut fault)?;
            } else if raw.txs.replace(map.next_value()?).is_some() {
                fault.get_or_insert_with(|| Fault {
                    field: "txs".to_owned(),
                    broken: Broken::rule("is there twice: send it once"),
                });
            }
        }
        raw.fault = fault;
        Ok(raw)
    }
}

impl<'de> ReadList<'de> for Items<'de> {
    fn read_list<S: SeqAccess<'de>>(mut seq: S) -> Result<Self, S::Error> {
        let mut items = Self {
            raw: Vec::new(),
            count: 0,
        };
        while items.count < BATCH_MAX
            && let Some(raw) = seq.next_element()?
        {
            items.raw.push(raw);
            items.count += 1;
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {
            items.count += 1;
        }
        Ok(items)
    }
}
