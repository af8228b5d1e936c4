//! Random operations: a sequence is a list of steps, each a verb and a seed. What a step does in
//! detail is decided when its turn comes, by what is current then: so steps can be left out, and the
//! others still make sense.

mod batch;
mod flaws;
mod lease_calls;
mod parts;
mod read_calls;
mod writes;

use sim::rng::Rng;

use crate::model::Model;
use crate::operation::{Incident, LeaseCall, Load, Operation, ReadCall, Write};
use crate::universe::BEAT;

/// The shortest and the longest sequence.
const STEPS: (u64, u64) = (20, 40);
/// Every sequence begins with this many lane acquisitions: without a keeper most operations are refused.
const ACQUIRES_FIRST: usize = 2;

/// The kind of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Acquire,
    Renew,
    Release,
    Regrant,
    MarkReconciled,
    Halt,
    AcceptLoss,
    Commit,
    Queue,
    PutHeaders,
    ExtendFeed,
    Heartbeat,
    Image,
    Backlog,
    Queued,
    FindRequests,
    LanesWithWork,
    Members,
    Tx,
    TxByRequest,
    TxByHash,
    Txs,
    TxEvents,
    Events,
    Lanes,
    Advance,
    Promote,
}

/// How often each is drawn, of the sum of all.
const WEIGHTS: [(Verb, u64); 27] = [
    (Verb::Acquire, 9),
    (Verb::Renew, 3),
    (Verb::Release, 2),
    (Verb::Regrant, 3),
    (Verb::MarkReconciled, 1),
    (Verb::Halt, 1),
    (Verb::AcceptLoss, 2),
    (Verb::Commit, 34),
    (Verb::Queue, 7),
    (Verb::PutHeaders, 4),
    (Verb::ExtendFeed, 3),
    (Verb::Heartbeat, 3),
    (Verb::Image, 4),
    (Verb::Backlog, 2),
    (Verb::Queued, 2),
    (Verb::FindRequests, 2),
    (Verb::LanesWithWork, 2),
    (Verb::Members, 1),
    (Verb::Tx, 2),
    (Verb::TxByRequest, 1),
    (Verb::TxByHash, 2),
    (Verb::Txs, 3),
    (Verb::TxEvents, 2),
    (Verb::Events, 5),
    (Verb::Lanes, 2),
    (Verb::Advance, 5),
    (Verb::Promote, 1),
];

/// One step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) verb: Verb,
    seed: u64,
}

/// A list of steps, and in what kind of world they are taken.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) seed: u64,
    /// Whether every commit is appended to the feed at once, or by separate steps.
    pub(crate) is_fed_at_once: bool,
    pub(crate) steps: Vec<Step>,
}

impl Sequence {
    pub(crate) fn draw(seed: u64) -> Self {
        let rng = Rng::new(seed);
        let (is_fed_at_once, has_promotions) = (rng.permille(500), rng.permille(200));
        let count = rng.between(STEPS.0, STEPS.1);
        let steps = (0..count).map(|n| {
            let verb = match n {
                n if n < ACQUIRES_FIRST as u64 => Verb::Acquire,
                _ => verb(&rng, has_promotions),
            };
            let seed = rng.bits();
            Step { verb, seed }
        });
        Self {
            seed,
            is_fed_at_once,
            steps: steps.collect(),
        }
    }
}

fn verb(rng: &Rng, has_promotions: bool) -> Verb {
    let sum: u64 = WEIGHTS.iter().map(|(_, weight)| weight).sum();
    let mut at = rng.below(sum);
    for (verb, weight) in WEIGHTS {
        if at < weight {
            let left_out = matches!(verb, Verb::Promote) && !has_promotions;
            return if left_out { Verb::Commit } else { verb };
        }
        at -= weight;
    }
    unreachable!("the weights are all of the sum")
}

impl Step {
    /// The operation of this step, given the present state.
    pub(crate) fn operation(&self, model: &mut Model) -> Operation {
        let rng = &Rng::new(self.seed);
        match self.verb {
            Verb::Acquire => lease_call(lease_calls::acquire(rng, model)),
            Verb::Renew => lease_call(lease_calls::renew(rng, model)),
            Verb::Release => lease_call(lease_calls::release(rng, model)),
            Verb::Regrant => lease_call(lease_calls::regrant(rng, model)),
            Verb::MarkReconciled => lease_call(LeaseCall::MarkReconciled(
                lease_calls::lease_grant(rng, model),
            )),
            Verb::Halt => lease_call(lease_calls::halt(rng, model)),
            Verb::AcceptLoss => lease_call(LeaseCall::AcceptLoss(lease_calls::key(rng))),
            Verb::Commit => write(batch::commit(rng, model)),
            Verb::Queue => write(writes::queue(rng, model)),
            Verb::PutHeaders => write(writes::put_headers(rng)),
            Verb::ExtendFeed => write(writes::extend_feed(rng)),
            Verb::Heartbeat => write(writes::heartbeat(rng, model)),
            Verb::Image => load(read_calls::image(rng, model)),
            Verb::Backlog => load(read_calls::backlog(rng)),
            Verb::Queued => load(Load::Queued(read_calls::lane(rng), read_calls::limit(rng))),
            Verb::FindRequests => load(read_calls::find_requests(rng)),
            Verb::LanesWithWork => load(Load::LanesWithWork(lease_calls::requester(rng, model))),
            Verb::Members => read_call(ReadCall::Members),
            Verb::Tx => read_call(ReadCall::Tx(read_calls::tx_id(rng, model))),
            Verb::TxByRequest => read_call(read_calls::tx_by_request(rng)),
            Verb::TxByHash => read_call(ReadCall::TxByHash(read_calls::hash(rng, model))),
            Verb::Txs => read_call(read_calls::txs(rng, model)),
            Verb::TxEvents => read_call(ReadCall::TxEvents(read_calls::tx_id(rng, model))),
            Verb::Events => read_call(read_calls::events(rng, model)),
            Verb::Lanes => read_call(read_calls::lanes(rng)),
            Verb::Advance => {
                let heartbeats = *rng.pick(&[1, 2, 5]);
                Operation::Incident(Incident::Advance(BEAT * heartbeats))
            }
            Verb::Promote => Operation::Incident(Incident::Promote),
        }
    }
}

fn lease_call(lease_call: LeaseCall) -> Operation {
    Operation::LeaseCall(lease_call)
}

fn write(write: Write) -> Operation {
    Operation::Write(write)
}

fn load(load: Load) -> Operation {
    Operation::Load(load)
}

fn read_call(read_call: ReadCall) -> Operation {
    Operation::ReadCall(read_call)
}
