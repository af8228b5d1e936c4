//! Operations by chance: a sequence is a list of steps, each a verb and a seed. What a step asks for in
//! detail is decided when its turn comes, by what is current then: so steps can be left out, and the
//! others still make sense.

mod batch;
mod flaws;
mod holds;
mod looks;
mod parts;
mod writes;

use sim::rng::Rng;

use crate::model::Model;
use crate::operation::{Happen, Hold, Load, Look, Operation, Write};
use crate::universe::BEAT;

/// The shortest and the longest sequence.
const STEPS: (u64, u64) = (20, 40);
/// Every sequence begins with so many lanes asked for: without a keeper most else is refused.
const ACQUIRES_FIRST: usize = 2;

/// What a step does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Acquire,
    Renew,
    Release,
    Regrant,
    Settle,
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
    (Verb::Settle, 1),
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
    /// Whether every commit is put into the feed at once, or whenever somebody thinks of it.
    pub(crate) is_fed_at_once: bool,
    /// Whether a standby may take over.
    pub(crate) has_promotions: bool,
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
            has_promotions,
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
    /// What is asked, with what is current.
    pub(crate) fn operation(&self, model: &mut Model) -> Operation {
        let rng = &Rng::new(self.seed);
        match self.verb {
            Verb::Acquire => hold(holds::acquire(rng, model)),
            Verb::Renew => hold(holds::renew(rng, model)),
            Verb::Release => hold(holds::release(rng, model)),
            Verb::Regrant => hold(holds::regrant(rng, model)),
            Verb::Settle => hold(Hold::Settle(holds::lease_grant(rng, model))),
            Verb::Halt => hold(holds::halt(rng, model)),
            Verb::AcceptLoss => hold(Hold::AcceptLoss(holds::key(rng))),
            Verb::Commit => write(batch::commit(rng, model)),
            Verb::Queue => write(writes::queue(rng, model)),
            Verb::PutHeaders => write(writes::put_headers(rng)),
            Verb::ExtendFeed => write(writes::extend_feed(rng)),
            Verb::Heartbeat => write(writes::heartbeat(rng, model)),
            Verb::Image => load(looks::image(rng, model)),
            Verb::Backlog => load(looks::backlog(rng)),
            Verb::Queued => load(Load::Queued(looks::lane(rng), looks::limit(rng))),
            Verb::FindRequests => load(looks::find_requests(rng)),
            Verb::LanesWithWork => load(Load::LanesWithWork(holds::asker(rng, model))),
            Verb::Members => look(Look::Members),
            Verb::Tx => look(Look::Tx(looks::tx_id(rng, model))),
            Verb::TxByRequest => look(looks::tx_by_request(rng)),
            Verb::TxByHash => look(Look::TxByHash(looks::hash(rng, model))),
            Verb::Txs => look(looks::txs(rng, model)),
            Verb::TxEvents => look(Look::TxEvents(looks::tx_id(rng, model))),
            Verb::Events => look(looks::events(rng, model)),
            Verb::Lanes => look(looks::lanes(rng)),
            Verb::Advance => {
                let heartbeats = *rng.pick(&[1, 2, 5]);
                Operation::Happen(Happen::Advance(BEAT * heartbeats))
            }
            Verb::Promote => Operation::Happen(Happen::Promote),
        }
    }
}

fn hold(hold: Hold) -> Operation {
    Operation::Hold(hold)
}

fn write(write: Write) -> Operation {
    Operation::Write(write)
}

fn load(load: Load) -> Operation {
    Operation::Load(load)
}

fn look(look: Look) -> Operation {
    Operation::Look(look)
}
