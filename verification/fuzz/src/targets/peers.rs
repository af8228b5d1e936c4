//! Answers of other nodes of the cluster to requests that were handed to them, and to a bell.
//!
//! The first part of an input is `forward` or `ring` and how many; the others are answers, as for `rpc`.

use std::sync::Arc;
use std::time::Duration;

use api::peers::HttpPeers;
use domain::{LaneKey, Payload, RequestId, U256};
use engine::node::{NewTx, Origin};
use engine::ports::Peers as _;
use sim::clock::SimClock;
use tokio::runtime::Runtime;

use super::Target;
use crate::parts::{first_line, parts};
use crate::worlds::node::{CHAIN, SIGNER};
use crate::worlds::responder::Responder;
use crate::worlds::still_runtime;

/// More requests of ours would take more memory than the answers do.
const REQUESTS_MAX: usize = 20;
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn make() -> Box<dyn Target> {
    let runtime = still_runtime();
    let responder = runtime.block_on(Responder::start());
    let clock = runtime.block_on(async { SimClock::new(7) });
    let peers = HttpPeers::new(None, Arc::new(clock));
    Box::new(Asking {
        responder,
        peers,
        runtime,
    })
}

struct Asking {
    responder: Responder,
    peers: HttpPeers,
    runtime: Runtime,
}

impl Target for Asking {
    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let parts = parts(input);
        let (question, _) = first_line(parts[0]);
        let (what, count) = question.split_once(' ').unwrap_or((&question, "1"));
        let count = count.parse().unwrap_or(1).min(REQUESTS_MAX);
        self.responder.answer_with(&parts[1..], true);
        let address = self.responder.url();
        self.runtime.block_on(async {
            let outcome = if what == "ring" {
                let lane = LaneKey {
                    chain_id: CHAIN,
                    signer: SIGNER,
                };
                let notified = self.peers.notify(&address, &vec![lane; count]).await;
                format!("{notified:?}")
            } else {
                let requests = (0..count).map(request).collect();
                let answers = self.peers.forward(&address, requests, PATIENCE).await;
                format!("{answers:?}")
            };
            std::hint::black_box(outcome);
            Ok(())
        })
    }
}

fn request(number: usize) -> NewTx {
    NewTx {
        lane: LaneKey {
            chain_id: CHAIN,
            signer: SIGNER,
        },
        request_id: RequestId::parse(number.to_string()).expect("a number is a request id"),
        payload: Payload::transfer(SIGNER, U256::ZERO),
        origin: Origin::default(),
        estimated_gas: None,
    }
}
