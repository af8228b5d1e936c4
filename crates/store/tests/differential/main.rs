//! The twin is not a fiction: random sequences of operations on the simulator's store (its rows, and the
//! server in front of them that its nodes talk to), the embedded one and PostgreSQL, one after another.
//! Every answer and all that the stores hold at the end must be equal, but for what [`masks`] names.
//!
//! By default a run takes half a minute of new seeds, and prints them. `LANEKEEPER_SEQUENCES=100000`
//! takes so many (`proof/05-6-differential`), `LANEKEEPER_SEED` begins with this one. Stores that differ
//! are reported with the shortest sequence on which they do.

mod answers;
mod compare;
mod contents;
mod described;
mod draw;
mod masks;
mod model;
mod operation;
mod player;
mod report;
mod rules;
mod shrink;
mod side;
mod subjects;
mod universe;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rig::postgres::majors;

use crate::compare::{Tally, run};
use crate::draw::Sequence;
use crate::player::Player;
use crate::report::{Size, figure};
use crate::subjects::{Cluster, Embedded, Served, Twin};

/// In the order in which they are called. PostgreSQL is the reference, and the last.
const STORES: [&str; 4] = ["the twin", "its server", "the embedded store", "PostgreSQL"];
/// Each has stores of its own: while one waits for PostgreSQL, the other works.
const WORKERS: usize = 3;
/// After so many differences a run is over.
const DIFFERENCES_MAX: usize = 6;
/// After this many sequences a long run prints its progress.
const PROGRESS: u64 = 5_000;

/// State that all workers share.
struct Search {
    size: Size,
    began: Instant,
    first_seed: u64,
    next: AtomicU64,
    is_over: AtomicBool,
    found: Mutex<Totals>,
}

#[derive(Default)]
struct Totals {
    tally: Tally,
    /// Of each store, as in [`STORES`].
    spent: [Duration; STORES.len()],
    /// The seeds of reported differences.
    differences: Vec<u64>,
}

#[test]
fn the_twin_and_the_embedded_store_answer_as_postgresql_does() {
    let search = Search {
        size: report::size(),
        began: Instant::now(),
        first_seed: report::first_seed(),
        next: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        found: Mutex::default(),
    };
    eprintln!("seeds from {}, {:?}", search.first_seed, search.size);
    let majors = majors();
    let majors = [majors[0], majors[majors.len() - 1]];
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (search, major) = (&search, majors[worker % majors.len()]);
            scope.spawn(move || search.work(major));
        }
    });
    let totals = search.found.into_inner().expect("no worker panicked");
    let seconds = search.began.elapsed().as_secs().max(1);
    figure("sequences", totals.tally.sequences);
    figure("operations", totals.tally.operations);
    figure("commits applied", totals.tally.applied);
    figure("commits refused", totals.tally.refused);
    figure("seconds", seconds);
    for (name, spent) in STORES.iter().zip(totals.spent) {
        let millis = u64::try_from(spent.as_millis()).expect("hours").max(1);
        figure(
            &format!("sequences per second of work of {name}"),
            totals.tally.sequences * 1_000 / millis,
        );
    }
    figure("differences", totals.differences.len() as u64);
    assert!(
        totals.differences.is_empty(),
        "the stores differ, as told above: seeds {:?}",
        totals.differences
    );
    assert!(totals.tally.applied > 0, "nothing was shown");
}

impl Search {
    /// Draws and compares until there is enough, or a difference.
    fn work(&self, major: u32) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let cluster = Cluster::new(major).await;
            let mut players = [
                Player::in_this_thread(Box::new(Twin::new())),
                Player::in_own_thread(Box::new(Served::new())),
                Player::in_this_thread(Box::new(Embedded::new())),
                Player::in_this_thread(Box::new(cluster)),
            ];
            while let Some(seed) = self.next_seed() {
                self.compare(seed, &mut players).await;
            }
            let mut totals = self.found.lock().expect("no worker panicked");
            for (sum, player) in totals.spent.iter_mut().zip(&players) {
                *sum += player.spent();
            }
        });
    }

    async fn compare(&self, seed: u64, players: &mut [Player]) {
        let on_panic = Running(seed);
        let sequence = Sequence::draw(seed);
        let result = run(&sequence, players, false).await;
        let difference = match result {
            Ok(tally) => {
                let mut totals = self.found.lock().expect("no worker panicked");
                totals.tally.add(tally);
                if totals.tally.sequences.is_multiple_of(PROGRESS) {
                    eprintln!("{} sequences", totals.tally.sequences);
                }
                drop(on_panic);
                return;
            }
            Err(difference) => difference,
        };
        eprintln!("seed {seed}: the stores differ; shrinking");
        let (sequence, difference) = shrink::shrink(sequence, difference, players).await;
        let mut totals = self.found.lock().expect("no worker panicked");
        eprintln!("{}", report::text(&sequence, &difference));
        totals.differences.push(seed);
        if totals.differences.len() >= DIFFERENCES_MAX {
            self.is_over.store(true, Ordering::SeqCst);
        }
    }

    fn next_seed(&self) -> Option<u64> {
        let n = self.next.fetch_add(1, Ordering::SeqCst);
        let is_enough = match self.size {
            Size::Sequences(count) => n >= count,
            Size::Within(time) => self.began.elapsed() >= time,
        };
        let goes_on = !is_enough && !self.is_over.load(Ordering::SeqCst);
        goes_on.then(|| self.first_seed.wrapping_add(n))
    }
}

/// Says which sequence a panic happened in.
struct Running(u64);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("panicked in the sequence of seed {}", self.0);
        }
    }
}
