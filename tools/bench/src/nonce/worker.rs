//! A worker process: a node whose nonce component is called in process, as an application does that uses it as
//! a library. The parent sends requests over standard input, one per line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use alloy_primitives::{Address, B256};
use cli::{Failure, print_line};
use domain::{ChainId, LaneKey, Mark, Reservation};
use engine::ports::{NonceReservations, ReservationError};
use futures::FutureExt as _;
use futures::future::{BoxFuture, try_join_all};
use hdrhistogram::Histogram;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::setup::Work;
use super::worker_protocol::{Load, WorkerAnswer, WorkerRequest, new_histogram, to_ranges};
use crate::null_chain::CHAIN_ID;

/// How long opening a lane may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between attempts to open a lane.
const OPEN_PAUSE: Duration = Duration::from_millis(25);
/// The pause before a retry when the queue is full.
const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// The parent sends one request at a time.
const REQUESTS_MAX: usize = 1;

/// Serves requests of the parent until standard input ends. The caller has started the node.
pub fn serve_worker(
    reservations: Arc<dyn NonceReservations>,
) -> BoxFuture<'static, Result<(), Failure>> {
    async move {
        print_line!("{}", json!({ "ready": true }));
        let mut requests = read_requests();
        while let Some(line) = requests.recv().await {
            let request = serde_json::from_str(&line)
                .map_err(|e| Failure::refused("cannot decode the request", &e))?;
            let answer = match request {
                WorkerRequest::Open { lanes } => open_lanes(&*reservations, &lanes).await?,
                WorkerRequest::Run(load) => run_load(&reservations, load).await?,
            };
            let answer = serde_json::to_string(&answer).expect("the answer is serializable");
            print_line!("{answer}");
        }
        Ok(())
    }
    .boxed()
}

/// Reads the lines of standard input until it ends.
fn read_requests() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(REQUESTS_MAX);
    // A thread, because the runtime would wait for the blocking read of a task at shutdown.
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Reserves one nonce of each lane.
async fn open_lanes(
    reservations: &dyn NonceReservations,
    lanes: &[Address],
) -> Result<WorkerAnswer, Failure> {
    let opened = try_join_all(lanes.iter().map(|signer| open_lane(reservations, *signer))).await;
    let opened =
        opened.map_err(|e| Failure::refused("cannot reserve the first nonce of a lane", &e))?;
    let mut answer = WorkerAnswer::default();
    for reservation in opened {
        answer.done += 1;
        let nonce = reservation.nonce.0;
        let of_lane = answer.reserved.entry(reservation.lane.signer).or_default();
        of_lane.push((nonce, nonce));
    }
    Ok(answer)
}

async fn open_lane(
    reservations: &dyn NonceReservations,
    signer: Address,
) -> Result<Reservation, ReservationError> {
    let deadline = Instant::now() + OPEN_TIMEOUT;
    loop {
        match reservations.allocate(lane_key(signer)).await {
            Err(error) if error.is_worth_repeating() && Instant::now() < deadline => {
                tokio::time::sleep(OPEN_PAUSE).await;
            }
            answer => return answer,
        }
    }
}

async fn run_load(
    reservations: &Arc<dyn NonceReservations>,
    load: Load,
) -> Result<WorkerAnswer, Failure> {
    let load = Arc::new(load);
    let left = Arc::new(AtomicU64::new(load.allocations_max));
    let started = Instant::now();
    let end = started + Duration::from_millis(load.duration_ms);
    let mut clients = JoinSet::new();
    for number in 0..load.clients {
        let client = Client {
            reservations: Arc::clone(reservations),
            load: Arc::clone(&load),
            left: Arc::clone(&left),
            end,
            tally: Tally::default(),
        };
        clients.spawn(client.run(number.into()));
    }
    let mut all = Tally::default();
    while let Some(ended) = clients.join_next().await {
        all.add(ended.map_err(|e| Failure::refused("a client failed", &e))?);
    }
    if load.until_written {
        // The call returns when all reservations of this process are written.
        let first = load.lanes.first().copied().unwrap_or_default();
        let written = reservations.list_reservations(lane_key(first)).await;
        written.map_err(|e| Failure::refused("cannot write the reservations", &e))?;
    }
    Ok(all.into_answer(started.elapsed(), &load.lanes))
}

fn lane_key(signer: Address) -> LaneKey {
    LaneKey {
        chain_id: ChainId(CHAIN_ID),
        signer,
    }
}

/// One caller, which waits for each answer.
struct Client {
    reservations: Arc<dyn NonceReservations>,
    load: Arc<Load>,
    /// How many nonces this process may still reserve.
    left: Arc<AtomicU64>,
    end: Instant,
    tally: Tally,
}

/// What the callers of a worker counted.
struct Tally {
    failed: u64,
    failure: Option<String>,
    busy: u64,
    latency: Histogram<u64>,
    /// The reserved nonces, each with the index of its lane in the load.
    reserved: Vec<(usize, u64)>,
    done: u64,
}

impl Client {
    async fn run(mut self, number: usize) -> Tally {
        let mut index = number;
        while Instant::now() < self.end && self.claim_allocation() {
            let lane = index % self.load.lanes.len().max(1);
            // All clients together cycle through all lanes.
            index += usize::from(self.load.clients);
            let started = Instant::now();
            match self.reserve_once(lane).await {
                Ok(()) => {
                    self.tally.done += 1;
                    let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                    self.tally.latency.saturating_record(micros);
                }
                Err(error) => {
                    self.tally.failed += 1;
                    self.tally.failure.get_or_insert_with(|| error.to_string());
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
            }
        }
        self.tally
    }

    /// Claims one of the remaining allocations.
    fn claim_allocation(&self) -> bool {
        let decrement = |left: u64| left.checked_sub(1);
        let claimed = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrement);
        claimed.is_ok()
    }

    async fn reserve_once(&mut self, lane: usize) -> Result<(), ReservationError> {
        let key = lane_key(self.load.lanes.get(lane).copied().unwrap_or_default());
        let reservation = loop {
            match self.reservations.allocate(key).await {
                Err(ReservationError::Busy) => self.pause_before_retry().await,
                answer => break answer?,
            }
        };
        self.tally.reserved.push((lane, reservation.nonce.0));
        match self.load.work {
            Work::Allocate => Ok(()),
            Work::Cycle => {
                let hash = B256::from(rand::random::<[u8; 32]>());
                self.mark(&reservation, Mark::Submitted(hash)).await?;
                self.mark(&reservation, Mark::Used(hash)).await
            }
        }
    }

    async fn mark(&mut self, held: &Reservation, mark: Mark) -> Result<(), ReservationError> {
        loop {
            let marked = (self.reservations)
                .mark(held.lane, held.nonce, held.holder, mark.clone())
                .await;
            match marked {
                Err(ReservationError::Busy) => self.pause_before_retry().await,
                answer => return answer.map(|_reservation| ()),
            }
        }
    }

    async fn pause_before_retry(&mut self) {
        self.tally.busy += 1;
        tokio::time::sleep(BUSY_PAUSE).await;
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            failed: 0,
            failure: None,
            busy: 0,
            latency: new_histogram(),
            reserved: Vec::new(),
            done: 0,
        }
    }
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.done += other.done;
        self.failed += other.failed;
        self.failure = self.failure.take().or(other.failure);
        self.busy += other.busy;
        self.latency.add(&other.latency).expect("the same bounds");
        self.reserved.extend(other.reserved);
    }

    fn into_answer(self, elapsed: Duration, lanes: &[Address]) -> WorkerAnswer {
        let mut by_lane = vec![Vec::new(); lanes.len()];
        for (lane, nonce) in self.reserved {
            by_lane[lane].push(nonce);
        }
        let latency = self.latency.iter_recorded();
        WorkerAnswer {
            done: self.done,
            failed: self.failed,
            failure: self.failure,
            busy: self.busy,
            elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            latency: latency
                .map(|at| (at.value_iterated_to(), at.count_at_value()))
                .collect(),
            reserved: (lanes.iter().copied())
                .zip(by_lane.into_iter().map(to_ranges))
                .collect(),
        }
    }
}
