//! Measures stalls of the disk: a thread writes and syncs a page periodically beside the database. Proofs subtract
//! pauses that the disk caused.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{Outcome, Scratch};

const PAGE: [u8; 8192] = [1; 8192];

/// Between two probes.
const REST: Duration = Duration::from_millis(10);

/// A sync up to this duration is normal.
const USUAL: Duration = Duration::from_millis(20);

/// Probes until it is dropped.
pub struct DiskProbe {
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

impl DiskProbe {
    /// Starts probing the disk of the temporary files.
    pub fn watch(scratch: &Scratch) -> Outcome<Self> {
        let file = File::create(scratch.path().join("disk-probe"))?;
        let (stalls, is_over) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (reported, ended) = (Arc::clone(&stalls), Arc::clone(&is_over));
        let looking = std::thread::spawn(move || {
            // A failing disk is also seen by the database.
            probe_until(&ended, &file, &reported).ok();
        });
        Ok(Self {
            stalls,
            is_over,
            looking: Some(looking),
        })
    }

    /// The stalled time within an interval.
    pub fn stalled_time(&self, from: Instant, until: Instant) -> Duration {
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

impl Drop for DiskProbe {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(looking) = self.looking.take() {
            looking.join().ok(); // it does not panic
        }
    }
}

fn probe_until(ended: &AtomicBool, file: &File, stalls: &Mutex<Vec<Stall>>) -> io::Result<()> {
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
