//! How long the disk itself stood still: a neighbour of the database writes a page and syncs it, again and
//! again. A pause that the disk made is nobody's doing, and is told apart from one that we made.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Outcome, Scratch};

/// What is written: a page of PostgreSQL's.
const PAGE: [u8; 8192] = [1; 8192];

/// Between two looks.
const REST: Duration = Duration::from_millis(10);

/// A sync that takes no longer is the disk at work.
const USUAL: Duration = Duration::from_millis(20);

/// Looks until it is dropped.
pub struct Disk {
    stalls: Arc<Mutex<Vec<Stall>>>,
    is_over: Arc<AtomicBool>,
    looking: Option<JoinHandle<()>>,
}

/// A sync that took unusually long.
#[derive(Clone, Copy)]
struct Stall {
    from: Instant,
    until: Instant,
}

impl Disk {
    /// Begins to look, on the disk where temporary files are.
    pub fn watch(scratch: &Scratch) -> Outcome<Self> {
        let file = File::create(scratch.path().join("disk-probe"))?;
        let (stalls, is_over) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (told, ended) = (Arc::clone(&stalls), Arc::clone(&is_over));
        let looking = std::thread::spawn(move || {
            // A disk that fails is seen by the database too.
            look_until(&ended, &file, &told).ok();
        });
        Ok(Self {
            stalls,
            is_over,
            looking: Some(looking),
        })
    }

    /// For how long of this time it stood still.
    pub fn stalled(&self, from: Instant, until: Instant) -> Duration {
        let stalls = self
            .stalls
            .lock()
            .expect("nothing panics while it holds this lock");
        let within = stalls.iter().map(|stall| {
            let (begin, end) = (stall.from.max(from), stall.until.min(until));
            end.saturating_duration_since(begin)
        });
        within.sum()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(looking) = self.looking.take() {
            looking.join().ok(); // it does not panic, and there is nobody to tell
        }
    }
}

fn look_until(ended: &AtomicBool, file: &File, stalls: &Mutex<Vec<Stall>>) -> io::Result<()> {
    while !ended.load(Ordering::Acquire) {
        let from = Instant::now();
        file.write_all_at(&PAGE, 0)?;
        file.sync_data()?;
        let until = Instant::now();
        if until.duration_since(from) > USUAL {
            let mut stalls = stalls
                .lock()
                .expect("nothing panics while it holds this lock");
            stalls.push(Stall { from, until });
        }
        std::thread::sleep(REST);
    }
    Ok(())
}
