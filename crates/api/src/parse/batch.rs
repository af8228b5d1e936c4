//! Many requests in one body. Each is independent: an invalid one does not fail the others.

use engine::node::NewTx;
use serde::de::{IgnoredAny, MapAccess, SeqAccess};
use serde_json::value::RawValue;

use crate::parse::json::{Fields, Json, Object, ReadList, Skipped, fill};
use crate::parse::tx::{RawTx, RequestContext, check, parse_fields};
use crate::parse::{FieldPath, RuleViolation};
use crate::problem::Problem;

const BATCH_MAX: usize = 500;

/// Parses the body of a batch: for each item the request, or its problem.
pub(crate) fn parse_batch(
    body: &[u8],
    context: RequestContext<'_>,
) -> Result<Vec<Result<NewTx, Problem>>, Problem> {
    let raw: RawBatch<'_> = parse_fields(body)?;
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
    let check_item = |(item, raw): (usize, &RawValue)| {
        let violation_in_item =
            |violation: RuleViolation| violation.in_body(FieldPath::in_item(Some(item), &[]));
        match serde_json::from_str::<Json<'_, Object<RawTx<'_>>>>(raw.get()) {
            Ok(Json::Object(raw)) => check(raw, context, Some(item)),
            Ok(other) => Err(violation_in_item(other.type_mismatch("an object"))),
            Err(error) => Err(violation_in_item(RuleViolation::new(format!(
                "has a value that cannot be read ({error}): correct it"
            )))),
        }
    };
    Ok(items.map(check_item).collect())
}

#[derive(Default)]
struct RawBatch<'a> {
    txs: Option<Json<'a, Skipped, Items<'a>>>,
}

/// The texts of the items up to the limit, and the number of all items. An item is read by itself, so that a value
/// which no type holds, such as 1e400, fails only its own.
struct Items<'a> {
    raw: Vec<&'a RawValue>,
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
