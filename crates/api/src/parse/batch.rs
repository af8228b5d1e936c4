//! Many requests in one body. Each is independent: an invalid one does not fail the others.

use engine::node::NewTx;
use serde::de::{IgnoredAny, MapAccess, SeqAccess};

use crate::parse::RuleViolation;
use crate::parse::json::{
    FieldFault, FieldName, Fields, Json, ReadList, ReadObject, Skipped, read_field,
};
use crate::parse::tx::{RawTx, RequestContext, check, invalid_json};
use crate::problem::{Problem, ProblemKind};

const BATCH_MAX: usize = 500;

/// Parses the body of a batch: for each item the request, or its problem.
pub(crate) fn parse_batch(
    body: &[u8],
    context: RequestContext<'_>,
) -> Result<Vec<Result<NewTx, Problem>>, Problem> {
    let raw: Json<'_, RawBatch<'_>> = serde_json::from_slice(body).map_err(|e| invalid_json(&e))?;
    let Json::Object(raw) = raw else {
        let detail = format!("the body {}", raw.type_mismatch("an object").0);
        return Err(Problem::new(ProblemKind::InvalidField, detail));
    };
    if let Some(FieldFault { field, violation }) = raw.fault {
        return Err(violation.in_field(&field));
    }
    let items = match raw.txs {
        Some(Json::List(items)) => items,
        None => {
            return Err(
                RuleViolation::new("is missing: send the requests as an array").in_field("txs"),
            );
        }
        Some(other) => return Err(other.type_mismatch("an array").in_field("txs")),
    };
    if items.count > BATCH_MAX {
        let rule = format!(
            "has {} items, but at most {BATCH_MAX} are allowed: split the batch",
            items.count
        );
        return Err(RuleViolation::with_value(rule).in_field("txs"));
    }
    let items = items.raw.into_iter().enumerate();
    Ok(items
        .map(|(item, raw)| check(raw, context, Some(item)))
        .collect())
}

#[derive(Default)]
struct RawBatch<'a> {
    txs: Option<Json<'a, Skipped, Items<'a>>>,
    fault: Option<FieldFault>,
}

/// The items up to the limit, and the number of all items.
struct Items<'a> {
    raw: Vec<Json<'a, RawTx<'a>>>,
    count: usize,
}

impl<'a> Fields<'a> for RawBatch<'a> {
    const KNOWN: &'static str = "txs";

    fn field_slot(&mut self, _name: &str) -> Option<&mut Option<Json<'a>>> {
        None
    }
}

impl<'de> ReadObject<'de> for RawBatch<'de> {
    fn read_object<M: MapAccess<'de>>(mut map: M) -> Result<Self, M::Error> {
        let mut raw = Self::default();
        let mut fault = None;
        while let Some(FieldName(name)) = map.next_key()? {
            if name != "txs" {
                read_field(&mut map, &mut raw, &name, &mut fault)?;
            } else if raw.txs.replace(map.next_value()?).is_some() {
                fault.get_or_insert_with(|| FieldFault {
                    field: "txs".to_owned(),
                    violation: RuleViolation::new("is there twice: send it once"),
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
