//! Many requests in one body. Each is independent: an invalid one does not fail the others.

use engine::node::NewTx;
use serde::de::{IgnoredAny, MapAccess, SeqAccess};

use crate::parse::RuleViolation;
use crate::parse::json::{FieldFault, Fields, Json, Object, ReadList, Skipped, fill};
use crate::parse::tx::{RawTx, RequestContext, check, invalid_json};
use crate::problem::{Problem, ProblemKind};

const BATCH_MAX: usize = 500;

/// Parses the body of a batch: for each item the request, or its problem.
pub(crate) fn parse_batch(
    body: &[u8],
    context: RequestContext<'_>,
) -> Result<Vec<Result<NewTx, Problem>>, Problem> {
    let raw: Json<'_, Object<RawBatch<'_>>> =
        serde_json::from_slice(body).map_err(|e| invalid_json(&e))?;
    let Json::Object(raw) = raw else {
        let detail = format!("the body {}", raw.type_mismatch("an object").0);
        return Err(Problem::new(ProblemKind::InvalidField, detail));
    };
    if let Some(FieldFault { field, violation }) = raw.fault {
        return Err(violation.in_field(&field));
    }
    let items = match raw.fields.txs {
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
        return Err(RuleViolation::new(rule).in_field("txs"));
    }
    let items = items.raw.into_iter().enumerate();
    Ok(items
        .map(|(item, raw)| check(raw, context, Some(item)))
        .collect())
}

#[derive(Default)]
struct RawBatch<'a> {
    txs: Option<Json<'a, Skipped, Items<'a>>>,
}

/// The items up to the limit, and the number of all items.
struct Items<'a> {
    raw: Vec<Json<'a, Object<RawTx<'a>>>>,
    count: usize,
}

impl<'de> Fields<'de> for RawBatch<'de> {
    const KNOWN: &'static str = "txs";

    fn read_value<M: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut M,
    ) -> Result<Option<bool>, M::Error> {
        match name {
            "txs" => fill(&mut self.txs, map),
            _ => Ok(None),
        }
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
