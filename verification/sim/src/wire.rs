//! The network between a node and what it talks to: time passes both ways, and things get lost.
//!
//! What was sent is on the wire: it arrives even when the node that sent it is frozen or dies
//! meanwhile. That is how a commit succeeds whose answer nobody hears.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::rng::Rng;

/// How bad the network is. Chances are per thousand calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireFaults {
    /// Each way takes up to so many milliseconds.
    pub travel_ms_max: u64,
    /// The other end cannot be reached, and the caller knows it at once.
    pub refused: u64,
    /// The question never arrives.
    pub question_lost: u64,
    /// The question arrives and its answer does not.
    pub answer_lost: u64,
    /// The caller is told that nothing is known; the question arrives after that.
    pub late: u64,
    /// A way that takes a hundred times as long.
    pub slow: u64,
    /// A row that is asked about is locked by somebody. (Lines to a store only.)
    pub locked: u64,
    /// Nothing arrives at all; only sometimes the caller knows.
    pub cut: bool,
}

impl WireFaults {
    /// Nothing takes time and nothing is lost.
    pub const NONE: Self = Self {
        travel_ms_max: 0,
        refused: 0,
        question_lost: 0,
        answer_lost: 0,
        late: 0,
        slow: 0,
        locked: 0,
        cut: false,
    };

    /// Nothing is lost.
    #[must_use]
    pub const fn healthy(travel_ms_max: u64) -> Self {
        Self {
            travel_ms_max,
            ..Self::NONE
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The question was certainly not asked.
    Refused,
    /// Nobody knows what came of the question.
    Lost,
}

/// One node's line to one service. Clones are the same line.
#[derive(Clone, Debug)]
pub struct Wire {
    rng: Rng,
    faults: Arc<Mutex<WireFaults>>,
}

/// After how long a caller gives up on a lost answer.
const TIMEOUT_MS: (u64, u64) = (200, 2_000);
/// How much later a late question arrives: perhaps long after its asker's lease has run out.
const LATE_MS: (u64, u64) = (0, 15_000);
/// How much longer a slow way takes.
const SLOWNESS: u64 = 100;

enum Fate {
    Answered,
    Refused,
    QuestionLost,
    AnswerLost,
    Late,
}

impl Wire {
    /// A line whose chance comes from `rng`.
    #[must_use]
    pub fn new(rng: Rng, faults: WireFaults) -> Self {
        Self {
            rng,
            faults: Arc::new(Mutex::new(faults)),
        }
    }

    /// Makes the line better or worse, from the next call on.
    pub fn set(&self, faults: WireFaults) {
        *self.lock() = faults;
    }

    /// Cuts the line, or mends it.
    pub fn cut(&self, is_cut: bool) {
        self.lock().cut = is_cut;
    }

    /// How bad it is at present.
    #[must_use]
    pub fn faults(&self) -> WireFaults {
        *self.lock()
    }

    /// The chance of this line, for whoever draws for the same calls.
    #[must_use]
    pub fn rng(&self) -> &Rng {
        &self.rng
    }

    /// Asks `question` over the line.
    pub async fn call<T: Send + 'static>(
        &self,
        question: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, NoAnswer> {
        let (there, back) = (self.way(), self.way());
        let late = self.rng.millis(LATE_MS.0, LATE_MS.1);
        let (fate, patience) = (self.fate(), self.rng.millis(TIMEOUT_MS.0, TIMEOUT_MS.1));
        let (answers, answer) = oneshot::channel();
        // Not in the caller's group of tasks: it lives on the wire. The handle is let go.
        drop(tokio::spawn(async move {
            tokio::time::sleep(there).await;
            let told = match fate {
                Fate::Answered => {
                    let told = question.await;
                    tokio::time::sleep(back).await;
                    Ok(told)
                }
                Fate::Refused => Err(NoAnswer::Refused),
                Fate::QuestionLost => {
                    tokio::time::sleep(patience).await;
                    Err(NoAnswer::Lost)
                }
                Fate::AnswerLost => {
                    drop(question.await);
                    tokio::time::sleep(patience).await;
                    Err(NoAnswer::Lost)
                }
                Fate::Late => {
                    // The caller may be gone; then nobody needs the answer.
                    answers.send(Err(NoAnswer::Lost)).ok();
                    tokio::time::sleep(late).await;
                    drop(question.await);
                    return;
                }
            };
            // The caller may be gone; then nobody needs the answer.
            answers.send(told).ok();
        }));
        // The line's own task ends only with the world.
        answer.await.unwrap_or(Err(NoAnswer::Lost))
    }

    fn way(&self) -> Duration {
        let WireFaults {
            travel_ms_max,
            slow,
            ..
        } = self.faults();
        let way = self.rng.between(0, travel_ms_max);
        Duration::from_millis(if self.rng.permille(slow) {
            way * SLOWNESS
        } else {
            way
        })
    }

    fn fate(&self) -> Fate {
        let faults = self.faults();
        if faults.cut {
            return if self.rng.permille(500) {
                Fate::Refused
            } else {
                Fate::QuestionLost
            };
        }
        let mut draw = self.rng.below(1_000);
        let fates = [
            (faults.refused, Fate::Refused),
            (faults.question_lost, Fate::QuestionLost),
            (faults.answer_lost, Fate::AnswerLost),
            (faults.late, Fate::Late),
        ];
        for (chance, fate) in fates {
            if draw < chance {
                return fate;
            }
            draw -= chance;
        }
        Fate::Answered
    }

    fn lock(&self) -> MutexGuard<'_, WireFaults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use engine::tasks::Tasks;

    use super::*;

    fn counted(count: &Arc<AtomicU64>) -> impl Future<Output = u64> + Send + 'static {
        let count = Arc::clone(count);
        async move { count.fetch_add(1, Ordering::SeqCst) + 1 }
    }

    fn certain(change: impl FnOnce(&mut WireFaults)) -> Wire {
        let mut faults = WireFaults::healthy(5);
        change(&mut faults);
        Wire::new(Rng::new(3), faults)
    }

    #[tokio::test(start_paused = true)]
    async fn each_fate_does_what_it_says() {
        let count = Arc::new(AtomicU64::new(0));
        let seen = || count.load(Ordering::SeqCst);
        assert_eq!(certain(|_| {}).call(counted(&count)).await, Ok(1));
        let refused = certain(|faults| faults.refused = 1_000);
        assert_eq!(
            (refused.call(counted(&count)).await, seen()),
            (Err(NoAnswer::Refused), 1)
        );
        let lost = certain(|faults| faults.question_lost = 1_000);
        assert_eq!(
            (lost.call(counted(&count)).await, seen()),
            (Err(NoAnswer::Lost), 1)
        );
        let unheard = certain(|faults| faults.answer_lost = 1_000);
        assert_eq!(
            (unheard.call(counted(&count)).await, seen()),
            (Err(NoAnswer::Lost), 2)
        );
        let late = certain(|faults| faults.late = 1_000);
        assert_eq!(
            (late.call(counted(&count)).await, seen()),
            (Err(NoAnswer::Lost), 2)
        );
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(seen(), 3, "it arrives after all");
        let cut = certain(|_| {});
        cut.cut(true);
        assert!(cut.call(counted(&count)).await.is_err());
        assert_eq!(seen(), 3);
        cut.cut(false);
        assert_eq!(cut.call(counted(&count)).await, Ok(4));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_dead_node_sent_still_arrives() {
        let count = Arc::new(AtomicU64::new(0));
        let wire = certain(|faults| faults.travel_ms_max = 50);
        let (tasks, question) = (Tasks::new(), counted(&count));
        tasks.spawn("asker", async move {
            wire.call(question).await.ok();
        });
        tokio::task::yield_now().await;
        tasks.kill();
        tasks.ended().await;
        assert_eq!(count.load(Ordering::SeqCst), 0);
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}
