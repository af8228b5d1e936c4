//! Whether a nonce was ever in two hands, or used twice, by what the borrowers wrote and what the chain shows.

use std::collections::{BTreeMap, BTreeSet};

use proof::{Chain, Outcome};
use serde_json::{Value, json};

use crate::journal::{Journals, ReservationTerms};

/// How many findings of a kind are told; one is too many.
const TOLD_MAX: usize = 5;

/// What was compared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Audited {
    pub(crate) loans: usize,
    pub(crate) mined: usize,
    /// Nonces that were lent more than once, one holder after the other.
    pub(crate) lent_again: usize,
    /// Loans that only the chain closed.
    pub(crate) left: usize,
}

/// Everything with everything; an error tells what was found.
pub(crate) async fn audit(
    journals: &Journals,
    chain: &Chain,
    account: &str,
    top: u64,
) -> Outcome<Audited> {
    let mut by_nonce: BTreeMap<u64, Vec<&ReservationTerms>> = BTreeMap::new();
    for loan in journals.loans() {
        by_nonce.entry(loan.nonce).or_default().push(loan);
    }
    let mut findings = Vec::new();
    for loans in by_nonce.values() {
        findings.extend(overlaps(loans));
        findings.extend(offered_twice(loans));
        findings.extend(broken_words(loans));
    }
    let mined = mined_from(chain, account).await?;
    findings.extend(strangers(&mined, &by_nonce));
    let missing: Vec<u64> = (0..=top).filter(|n| !mined.contains_key(n)).collect();
    if !missing.is_empty() {
        findings.push(format!("not on chain: {missing:?}"));
    }
    if findings.is_empty() {
        return Ok(Audited {
            loans: journals.loans().count(),
            mined: mined.len(),
            lent_again: by_nonce.values().filter(|loans| loans.len() > 1).count(),
            left: journals.loans().filter(|loan| loan.is_left).count(),
        });
    }
    let count = findings.len();
    findings.truncate(TOLD_MAX);
    Err(format!("{count} findings: {}", findings.join("; ")).into())
}

/// A nonce has one holder at a time: of any two, one had it before the other. (In which order is not clear from the
/// lines alone: a borrower that was frozen writes its line down late.)
fn overlaps(loans: &[&ReservationTerms]) -> Vec<String> {
    let mut found = Vec::new();
    for (number, one) in loans.iter().enumerate() {
        for other in &loans[number + 1..] {
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

/// The next one may have it only after the one before was about to give it back, or after its time was over and
/// nothing was announced for it, neither before nor later.
fn was_before(one: &ReservationTerms, next: &ReservationTerms) -> bool {
    let gave_back = one.returning_at.is_some_and(|at| at <= next.lent_at);
    let was_over = one.expires_at <= next.granted_at() && one.announced_at.is_none();
    gave_back || was_over
}

/// Two different transactions for one nonce.
fn offered_twice(loans: &[&ReservationTerms]) -> Option<String> {
    let offered = loans.iter().flat_map(|loan| &loan.offered);
    let hashes: BTreeSet<&String> = offered.collect();
    let nonce = loans.first()?.nonce;
    (hashes.len() > 1).then(|| format!("nonce {nonce} was offered {} times", hashes.len()))
}

/// What was acknowledged and refused later.
fn broken_words(loans: &[&ReservationTerms]) -> Vec<String> {
    let broken = loans
        .iter()
        .filter(|loan| loan.announced_at.is_some() && loan.dropped.is_some());
    broken
        .map(|loan| format!("announced, and refused later: {loan:?}"))
        .collect()
}

/// What was mined without being offered for that nonce.
fn strangers(
    mined: &BTreeMap<u64, String>,
    by_nonce: &BTreeMap<u64, Vec<&ReservationTerms>>,
) -> Vec<String> {
    let is_offered = |nonce: &u64, hash: &String| {
        let loans = by_nonce.get(nonce).map_or(&[][..], Vec::as_slice);
        loans.iter().any(|loan| loan.offered.contains(hash))
    };
    let strange = mined
        .iter()
        .filter(|(nonce, hash)| !is_offered(nonce, hash));
    strange
        .map(|(nonce, hash)| format!("{hash} was mined at nonce {nonce} and offered by nobody"))
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

    fn loan(holder: &str, lent_at: u64) -> ReservationTerms {
        ReservationTerms {
            nonce: 7,
            holder: holder.to_owned(),
            lent_at,
            expires_at: lent_at + RESERVATION_US,
            ..ReservationTerms::default()
        }
    }

    #[test]
    fn two_hands_are_found() {
        let (first, next) = (loan("a", 0), loan("b", RESERVATION_US / 2));
        assert_eq!(overlaps(&[&first, &next]).len(), 1);
        // After its time, unless something was announced: then never.
        let late = loan("b", RESERVATION_US);
        assert!(overlaps(&[&first, &late]).is_empty());
        let announced = ReservationTerms {
            announced_at: Some(2 * RESERVATION_US),
            ..first.clone()
        };
        assert_eq!(overlaps(&[&announced, &late]).len(), 1);
        let given = ReservationTerms {
            returning_at: Some(40),
            ..first
        };
        assert!(overlaps(&[&given, &next]).is_empty());
        assert!(overlaps(&[&next, &given]).is_empty());
    }

    #[test]
    fn two_transactions_are_found() {
        let offer = |holder: &str, hash: &str| ReservationTerms {
            offered: vec![hash.to_owned(), hash.to_owned()],
            ..loan(holder, 0)
        };
        assert!(offered_twice(&[&offer("a", "x")]).is_none());
        assert!(offered_twice(&[&offer("a", "x"), &offer("b", "y")]).is_some());
    }
}
