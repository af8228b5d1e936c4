//! Measurements, run by hand:
//! `cargo test --release -p chain --test devchain -- --ignored bench:: --nocapture`

use std::time::Instant;

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, B256, TxKind, hex, keccak256};
use alloy_signer::SignerSync;
use alloy_signer_local::Secp256k1Signer;
use chain::devchain::dev_accounts;
use serde_json::{Value, json};

use crate::durability::ChildChain;
use crate::support::{Client, transfer, until};

const BATCH: usize = 100;
const SENDERS: u32 = 10;

/// Signs transfers to ever new recipients, from the ten accounts in turn.
struct Load {
    signers: Vec<Secp256k1Signer>,
    made: u64,
}

impl Load {
    fn new() -> Self {
        let signer = |key: &B256| Secp256k1Signer::from_bytes(key).expect("a key");
        let accounts = dev_accounts(SENDERS);
        Self {
            signers: accounts.iter().map(|(_, key)| signer(key)).collect(),
            made: 0,
        }
    }

    fn next(&mut self) -> String {
        let nonce = self.made / u64::from(SENDERS);
        let sender = usize::try_from(self.made % u64::from(SENDERS)).expect("below ten");
        let recipient = Address::from_word(keccak256(self.made.to_be_bytes()));
        self.made += 1;
        let tx = TxEip1559 {
            to: TxKind::Call(recipient),
            ..transfer(nonce)
        };
        let signature = self.signers[sender]
            .sign_hash_sync(&tx.signature_hash())
            .expect("signs");
        hex::encode_prefixed(TxEnvelope::from(tx.into_signed(signature)).encoded_2718())
    }

    fn batch(&mut self) -> Value {
        let call = |id: usize, raw: String| {
            let params = [raw];
            json!({"jsonrpc": "2.0", "id": id, "method": "eth_sendRawTransaction", "params": params})
        };
        (0..BATCH).map(|id| call(id, self.next())).collect()
    }

    /// Every sender has sent equally many, so the last one's nonce tells for all.
    async fn all_mined(&self, client: &Client) {
        let last = self.signers.last().expect("ten senders").address();
        let nonce = self.made / u64::from(SENDERS);
        until("all txs", async || {
            (client.nonce(last, "latest").await == nonce).then_some(())
        })
        .await;
    }
}

async fn send(client: &Client, batch: &Value) {
    let answers = client.post_json(batch).await;
    let answers = answers.as_array().expect("a batch");
    let refused = answers.iter().find(|answer| !answer["error"].is_null());
    assert!(refused.is_none(), "{refused:?}");
}

#[tokio::test]
#[ignore = "a measurement"]
async fn throughput_of_signed_transfers() {
    const TXS: usize = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let chain = ChildChain::start(folder.path());
    let mut load = Load::new();
    let batches: Vec<Value> = (0..TXS / BATCH).map(|_| load.batch()).collect();
    let started = Instant::now();
    for batch in &batches {
        send(&chain.client, batch).await;
    }
    let accepted = started.elapsed();
    load.all_mined(&chain.client).await;
    let mined = started.elapsed();
    let rate = |time: std::time::Duration| TXS as f64 / time.as_secs_f64();
    let blocks = chain.client.height().await;
    eprintln!(
        "{TXS} transfers: accepted {:.0}/s, mined {:.0}/s, in {blocks} blocks, {:.1} s of CPU, {} kB",
        rate(accepted),
        rate(mined),
        cpu_seconds(chain.id()),
        resident_kb(chain.id())
    );
    chain.kill();
}

#[tokio::test]
#[ignore = "a measurement"]
async fn memory_while_the_chain_grows() {
    const STEP: usize = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let chain = ChildChain::start(folder.path());
    let mut load = Load::new();
    eprintln!("{:>7} txs: {} kB", 0, resident_kb(chain.id()));
    for _ in 0..20 {
        for _ in 0..STEP / BATCH {
            let batch = load.batch();
            send(&chain.client, &batch).await;
        }
        load.all_mined(&chain.client).await;
        eprintln!("{:>7} txs: {} kB", load.made, resident_kb(chain.id()));
    }
    chain.kill();
}

fn resident_kb(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("alive");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("a line");
    line.trim()
        .trim_end_matches(" kB")
        .parse()
        .expect("a number")
}

fn cpu_seconds(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("alive");
    let (_, fields) = stat.rsplit_once(')').expect("the name is in brackets");
    // User and system time, in ticks of 10 ms.
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks
        .map(|ticks| ticks.parse::<f64>().expect("a number") / 100.0)
        .sum()
}
