//! What a former life of this borrower left: transactions that were signed and not finished. A business that
//! keeps its signed bytes can finish them; one that does not would leave a nonce that nobody may ever free.

use std::collections::BTreeMap;
use std::path::Path;

use domain::{B256, Holder, Nonce, Timestamp};
use proof::Outcome;
use serde_json::Value;

use crate::door::ReservationTerms;

/// A signed transaction on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sale {
    pub(crate) loan: ReservationTerms,
    pub(crate) hash: B256,
    /// Its bytes in hex.
    pub(crate) raw: String,
}

/// Reads the journal of the former lives, if there were any.
pub(crate) fn read(journal: &Path) -> Outcome<Vec<Sale>> {
    if !journal.exists() {
        return Ok(Vec::new());
    }
    let mut open: BTreeMap<String, Sale> = BTreeMap::new();
    for line in std::fs::read_to_string(journal)?.lines() {
        let line: Value = serde_json::from_str(line)?;
        let holder = line["holder"].as_str().unwrap_or_default().to_owned();
        match line["kind"].as_str() {
            Some("signed") => {
                open.insert(holder, sale(&line)?);
            }
            Some("used" | "left" | "dropped") => {
                open.remove(&holder);
            }
            Some(_) | None => {}
        }
    }
    Ok(open.into_values().collect())
}

fn sale(line: &Value) -> Outcome<Sale> {
    let text = |key: &str| {
        line[key]
            .as_str()
            .ok_or_else(|| format!("no {key}: {line}"))
    };
    Ok(Sale {
        loan: ReservationTerms {
            nonce: Nonce(line["nonce"].as_u64().ok_or("no nonce")?),
            holder: Holder(text("holder")?.parse()?),
            expires_at: Timestamp(0), // it was announced, or is refused now: its time does not matter any more
        },
        hash: text("hash")?.parse()?,
        raw: text("raw")?.to_owned(),
    })
}
