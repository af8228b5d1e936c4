//! A worker: a whole node in a process of its own, whose nonce component is called from inside the process, as
//! a business does that has it as a library. What the parent asks for comes by standard input, line by line.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use alloy_primitives::{Address, B256};
use domain::{ChainId, LaneKey, Mark, Reservation};
use engine::ports::{NonceReservations, ReservationError};
use futures::future::try_join_all;
use hdrhistogram::Histogram;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::super::null_chain::CHAIN_ID;
use super::plan::Work;
use super::talk::{Answer, Load, Order, latencies, rows};
use crate::commands::read_generated;
use crate::failure::Failure;
use crate::output::say;
use crate::wiring::Running;

/// How long a lane may take to be opened.
const OPEN_WITHIN: Duration = Duration::from_secs(30);
/// How soon it is tried again.
const OPEN_PAUSE: Duration = Duration::from_millis(25);
/// How soon a caller comes back that was told to.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// The parent waits for each answer.
const ORDERS_MAX: usize = 1;

/// Works until standard input ends.
pub(in crate::bench) async fn work(config: &Path) -> Result<(), Failure> {
    let config = read_generated(config)?;
    let running = Running::start(&config).await?;
    let lender = running.lender().ok_or_else(|| {
        Failure::Usage("no account lends its nonces in this configuration".to_owned())
    })?;
    say!("{}", json!({ "ready": true }));
    let mut orders = orders();
    while let Some(line) = orders.recv().await {
        let order = serde_json::from_str(&line).map_err(|e| Failure::refused("the order", &e))?;
        let answer = match order {
            Order::Open { lanes } => open(&*lender, &lanes).await?,
            Order::Run(load) => run(&lender, load).await?,
        };
        let answer = serde_json::to_string(&answer).expect("numbers and texts are JSON");
        say!("{answer}");
    }
    running.drain_and_stop().await;
    Ok(())
}

/// The lines of standard input, until it ends.
fn orders() -> mpsc::Receiver<String> {
    let (tell, told) = mpsc::channel(ORDERS_MAX);
    // A thread and not a task: the runtime would wait for its read at the end of the process.
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if tell.blocking_send(line).is_err() {
                return;
            }
        }
    });
    told
}

/// Borrows one nonce of each lane.
async fn open(lender: &dyn NonceReservations, lanes: &[Address]) -> Result<Answer, Failure> {
    let lent = try_join_all(lanes.iter().map(|signer| open_one(lender, *signer))).await;
    let lent = lent.map_err(|e| Failure::refused("a lane lends nothing", &e))?;
    let mut answer = Answer::default();
    for reservation in lent {
        answer.done += 1;
        let nonce = reservation.nonce.0;
        let of_lane = answer.lent.entry(reservation.lane.signer).or_default();
        of_lane.push((nonce, nonce));
    }
    Ok(answer)
}

async fn open_one(
    lender: &dyn NonceReservations,
    signer: Address,
) -> Result<Reservation, ReservationError> {
    let deadline = Instant::now() + OPEN_WITHIN;
    loop {
        match lender.allocate(lane(signer)).await {
            Err(error) if error.is_worth_repeating() && Instant::now() < deadline => {
                tokio::time::sleep(OPEN_PAUSE).await;
            }
            answer => return answer,
        }
    }
}

async fn run(lender: &Arc<dyn NonceReservations>, load: Load) -> Result<Answer, Failure> {
    let load = Arc::new(load);
    let left = Arc::new(AtomicU64::new(load.allocations_max));
    let started = Instant::now();
    let end = started + Duration::from_millis(load.duration_ms);
    let mut clients = JoinSet::new();
    for number in 0..load.clients {
        let client = Client {
            lender: Arc::clone(lender),
            load: Arc::clone(&load),
            left: Arc::clone(&left),
            end,
            seen: Seen::default(),
        };
        clients.spawn(client.run(number.into()));
    }
    let mut all = Seen::default();
    while let Some(ended) = clients.join_next().await {
        all.add(ended.map_err(|e| Failure::refused("a client ended badly", &e))?);
    }
    if load.until_written {
        // It answers when everything that this process handed out is written down.
        let first = load.lanes.first().copied().unwrap_or_default();
        let written = lender.list_reservations(lane(first)).await;
        written.map_err(|e| Failure::refused("loans are not written down", &e))?;
    }
    Ok(all.answer(started.elapsed(), &load.lanes))
}

fn lane(signer: Address) -> LaneKey {
    LaneKey {
        chain_id: ChainId(CHAIN_ID),
        signer,
    }
}

/// One caller, who waits for each answer.
struct Client {
    lender: Arc<dyn NonceReservations>,
    load: Arc<Load>,
    /// How many nonces may still be lent in this process.
    left: Arc<AtomicU64>,
    end: Instant,
    seen: Seen,
}

/// What callers saw.
struct Seen {
    failed: u64,
    failure: Option<String>,
    busy: u64,
    latency: Histogram<u64>,
    /// Which lane, by its place in the load, and which nonce.
    lent: Vec<(usize, u64)>,
    done: u64,
}

impl Client {
    async fn run(mut self, number: usize) -> Seen {
        let mut turn = number;
        while Instant::now() < self.end && self.may_borrow() {
            let place = turn % self.load.lanes.len().max(1);
            // All clients together go round all lanes.
            turn += usize::from(self.load.clients);
            let started = Instant::now();
            match self.once(place).await {
                Ok(()) => {
                    self.seen.done += 1;
                    let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                    self.seen.latency.saturating_record(micros);
                }
                Err(error) => {
                    self.seen.failed += 1;
                    self.seen.failure.get_or_insert_with(|| error.to_string());
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
            }
        }
        self.seen
    }

    fn may_borrow(&self) -> bool {
        let take = |left: u64| left.checked_sub(1);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.is_ok()
    }

    async fn once(&mut self, place: usize) -> Result<(), ReservationError> {
        let lane = lane(self.load.lanes.get(place).copied().unwrap_or_default());
        let reservation = loop {
            match self.lender.allocate(lane).await {
                Err(ReservationError::Busy) => self.come_back().await,
                answer => break answer?,
            }
        };
        self.seen.lent.push((place, reservation.nonce.0));
        match self.load.work {
            Work::Allocate => Ok(()),
            Work::Cycle => {
                let hash = B256::from(rand::random::<[u8; 32]>());
                self.mark(&reservation, Mark::Submitted(hash)).await?;
                self.mark(&reservation, Mark::Used(hash)).await
            }
        }
    }

    async fn mark(&mut self, lent: &Reservation, mark: Mark) -> Result<(), ReservationError> {
        loop {
            let said = (self.lender)
                .mark(lent.lane, lent.nonce, lent.holder, mark.clone())
                .await;
            match said {
                Err(ReservationError::Busy) => self.come_back().await,
                answer => return answer.map(|_reservation| ()),
            }
        }
    }

    /// What a business does that is told that too much is under way.
    async fn come_back(&mut self) {
        self.seen.busy += 1;
        tokio::time::sleep(BUSY_PAUSE).await;
    }
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            failed: 0,
            failure: None,
            busy: 0,
            latency: latencies(),
            lent: Vec::new(),
            done: 0,
        }
    }
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.done += other.done;
        self.failed += other.failed;
        self.failure = self.failure.take().or(other.failure);
        self.busy += other.busy;
        self.latency.add(&other.latency).expect("the same bounds");
        self.lent.extend(other.lent);
    }

    fn answer(self, elapsed: Duration, lanes: &[Address]) -> Answer {
        let mut by_lane = vec![Vec::new(); lanes.len()];
        for (place, nonce) in self.lent {
            by_lane[place].push(nonce);
        }
        let latency = self.latency.iter_recorded();
        Answer {
            done: self.done,
            failed: self.failed,
            failure: self.failure,
            busy: self.busy,
            elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            latency: latency
                .map(|at| (at.value_iterated_to(), at.count_at_value()))
                .collect(),
            lent: (lanes.iter().copied())
                .zip(by_lane.into_iter().map(rows))
                .collect(),
        }
    }
}
