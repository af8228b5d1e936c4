//! A request for a tx: lane, idempotency key and payload.

use domain::ids::BadRequestId;
use domain::{Address, ChainId, LaneKey, RequestId};
use engine::node::{NewTx, Origin};
use serde::de::MapAccess;

use crate::parse::identifier::address;
use crate::parse::json::{FieldFault, Fields, Json, Object, fill};
use crate::parse::payload::RawPayload;
use crate::parse::{FieldPath, RuleViolation, excerpt};
use crate::problem::{Problem, ProblemKind};

/// What is known of a request besides its body.
#[derive(Clone, Copy)]
pub(crate) struct RequestContext<'a> {
    /// Header `Idempotency-Key`, which means the same as `requestId`.
    pub(crate) key: Option<&'a str>,
    /// The only configured chain; then `chainId` may be omitted.
    pub(crate) only_chain: Option<ChainId>,
    /// The caller.
    pub(crate) origin: &'a Origin,
}

/// Parses the body of one request.
pub(crate) fn parse_new_tx(body: &[u8], context: RequestContext<'_>) -> Result<NewTx, Problem> {
    check(parse_object(body)?, context, None)
}

/// Parses a body that must be an object.
pub(super) fn parse_object<'a, F: Fields<'a>>(body: &'a [u8]) -> Result<Object<F>, Problem> {
    let json: Json<'a, Object<F>> = serde_json::from_slice(body).map_err(|error| {
        Problem::new(
            ProblemKind::InvalidJson,
            format!("the body cannot be read as JSON: {error}; send one JSON object"),
        )
    })?;
    let Json::Object(object) = json else {
        let violation = json.type_mismatch("an object");
        return Err(violation.in_body(FieldPath::new(&[])));
    };
    Ok(object)
}

/// Parses a body that must be an object with known fields.
pub(super) fn parse_fields<'a, F: Fields<'a>>(body: &'a [u8]) -> Result<F, Problem> {
    let Object(fields) = parse_object(body)?;
    fields.map_err(|fault| fault.violation.in_field(&fault.field))
}

/// The fields of a request before their rules are checked.
#[derive(Debug, Default)]
pub(super) struct RawTx<'a> {
    chain_id: Option<Json<'a>>,
    signer: Option<Json<'a>>,
    request_id: Option<Json<'a>>,
    payload: Option<Json<'a, Object<RawPayload<'a>>>>,
}

impl<'de> Fields<'de> for RawTx<'de> {
    const KNOWN: &'static str = "chainId, signer, requestId, payload";

    fn read_value<M: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut M,
    ) -> Result<Option<bool>, M::Error> {
        match name {
            "chainId" => fill(&mut self.chain_id, map),
            "signer" => fill(&mut self.signer, map),
            "requestId" => fill(&mut self.request_id, map),
            "payload" => fill(&mut self.payload, map),
            _ => Ok(None),
        }
    }
}

/// Checks the rules in the usual order of the fields. `item` is the index in a batch.
pub(super) fn check(
    Object(raw): Object<RawTx<'_>>,
    context: RequestContext<'_>,
    item: Option<usize>,
) -> Result<NewTx, Problem> {
    let violation_in = |fields: &[&str], violation: RuleViolation| {
        violation.in_body(FieldPath::in_item(item, fields))
    };
    let violation_at = |field: &str, violation: RuleViolation| violation_in(&[field], violation);
    let raw = raw.map_err(|fault| violation_at(&fault.field, fault.violation))?;
    let lane = LaneKey {
        chain_id: parse_chain(raw.chain_id, context.only_chain)
            .map_err(|violation| violation_at("chainId", violation))?,
        signer: parse_signer(raw.signer).map_err(|violation| violation_at("signer", violation))?,
    };
    let request_id = match (raw.request_id, context.key) {
        (None | Some(Json::Null), None) => {
            let violation = RuleViolation::new(
                "is missing: send your own idempotency key for this tx, 1 to 128 visible ASCII characters",
            );
            return Err(violation_at("requestId", violation));
        }
        (None | Some(Json::Null), Some(key)) => {
            request_id(key).map_err(|violation| violation.in_header("Idempotency-Key"))?
        }
        (Some(json), key) => {
            let id = json
                .text("a string")
                .and_then(request_id)
                .map_err(|violation| violation_at("requestId", violation))?;
            check_same_key(&id, key)?;
            id
        }
    };
    let payload = match raw.payload {
        Some(Json::Object(Object(payload))) => Ok(payload),
        None => Err(RuleViolation::new(
            "is missing: send the transaction's fields",
        )),
        Some(other) => Err(other.type_mismatch("an object")),
    };
    let payload = payload.map_err(|violation| violation_at("payload", violation))?;
    let payload = payload
        .map_err(|FieldFault { field, violation }| violation_in(&["payload", &field], violation))?;
    let payload = payload
        .validate()
        .map_err(|(field, violation)| violation_in(&["payload", field], violation))?;
    Ok(NewTx {
        lane,
        request_id,
        payload,
        origin: context.origin.clone(),
        estimated_gas: None,
    })
}

fn parse_chain(
    json: Option<Json<'_>>,
    only_chain: Option<ChainId>,
) -> Result<ChainId, RuleViolation> {
    match json {
        None | Some(Json::Null) => only_chain.ok_or_else(|| {
            RuleViolation::new("is missing: this node serves several chains, so name one")
        }),
        Some(Json::Number(id)) => Ok(ChainId(id)),
        Some(Json::OtherNumber) => Err(RuleViolation::new(
            "must be a whole, non-negative number below 2^64, such as 31337",
        )),
        Some(other @ (Json::Bool(_) | Json::Text(_) | Json::List(_) | Json::Object(_))) => {
            Err(other.type_mismatch("a number, such as 31337"))
        }
    }
}

fn parse_signer(json: Option<Json<'_>>) -> Result<Address, RuleViolation> {
    match json {
        None | Some(Json::Null) => Err(RuleViolation::new(
            "is missing: send the address of the account that signs",
        )),
        Some(json) => json.text("an address as a string").and_then(address),
    }
}

pub(crate) fn request_id(text: &str) -> Result<RequestId, RuleViolation> {
    RequestId::parse(text).map_err(|BadRequestId| {
        let max = RequestId::LEN_MAX;
        let expected = format!("1 to {max} visible ASCII characters without spaces");
        RuleViolation::must_be(&expected, text)
    })
}

fn check_same_key(id: &RequestId, key: Option<&str>) -> Result<(), Problem> {
    match key {
        Some(key) if key != id.as_str() => Err(Problem::new(
            ProblemKind::InvalidHeader,
            format!(
                "header `Idempotency-Key` is {}, but `requestId` is {}: they mean the same, so \
                 send one of them or the same value in both",
                excerpt(key),
                excerpt(id.as_str())
            ),
        )),
        Some(_) | None => Ok(()),
    }
}
