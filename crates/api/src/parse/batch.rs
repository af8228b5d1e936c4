//! Many requests in one body. Each is independent: an invalid one does not fail the others.

use engine::node::NewTx;
use serde::de::{IgnoredAny, MapAccess, SeqAccess};

use crate::parse::RuleViolation;
use crate::parse::json::{Fields, Json, Object, ReadList, Skipped, fill};
use crate::parse::tx::{RawTx, RequestContext, check, parse_object};
use crate::problem::Problem;

const BATCH_MAX: usize = 500;

/// Parses the body of a batch: for each item the request, or its problem.
pub(crate) fn parse_batch(
    body: &[u8],
    context: RequestContext<'_>,
) -> Result<Vec<Result<NewTx, Problem>>, Problem> {
    let Object(raw) = parse_object::<RawBatch<'_>>(body)?;
    let raw = raw.map_err(|fault| fault.violation.in_field(&fault.field))?;
    let items = match raw.txs {
        Some(Json::List(items)) if items.count > BATCH_MAX => Err(RuleViolation::new(format!(
            "has {} items, but at most {BATCH_MAX} are allowed: split the batch",
            items.count
        ))),
        Some(Json::List(items)) => Ok(items.raw.into_iter().enumerate()),
        None => Err(RuleViolation::new(
            "is missing: send the requests as an array",
        )),
        Some(other) => Err(other.type_mismatch("an array")),
    };
    let items = items.map_err(|violation| violation.in_field("txs"))?;
    let check_item = |(item, raw): (usize, Json<'_, Object<RawTx<'_>>>)| {
        let Json::Object(raw) = raw else {
            let violation = raw.type_mismatch("an object");
            return Err(violation.in_field(&format!("txs[{item}]")));
        };
        check(raw, context, Some(item))
    };
    Ok(items.map(check_item).collect())
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
