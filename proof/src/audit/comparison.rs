//! The comparison of promises, txs, balances and blocks.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{B256, U256};
use serde_json::Value;

use super::{AuditCounts, AuditReport, Expected, Finding, FindingKind, Mined, is_open, text};
use crate::ledger::Payment;

/// The request id prefix of fillers.
const FILLER: &str = "lanekeeper-filler-";

/// The data that must agree.
pub(super) struct AuditData<'a> {
    pub(super) lanes: &'a [String],
    /// By request id.
    pub(super) payments: &'a BTreeMap<String, Payment>,
    pub(super) txs: &'a [Value],
    /// Balances of the recipients, by request id.
    pub(super) balances: BTreeMap<String, U256>,
    /// By sender.
    pub(super) mined: BTreeMap<String, Vec<Mined>>,
    pub(super) expected: &'a Expected,
}

impl AuditData<'_> {
    pub(super) fn compare(&self) -> AuditReport {
        let mut found = Vec::new();
        let stored = self.by_request(&mut found);
        let mut counted = AuditCounts {
            stored: stored.len(),
            foreign: self.expected.foreign.len(),
            ..AuditCounts::default()
        };
        self.compare_promises(&stored, &mut counted, &mut found);
        self.compare_balances(&stored, &mut found);
        self.compare_nonces(&mut found);
        AuditReport {
            counted,
            findings: found,
        }
    }

    fn by_request(&self, found: &mut Vec<Finding>) -> BTreeMap<&str, &Value> {
        let mut stored = BTreeMap::new();
        for tx in self.txs {
            let id = text(tx, "requestId");
            if stored.insert(id, tx).is_some() {
                found.push(duplicated(format!("{id} has two txs")));
            }
            if is_open(tx) {
                found.push(stuck(format!("{id} has not ended: {tx}")));
            }
        }
        stored
    }

    /// Every promise is kept, and the store contains only requested txs.
    fn compare_promises(
        &self,
        stored: &BTreeMap<&str, &Value>,
        counted: &mut AuditCounts,
        found: &mut Vec<Finding>,
    ) {
        for (id, payment) in self.payments {
            let Some(promise) = &payment.promise else {
                continue; // its response was lost, or it was refused; the balance shows which
            };
            counted.promised += 1;
            let Some(tx) = stored.get(id.as_str()) else {
                found.push(lost(format!("{id} was accepted and is not in the store")));
                continue;
            };
            // Where foreign programs use the account, a nonce may be theirs, and the tx moves to another.
            let keeps_nonce = promise.nonce.is_none() || tx["nonce"].as_u64() == promise.nonce;
            let extends_reported = keeps_nonce || !self.expected.foreign.is_empty();
            if tx["txId"] != promise.tx_id.as_str() || !extends_reported {
                found.push(broken(format!("{id}: promised {promise:?}, stored {tx}")));
            }
            if self.expected.rejected.contains(&promise.tx_id) {
                counted.rejected += 1;
                if tx["state"] != "FAILED_FINAL" || tx["subState"] != "rejected" {
                    found.push(broken(format!("{id} should be rejected: {tx}")));
                }
            } else if tx["state"] == "CONFIRMED" {
                counted.paid += 1;
            } else if !is_open(tx) {
                found.push(lost(format!("{id} was accepted and failed: {tx}")));
            }
        }
        for id in stored.keys().filter(|id| !self.payments.contains_key(**id)) {
            if id.starts_with(FILLER) {
                counted.no_ops += 1;
            } else {
                found.push(broken(format!("{id} was never requested")));
            }
        }
        counted.no_ops += counted.rejected; // a filler consumes the nonce of each
    }

    /// 1 wei for each confirmed tx, none for the others.
    fn compare_balances(&self, stored: &BTreeMap<&str, &Value>, found: &mut Vec<Finding>) {
        for (id, balance) in &self.balances {
            let tx = stored.get(id.as_str());
            let is_paid = tx.is_some_and(|tx| tx["state"] == "CONFIRMED");
            let text = format!("{id}: {balance} wei arrived, in the store: {tx:?}");
            if *balance > U256::ONE {
                found.push(duplicated(text));
            } else if is_paid && balance.is_zero() {
                found.push(lost(text));
            } else if !is_paid && !balance.is_zero() && !tx.is_some_and(|tx| is_open(tx)) {
                found.push(broken(text));
            }
        }
    }

    /// Each mined nonce belongs to one tx of the store or to an expected foreign transaction, and vice versa. (The
    /// first nonce depends on the chain: ganache's is 1.)
    fn compare_nonces(&self, found: &mut Vec<Finding>) {
        let mut foreign: BTreeSet<B256> = self.expected.foreign.iter().copied().collect();
        for lane in self.lanes {
            let mut of_store = self.mined_by_store(lane, found);
            let none = Vec::new();
            let on_chain = self.mined.get(&lane.to_lowercase()).unwrap_or(&none);
            let mut next = on_chain.first().map_or(0, |mined| mined.nonce);
            for Mined { hash, nonce, to } in on_chain {
                if *nonce != next {
                    let text = format!("{lane}: nonce {nonce} instead of {next}");
                    found.push(broken(text));
                }
                next = nonce + 1;
                if foreign.remove(hash) {
                    continue;
                }
                let Some(tx) = of_store.remove(hash) else {
                    let text = format!("{lane}: {hash} at nonce {nonce} is in no tx of the store");
                    found.push(duplicated(text));
                    continue;
                };
                let is_payment = tx["state"] == "CONFIRMED";
                let fits = !is_payment || text(&tx["payload"], "to").to_lowercase() == *to;
                if tx["nonce"].as_u64() != Some(*nonce) || !fits {
                    let text = format!("{hash} on chain at nonce {nonce} to {to}, but {tx}");
                    found.push(broken(text));
                }
            }
            for tx in of_store.values() {
                found.push(lost(format!("not on chain: {tx}")));
            }
        }
        if !foreign.is_empty() {
            let text = format!("foreign transactions that are not on chain: {foreign:?}");
            found.push(broken(text));
        }
    }

    /// The mined txs of a lane, by hash.
    fn mined_by_store(&self, lane: &str, found: &mut Vec<Finding>) -> BTreeMap<B256, &Value> {
        let mut mined = BTreeMap::new();
        for tx in self.txs.iter().filter(|tx| text(tx, "signer") == lane) {
            let hash = tx["receipt"]["txHash"].as_str();
            match hash.and_then(|hash| hash.parse().ok()) {
                Some(hash) => {
                    mined.insert(hash, tx);
                }
                None if is_open(tx) => {}
                None => found.push(broken(format!("final without a receipt: {tx}"))),
            }
        }
        mined
    }
}

fn lost(text: String) -> Finding {
    let wrong = FindingKind::Lost;
    Finding { wrong, text }
}

fn duplicated(text: String) -> Finding {
    let wrong = FindingKind::Doubled;
    Finding { wrong, text }
}

fn stuck(text: String) -> Finding {
    let wrong = FindingKind::Stuck;
    Finding { wrong, text }
}

fn broken(text: String) -> Finding {
    let wrong = FindingKind::Broken;
    Finding { wrong, text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ledger::Promise;

    const LANE: &str = "0xAb";

    /// Consistent data, to be changed by the tests.
    struct World {
        payments: BTreeMap<String, Payment>,
        txs: Vec<Value>,
        balances: BTreeMap<String, U256>,
        mined: Vec<Mined>,
        expected: Expected,
    }

    fn hash(nonce: u64) -> B256 {
        U256::from(nonce + 1).into()
    }

    fn sound_data(count: u64) -> World {
        let ids = || (0..count).map(|nonce| (nonce, format!("r{nonce}")));
        let payment = |nonce: u64| Payment {
            signer: LANE.to_owned(),
            to: format!("0xTo{nonce}"),
            promise: Some(Promise {
                tx_id: format!("t{nonce}"),
                nonce: Some(nonce),
            }),
        };
        let tx = |(nonce, id): (u64, String)| {
            json!({"requestId": id, "txId": format!("t{nonce}"), "signer": LANE, "nonce": nonce,
                   "state": "CONFIRMED", "payload": {"to": format!("0xTo{nonce}")},
                   "receipt": {"txHash": hash(nonce)}})
        };
        World {
            payments: ids().map(|(nonce, id)| (id, payment(nonce))).collect(),
            txs: ids().map(tx).collect(),
            balances: ids().map(|(_, id)| (id, U256::ONE)).collect(),
            mined: ids()
                .map(|(nonce, _)| Mined {
                    hash: hash(nonce),
                    nonce,
                    to: format!("0xto{nonce}"),
                })
                .collect(),
            expected: Expected::default(),
        }
    }

    fn compare(world: &World) -> AuditReport {
        let comparison = AuditData {
            lanes: &[LANE.to_owned()],
            payments: &world.payments,
            txs: &world.txs,
            balances: world.balances.clone(),
            mined: BTreeMap::from([(LANE.to_lowercase(), world.mined.clone())]),
            expected: &world.expected,
        };
        comparison.compare()
    }

    fn wrongs(world: &World) -> Vec<FindingKind> {
        let findings = compare(world).findings;
        findings.iter().map(|found| found.wrong).collect()
    }

    #[test]
    fn consistent_data_has_no_findings() {
        let audited = compare(&sound_data(3));
        assert_eq!(audited.findings, []);
        let counted = audited.require_no_findings().unwrap();
        assert_eq!((counted.promised, counted.paid, counted.stored), (3, 3, 3));
    }

    #[test]
    fn missing_promise_is_lost() {
        let mut world = sound_data(3);
        world.txs.pop();
        world.mined.pop();
        world.balances.insert("r2".to_owned(), U256::ZERO);
        assert_eq!(wrongs(&world), [FindingKind::Lost]);
    }

    #[test]
    fn payment_that_arrives_twice_is_duplicated() {
        let mut world = sound_data(3);
        world.balances.insert("r1".to_owned(), U256::from(2));
        world.mined.push(Mined {
            hash: hash(77),
            nonce: 3,
            to: "0xto1".to_owned(),
        });
        assert_eq!(wrongs(&world), [FindingKind::Doubled, FindingKind::Doubled]);
    }

    #[test]
    fn open_tx_is_stuck_only() {
        let mut world = sound_data(2);
        world.txs[1]["state"] = json!("STUCK");
        world.txs[1]["receipt"] = Value::Null;
        world.mined.pop();
        world.balances.insert("r1".to_owned(), U256::ZERO);
        assert_eq!(wrongs(&world), [FindingKind::Stuck]);
    }

    #[test]
    fn moved_nonce_is_broken_unless_foreign_is_expected() {
        let mut world = sound_data(2);
        let promise = world.payments.get_mut("r1").unwrap().promise.as_mut();
        promise.unwrap().nonce = Some(9);
        assert_eq!(wrongs(&world), [FindingKind::Broken]);
        world.mined.push(Mined {
            hash: hash(50),
            nonce: 2,
            to: "0xelse".to_owned(),
        });
        world.expected.foreign = vec![hash(50)];
        assert_eq!(wrongs(&world), []);
    }

    #[test]
    fn fillers_are_counted_and_unknown_txs_are_broken() {
        let mut world = sound_data(2);
        world.payments.remove("r1");
        world.balances.remove("r1");
        world.txs[1]["requestId"] = json!("lanekeeper-filler-1");
        assert_eq!(compare(&world).require_no_findings().unwrap().no_ops, 1);
        world.txs[1]["requestId"] = json!("r9");
        assert_eq!(wrongs(&world), [FindingKind::Broken]);
    }
}
