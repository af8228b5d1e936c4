//! Signed and unfinished transactions of a previous incarnation. An application that keeps its signed bytes can finish
//! them; otherwise it would leave a submitted nonce that cannot be freed.

use std::collections::BTreeMap;
use std::path::Path;

use domain::{B256, Holder, Nonce, Timestamp};
use proof::Outcome;
use serde_json::Value;

use crate::nonce_source::ReservedNonce;

/// A signed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SignedPayment {
    pub(crate) reserved: ReservedNonce,
    pub(crate) hash: B256,
    /// Its bytes in hex.
    pub(crate) raw: String,
}

/// Reads the journal of the previous incarnations, if there is one.
pub(crate) fn read(journal: &Path) -> Outcome<Vec<SignedPayment>> {
    if !journal.exists() {
        return Ok(Vec::new());
    }
    let mut open: BTreeMap<String, SignedPayment> = BTreeMap::new();
    for line in std::fs::read_to_string(journal)?.lines() {
        let line: Value = serde_json::from_str(line)?;
        let holder = line["holder"].as_str().unwrap_or_default().to_owned();
        match line["kind"].as_str() {
            Some("signed") => {
                open.insert(holder, payment(&line)?);
            }
            Some("used" | "left" | "dropped") => {
                open.remove(&holder);
            }
            Some(_) | None => {}
        }
    }
    Ok(open.into_values().collect())
}

fn payment(line: &Value) -> Outcome<SignedPayment> {
    let text = |key: &str| {
        line[key]
            .as_str()
            .ok_or_else(|| format!("no {key}: {line}"))
    };
    Ok(SignedPayment {
        reserved: ReservedNonce {
            nonce: Nonce(line["nonce"].as_u64().ok_or("no nonce")?),
            holder: Holder(text("holder")?.parse()?),
            expires_at: Timestamp(0), // irrelevant: the nonce is submitted, or its submission is refused
        },
        hash: text("hash")?.parse()?,
        raw: text("raw")?.to_owned(),
    })
}
