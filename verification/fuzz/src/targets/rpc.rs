//! Answers of nodes to every question that the chain adapter asks, over a real connection.
//!
//! The first part of an input is a question with its arguments (`receipts 0x…`); `two` before it asks two
//! endpoints, `chain` lets the node answer also which chain it serves. The other parts are answers, each
//! with its status in the first line; the last one is given again and again.

use std::fmt::Debug;
use std::str::FromStr;
use std::time::Duration;

use chain::rpc::{EndpointUrl, RpcChain, RpcChainConfig};
use domain::attempt::OutgoingEnvelope;
use domain::lane::ChainQuery;
use domain::{Address, B256, Bytes, Header, Inclusion, Nonce, U256};
use engine::ports::{BlockTag, CallRequest, Chain, Quorum};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::Target;
use crate::parts::parts;
use crate::worlds::node::CHAIN;
use crate::worlds::responder::Responder;
use crate::worlds::still_runtime;

/// One request may take so long, by the clock that stands still.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The whole answer must be there within this: a search for a consumer asks hundreds of times.
const ANSWER_AFTER_MAX: Duration = Duration::from_hours(2);
/// Hashes of one question: more of our own would take more memory than the answers do.
const HASHES_MAX: usize = 120;
/// The most headers that the engine asks for at once.
const HEADERS_MAX: u64 = 300;

pub(super) fn make() -> Box<dyn Target> {
    let runtime = still_runtime();
    let responder = runtime.block_on(Responder::start());
    Box::new(Rpc { responder, runtime })
}

struct Rpc {
    responder: Responder,
    runtime: Runtime,
}

impl Target for Rpc {
    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let parts = parts(input);
        let question = String::from_utf8_lossy(parts[0]);
        let mut words = WordReader::new(&question);
        let lies_about_chain = words.takes("chain");
        let count = if words.takes("two") { 2 } else { 1 };
        self.responder.answer_with(&parts[1..], lies_about_chain);
        self.runtime.block_on(async {
            // A new one for each input: what it learns of an endpoint must not change the next.
            let url = EndpointUrl::parse(&self.responder.url()).expect("an address of ours");
            let mut config = RpcChainConfig::new(CHAIN, vec![url; count]);
            config.request_timeout = REQUEST_TIMEOUT;
            config.send_to = count;
            let chain = RpcChain::new(config).expect("a good configuration");
            let asked = timeout(ANSWER_AFTER_MAX, call_chain(&chain, &mut words)).await;
            asked.map_err(|_over| "no result in time".to_owned())
        })
    }
}

/// The words of a question; a missing or wrong one is zero.
struct WordReader<'q> {
    words: std::iter::Peekable<std::str::SplitWhitespace<'q>>,
}

impl<'q> WordReader<'q> {
    fn new(question: &'q str) -> Self {
        Self {
            words: question.split_whitespace().peekable(),
        }
    }

    fn takes(&mut self, word: &str) -> bool {
        self.words.next_if_eq(&word).is_some()
    }

    fn next<T: FromStr + Default>(&mut self) -> T {
        let word = self.words.next().unwrap_or_default();
        word.parse().unwrap_or_default()
    }

    fn hashes(&mut self) -> Vec<B256> {
        let words = self.words.by_ref().take(HASHES_MAX);
        words.map(|word| word.parse().unwrap_or_default()).collect()
    }
}

/// Asks, and shows what comes: whatever it is, people may see it in a log.
async fn call_chain(chain: &RpcChain, words: &mut WordReader<'_>) {
    let question: String = words.next();
    match question.as_str() {
        "header" => show(&chain.header(tag(words)).await),
        "headers" => {
            let (from, count) = (words.next(), words.next::<u64>().min(HEADERS_MAX));
            show(&chain.headers(from, count).await);
        }
        "block_receipts" => show(&chain.block_receipts(words.next(), &|_| true).await),
        "has" => show(&chain.knows_transaction(words.next(), Quorum::Two).await),
        "receipts" => show(&chain.receipts(&words.hashes(), Quorum::Two).await),
        "revert_reason" => show(&chain.revert_reason(&inclusion(words)).await),
        "nonces" => show(
            &chain
                .account_nonces(words.next(), ChainQuery::Pending, Quorum::Two)
                .await,
        ),
        "consumer" => {
            let (account, nonce): (Address, u64) = (words.next(), words.next());
            let header = Header {
                number: words.next(),
                hash: words.next(),
                parent_hash: B256::ZERO,
                timestamp: 0,
            };
            show(&chain.find_consumer(account, Nonce(nonce), header).await);
        }
        "fee_quote" => quote_fees(chain).await,
        "estimate_gas" => show(&chain.estimate_gas(&call()).await),
        "send" => send(chain, words).await,
        _ => {
            // An unknown question is all of the short ones.
            quote_fees(chain).await;
            show(&chain.estimate_gas(&call()).await);
            send(chain, words).await;
        }
    }
    show(chain);
}

/// Fees for the newest block, or for one that the endpoint does not have.
async fn quote_fees(chain: &RpcChain) {
    let newest = chain.header(BlockTag::Latest).await;
    show(&newest);
    let followed = newest.ok().flatten().unwrap_or(Header {
        number: 1,
        hash: B256::ZERO,
        parent_hash: B256::ZERO,
        timestamp: 0,
    });
    show(&chain.fee_quote(&followed).await);
}

async fn send(chain: &RpcChain, words: &mut WordReader<'_>) {
    let trust = || Duration::from_secs(5);
    show(&chain.send(Address::ZERO, &outgoing(words), &trust).await);
}

fn show(what: &impl Debug) {
    std::hint::black_box(format!("{what:?}"));
}

fn tag(words: &mut WordReader<'_>) -> BlockTag {
    match words.next::<String>().as_str() {
        "safe" => BlockTag::Safe,
        "finalized" => BlockTag::Finalized,
        "number" => BlockTag::Number(words.next()),
        "hash" => BlockTag::Hash(words.next()),
        _ => BlockTag::Latest,
    }
}

fn inclusion(words: &mut WordReader<'_>) -> Inclusion {
    Inclusion {
        tx_hash: words.next(),
        block_number: words.next(),
        block_hash: B256::ZERO,
        succeeded: false,
        gas_used: words.next(),
        effective_gas_price: 0,
        contract_address: None,
        revert_reason: None,
    }
}

fn call() -> CallRequest {
    CallRequest {
        from: Address::ZERO,
        to: None,
        value: U256::ZERO,
        data: Bytes::new(),
        gas_max: None,
    }
}

/// One envelope for each hash; two where there is none, so that a batch is sent.
fn outgoing(words: &mut WordReader<'_>) -> Vec<OutgoingEnvelope> {
    let mut hashes = words.hashes();
    if hashes.is_empty() {
        hashes = vec![B256::repeat_byte(1), B256::repeat_byte(2)];
    }
    let envelope = |(nonce, hash)| OutgoingEnvelope {
        nonce: Nonce(nonce),
        hash,
        raw: Bytes::from_static(&[2, 0xc0]),
        others: vec![B256::repeat_byte(9)],
        to_all: false,
    };
    (0..).zip(hashes).map(envelope).collect()
}
