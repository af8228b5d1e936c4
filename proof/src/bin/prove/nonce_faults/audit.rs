//! Whether a nonce ever had two holders or was used twice, according to the holders' journals and the chain.

use std::collections::{BTreeMap, BTreeSet};

use proof::{Chain, Outcome};
use serde_json::{Value, json};

use crate::nonce_faults::journal::{HeldNonce, Journals};

/// Findings of a kind that are reported; one is too many.
const REPORTED_MAX: usize = 5;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Audited {
    pub(crate) reservations: usize,
    pub(crate) mined: usize,
    /// Nonces with several holders in succession.
    pub(crate) reissued: usize,
    /// Reservations that only the chain closed.
    pub(crate) left: usize,
}

/// Compares everything; an error contains the findings.
pub(crate) async fn audit(
    journals: &Journals,
    chain: &Chain,
    account: &str,
    top: u64,
) -> Outcome<Audited> {
    let mut by_nonce: BTreeMap<u64, Vec<&HeldNonce>> = BTreeMap::new();
    for reservation in journals.reservations() {
        by_nonce
            .entry(reservation.nonce)
            .or_default()
            .push(reservation);
    }
    let mut findings = Vec::new();
    for reservations in by_nonce.values() {
        findings.extend(overlaps(reservations));
        findings.extend(offered_twice(reservations));
        findings.extend(inconsistent_records(reservations));
    }
    let mined = mined_from(chain, account).await?;
    findings.extend(foreign_transactions(&mined, &by_nonce));
    let missing: Vec<u64> = (0..=top).filter(|n| !mined.contains_key(n)).collect();
    if !missing.is_empty() {
        findings.push(format!("not on chain: {missing:?}"));
    }
    if findings.is_empty() {
        return Ok(Audited {
            reservations: journals.reservations().count(),
            mined: mined.len(),
            reissued: by_nonce
                .values()
                .filter(|reservations| reservations.len() > 1)
                .count(),
            left: journals
                .reservations()
                .filter(|reservation| reservation.is_left)
                .count(),
        });
    }
    let count = findings.len();
    findings.truncate(REPORTED_MAX);
    Err(format!("{count} findings: {}", findings.join("; ")).into())
}

/// A nonce has one holder at a time: of any two, one had it before the other. (The order is not clear from the
/// lines alone: a frozen holder writes its line late.)
fn overlaps(reservations: &[&HeldNonce]) -> Vec<String> {
    let mut found = Vec::new();
    for (number, one) in reservations.iter().enumerate() {
        for other in &reservations[number + 1..] {
            if !was_before(one, other) && !was_before(other, one) {
                found.push(format!(
                    "nonce {} has two holders: {one:?} and {other:?}",
                    one.nonce
                ));
            }
        }
    }
    found
}

/// The next holder may have it only after the previous one was about to release it, or after its expiry without any
/// announced transaction.
fn was_before(one: &HeldNonce, next: &HeldNonce) -> bool {
    let gave_back = one.returning_at.is_some_and(|at| at <= next.allocated_at);
    let was_over = one.expires_at <= next.granted_at() && one.announced_at.is_none();
    gave_back || was_over
}

/// Two different transactions for one nonce.
fn offered_twice(reservations: &[&HeldNonce]) -> Option<String> {
    let offered = reservations
        .iter()
        .flat_map(|reservation| &reservation.offered);
    let hashes: BTreeSet<&String> = offered.collect();
    let nonce = reservations.first()?.nonce;
    (hashes.len() > 1).then(|| format!("nonce {nonce} was offered {} times", hashes.len()))
}

/// Marks that were acknowledged and refused later.
fn inconsistent_records(reservations: &[&HeldNonce]) -> Vec<String> {
    let broken = reservations
        .iter()
        .filter(|reservation| reservation.announced_at.is_some() && reservation.dropped.is_some());
    broken
        .map(|reservation| format!("announced, and refused later: {reservation:?}"))
        .collect()
}

/// Mined transactions that no holder offered for that nonce.
fn foreign_transactions(
    mined: &BTreeMap<u64, String>,
    by_nonce: &BTreeMap<u64, Vec<&HeldNonce>>,
) -> Vec<String> {
    let is_offered = |nonce: &u64, hash: &String| {
        let reservations = by_nonce.get(nonce).map_or(&[][..], Vec::as_slice);
        reservations
            .iter()
            .any(|reservation| reservation.offered.contains(hash))
    };
    let strange = mined
        .iter()
        .filter(|(nonce, hash)| !is_offered(nonce, hash));
    strange
        .map(|(nonce, hash)| format!("{hash} was mined at nonce {nonce} and offered by no holder"))
        .collect()
}

/// The account's transactions on chain, by nonce.
async fn mined_from(chain: &Chain, account: &str) -> Outcome<BTreeMap<u64, String>> {
    let height = chain.height().await?;
    let params: Vec<Value> = (0..=height)
        .map(|number| json!([format!("{number:#x}"), true]))
        .collect();
    let mut mined = BTreeMap::new();
    for block in chain.call_many("eth_getBlockByNumber", &params).await? {
        for tx in block["transactions"].as_array().into_iter().flatten() {
            let from = tx["from"].as_str().unwrap_or_default();
            if !from.eq_ignore_ascii_case(account) {
                continue;
            }
            let nonce = tx["nonce"].as_str().unwrap_or_default();
            let nonce = u64::from_str_radix(nonce.trim_start_matches("0x"), 16)?;
            let hash = tx["hash"].as_str().unwrap_or_default().to_owned();
            mined.insert(nonce, hash);
        }
    }
    Ok(mined)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVATION_US: u64 = 4_000_000;

    fn reservation(holder: &str, allocated_at: u64) -> HeldNonce {
        HeldNonce {
            nonce: 7,
            holder: holder.to_owned(),
            allocated_at,
            expires_at: allocated_at + RESERVATION_US,
            ..HeldNonce::default()
        }
    }

    #[test]
    fn overlapping_reservations_are_found() {
        let (first, next) = (reservation("a", 0), reservation("b", RESERVATION_US / 2));
        assert_eq!(overlaps(&[&first, &next]).len(), 1);
        // After its expiry, unless a transaction was announced: then never.
        let late = reservation("b", RESERVATION_US);
        assert!(overlaps(&[&first, &late]).is_empty());
        let announced = HeldNonce {
            announced_at: Some(2 * RESERVATION_US),
            ..first.clone()
        };
        assert_eq!(overlaps(&[&announced, &late]).len(), 1);
        let given = HeldNonce {
            returning_at: Some(40),
            ..first
        };
        assert!(overlaps(&[&given, &next]).is_empty());
        assert!(overlaps(&[&next, &given]).is_empty());
    }

    #[test]
    fn two_transactions_are_found() {
        let offer = |holder: &str, hash: &str| HeldNonce {
            offered: vec![hash.to_owned(), hash.to_owned()],
            ..reservation(holder, 0)
        };
        assert!(offered_twice(&[&offer("a", "x")]).is_none());
        assert!(offered_twice(&[&offer("a", "x"), &offer("b", "y")]).is_some());
    }
}
