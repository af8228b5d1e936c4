//! A request for a tx: which lane, which key, and the payload.

use domain::ids::BadRequestId;
use domain::{Address, ChainId, LaneKey, RequestId};
use engine::node::{NewTx, Origin};
use serde::de::MapAccess;

use crate::parse::account::address;
use crate::parse::json::{Fault, Fields, Json, Name, ReadObject, read_field};
use crate::parse::payload::RawPayload;
use crate::parse::{Broken, excerpt};
use crate::problem::{Problem, ProblemKind};

/// What the door knows besides the body.
#[derive(Clone, Copy)]
pub(crate) struct Door<'a> {
    /// Header `Idempotency-Key`: the same thing as `requestId`.
    pub(crate) key: Option<&'a str>,
    /// The only chain, when there is just one: `chainId` may be left out.
    pub(crate) only_chain: Option<ChainId>,
    /// Who asks.
    pub(crate) origin: &'a Origin,
}

/// Reads the body of one request.
pub(crate) fn new_tx(body: &[u8], door: Door<'_>) -> Result<NewTx, Problem> {
    let raw: Json<'_, RawTx<'_>> = serde_json::from_slice(body).map_err(|e| not_json(&e))?;
    check(raw, door, None)
}

/// The body is not JSON at all.
pub(super) fn not_json(error: &serde_json::Error) -> Problem {
    Problem::new(
        ProblemKind::InvalidJson,
        format!("the body cannot be read as JSON: {error}; send one JSON object"),
    )
}

/// The fields of a request as they came.
#[derive(Debug, Default)]
pub(super) struct RawTx<'a> {
    chain_id: Option<Json<'a>>,
    signer: Option<Json<'a>>,
    request_id: Option<Json<'a>>,
    payload: Option<Json<'a, RawPayload<'a>>>,
    fault: Option<Fault>,
}

impl<'a> Fields<'a> for RawTx<'a> {
    const KNOWN: &'static str = "chainId, signer, requestId, payload";

    fn slot(&mut self, name: &str) -> Option<&mut Option<Json<'a>>> {
        match name {
            "chainId" => Some(&mut self.chain_id),
            "signer" => Some(&mut self.signer),
            "requestId" => Some(&mut self.request_id),
            _ => None,
        }
    }
}

impl<'de> ReadObject<'de> for RawTx<'de> {
    fn read_object<M: MapAccess<'de>>(mut map: M) -> Result<Self, M::Error> {
        let mut raw = Self::default();
        let mut fault = None;
        while let Some(Name(name)) = map.next_key()? {
            if name != "payload" {
                read_field(&mut map, &mut raw, &name, &mut fault)?;
            } else if raw.payload.replace(map.next_value()?).is_some() {
                fault.get_or_insert_with(|| Fault {
                    field: "payload".to_owned(),
                    broken: Broken::rule("is there twice: send it once"),
                });
            }
        }
        raw.fault = fault;
        Ok(raw)
    }
}

/// Checks the rules, in the order in which people write the fields. `item` is the place in a batch.
pub(super) fn check(
    raw: Json<'_, RawTx<'_>>,
    door: Door<'_>,
    item: Option<usize>,
) -> Result<NewTx, Problem> {
    let at = |path: &str, broken: Broken| match item {
        Some(item) => broken.field(&format!("txs[{item}].{path}")),
        None => broken.field(path),
    };
    let Json::Object(raw) = raw else {
        let broken = raw.is_not("an object");
        return Err(match item {
            Some(item) => broken.field(&format!("txs[{item}]")),
            None => Problem::new(ProblemKind::InvalidField, format!("the body {}", broken.0)),
        });
    };
    if let Some(Fault { field, broken }) = raw.fault {
        return Err(at(&field, broken));
    }
    let lane = LaneKey {
        chain_id: chain(raw.chain_id, door.only_chain).map_err(|broken| at("chainId", broken))?,
        signer: signer(raw.signer).map_err(|broken| at("signer", broken))?,
    };
    let request_id = match (raw.request_id, door.key) {
        (None | Some(Json::Null), None) => {
            let broken = Broken::rule(
                "is missing: send your own key for this effect, 1 to 128 visible ASCII characters",
            );
            return Err(at("requestId", broken));
        }
        (None | Some(Json::Null), Some(key)) => {
            request_id(key).map_err(|broken| broken.header("Idempotency-Key"))?
        }
        (Some(json), key) => {
            let id = json
                .text("a string")
                .and_then(request_id)
                .map_err(|broken| at("requestId", broken))?;
            check_same_key(&id, key)?;
            id
        }
    };
    let payload = match raw.payload {
        Some(Json::Object(payload)) => payload,
        None => return Err(at("payload", Broken::rule("is missing: say what to send"))),
        Some(other) => return Err(at("payload", other.is_not("an object"))),
    };
    if let Some(Fault { field, broken }) = payload.fault {
        return Err(at(&format!("payload.{field}"), broken));
    }
    let payload = payload.check().map_err(|(path, broken)| at(path, broken))?;
    Ok(NewTx {
        lane,
        request_id,
        payload,
        origin: door.origin.clone(),
        estimated_gas: None,
    })
}

fn chain(json: Option<Json<'_>>, only_chain: Option<ChainId>) -> Result<ChainId, Broken> {
    match json {
        None | Some(Json::Null) => only_chain.ok_or_else(|| {
            Broken::rule("is missing: this node serves several chains, so say which one")
        }),
        Some(Json::Number(id)) => Ok(ChainId(id)),
        Some(Json::OtherNumber) => Err(Broken::rule(
            "must be a whole, non-negative number below 2^64, such as 31337",
        )),
        Some(other @ (Json::Bool | Json::Text(_) | Json::List(_) | Json::Object(_))) => {
            Err(other.is_not("a number, such as 31337"))
        }
    }
}

fn signer(json: Option<Json<'_>>) -> Result<Address, Broken> {
    match json {
        None | Some(Json::Null) => Err(Broken::rule(
            "is missing: send the address of the account that signs",
        )),
        Some(json) => json.text("an address as a string").and_then(address),
    }
}

/// A request id, from wherever it comes.
pub(crate) fn request_id(text: &str) -> Result<RequestId, Broken> {
    RequestId::parse(text).map_err(|BadRequestId| {
        Broken::by(format!(
            "must be 1 to {} visible ASCII characters without spaces, not {}",
            RequestId::LEN_MAX,
            excerpt(text)
        ))
    })
}

fn check_same_key(id: &RequestId, key: Option<&str>) -> Result<(), Problem> {
    match key {
        Some(key) if key != id.as_str() => Err(Problem::new(
            ProblemKind::InvalidHeader,
            format!(
                "header `Idempotency-Key` is {}, but `requestId` is {}: they mean the same thing, \
                 so send one of them or the same in both",
                excerpt(key),
                excerpt(id.as_str())
            ),
        )),
        Some(_) | None => Ok(()),
    }
}
