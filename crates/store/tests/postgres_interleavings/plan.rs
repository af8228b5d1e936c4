//! All meetings of pairs and triples, and playing them on several stages at once.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rig::postgres::Server;
use sim::rng::Rng;

use crate::actors::Kind;
use crate::locks::Lock;
use crate::meetings::{Meeting, Tally, Theatre};
use crate::orders::Orders;
use crate::scene::Base;

/// How many stages are played on at once.
const STAGES: usize = 3;

/// After how many meetings the progress is printed.
const REPORT_EVERY: u64 = 200;

/// Triples with two of a kind: readers that append to the feed at once, keepers that take a lane from each
/// other, and batches of one memory.
const DOUBLES: [[Kind; 3]; 8] = [
    [Kind::Gate, Kind::Read, Kind::Read],
    [Kind::Accept, Kind::Read, Kind::Read],
    [Kind::Gate, Kind::Gate, Kind::Load],
    [Kind::Gate, Kind::Gate, Kind::Regrant],
    [Kind::Gate, Kind::Queue, Kind::Queue],
    [Kind::Accept, Kind::Queue, Kind::Queue],
    [Kind::Gate, Kind::Takeover, Kind::Takeover],
    [Kind::Gate, Kind::Load, Kind::Load],
];

/// Every pair and triple, with open transactions and with each row that one of them touches in
/// a row that another session holds.
pub(crate) fn all() -> Vec<Meeting> {
    let mut meetings = Vec::new();
    let mut all = sets(2);
    all.extend(Kind::ALL.map(|kind| vec![kind, kind]));
    all.extend(sets(3));
    all.extend(DOUBLES.map(|kinds| kinds.to_vec()));
    for kinds in &all {
        for base in bases(kinds) {
            let meeting = |is_held, lock| Meeting {
                kinds: kinds.clone(),
                base,
                is_held,
                lock,
            };
            meetings.push(meeting(true, None));
            for lock in touched(kinds) {
                meetings.push(meeting(false, Some(lock)));
                if kinds.len() == 2 {
                    meetings.push(meeting(true, Some(lock)));
                }
            }
        }
    }
    meetings
}

/// All sets of so many different kinds.
fn sets(of: usize) -> Vec<Vec<Kind>> {
    let mut sets: Vec<Vec<Kind>> = vec![Vec::new()];
    for _ in 0..of {
        let larger = sets.into_iter().flat_map(|set| {
            let last = set.last().copied();
            let more = Kind::ALL.into_iter();
            let more = more.filter(move |kind| last.is_none_or(|last| last < *kind));
            more.map(move |kind| [set.clone(), vec![kind]].concat())
        });
        sets = larger.collect();
    }
    sets
}

/// The leases from which a set of actors begins: always one that everybody may take, and the others
/// where they make a difference.
fn bases(kinds: &[Kind]) -> Vec<Base> {
    let is_worth_it = |base: &Base| match base {
        Base::Live => kinds.contains(&Kind::Release),
        Base::Lapsed => kinds.contains(&Kind::Renew) || kinds.len() == 2,
        Base::Silent => true,
    };
    Base::ALL.into_iter().filter(is_worth_it).collect()
}

/// The rows that one of these touches. Three actors meet the gate stopped at its fence, behind it, at a
/// key that others want too, and at its end; all its other stops are the second of these again.
fn touched(kinds: &[Kind]) -> impl Iterator<Item = Lock> {
    let is_again = |lock: &Lock| {
        let again = [
            Lock::WaitingTxRow,
            Lock::NonceKey,
            Lock::AttemptKey,
            Lock::AttemptRow,
            Lock::QueueRow,
        ];
        kinds.len() > 2 && again.contains(lock)
    };
    let is_touched = |lock: &Lock| kinds.iter().any(|kind| kind.touches().contains(lock));
    let all = Lock::ALL.into_iter();
    all.filter(move |lock| is_touched(lock) && !is_again(lock))
}

/// How much of each meeting is played.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Share {
    /// Every order.
    All,
    /// Meetings by chance, a few orders of each, until the time is over.
    Within(Duration),
}

/// The results.
#[derive(Debug, Default)]
pub(crate) struct Played {
    /// How many there are.
    pub(crate) all: usize,
    pub(crate) meetings: u64,
    pub(crate) of_pairs: Tally,
    pub(crate) of_triples: Tally,
}

/// Plays meetings on a server.
pub(crate) fn play(server: &Server, mut meetings: Vec<Meeting>, share: Share, seed: u64) -> Played {
    let rng = Rng::new(seed);
    let until = match share {
        Share::All => None,
        Share::Within(time) => {
            shuffle(&mut meetings, &rng);
            Some(Instant::now() + time)
        }
    };
    let played = Mutex::new(Played {
        all: meetings.len(),
        ..Played::default()
    });
    let left = Mutex::new(VecDeque::from(meetings));
    let next = || {
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
        if is_over { None } else { left.pop_front() }
    };
    thread::scope(|scope| {
        for _ in 0..STAGES {
            scope.spawn(|| play_until_none_is_left(server, next, share, &rng, &played));
        }
    });
    played.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn play_until_none_is_left(
    server: &Server,
    next: impl Fn() -> Option<Meeting>,
    share: Share,
    rng: &Rng,
    played: &Mutex<Played>,
) {
    const ORDERS_OF_EACH: u64 = 4;
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut theatre = Theatre::new(server.clone()).await;
        while let Some(meeting) = next() {
            let orders = match share {
                Share::All => Orders::all(rng.split()),
                Share::Within(_) => Orders::some(ORDERS_OF_EACH, rng.split()),
            };
            let tally = theatre.play(&meeting, orders).await;
            for received in &tally.received {
                eprintln!("unsafe: {received}"); // at once: the rest may take an hour
            }
            let mut played = played.lock().unwrap_or_else(PoisonError::into_inner);
            played.meetings += 1;
            if played.meetings.is_multiple_of(REPORT_EVERY) {
                let orders = played.of_pairs.orders + played.of_triples.orders;
                let (meetings, all) = (played.meetings, played.all);
                eprintln!("{meetings} of {all} meetings, {orders} orders");
            }
            match meeting.kinds.len() {
                2 => played.of_pairs.add(tally),
                _ => played.of_triples.add(tally),
            }
        }
    });
}

fn shuffle(meetings: &mut [Meeting], rng: &Rng) {
    for end in (1..meetings.len()).rev() {
        let other = rng.below(end as u64 + 1);
        meetings.swap(end, usize::try_from(other).expect("it is below the end"));
    }
}

#[test]
fn sets_are_complete() {
    assert_eq!(sets(2).len(), 36);
    assert_eq!(sets(3).len(), 84);
}
