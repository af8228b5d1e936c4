//! What was reached so far: every branch, and roughly how often at once.

use probe::edges;

/// Each branch with the orders of magnitude of how often one input took it.
pub(crate) struct Coverage {
    seen: Vec<u8>,
    reached: usize,
}

/// What an input reached that none had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum News {
    Nothing,
    /// A known branch, oftener or less often than ever.
    Oftener,
    /// A new branch.
    Branch,
}

impl Coverage {
    pub(crate) fn new() -> Self {
        Self {
            seen: vec![0; edges::count()],
            reached: 0,
        }
    }

    /// Takes in what was reached since the last look; says how new it is.
    pub(crate) fn absorb(&mut self) -> News {
        let mut news = News::Nothing;
        edges::take(|place, times| {
            let seen = &mut self.seen[place];
            let magnitude = magnitude(times);
            if *seen & magnitude == 0 {
                let is_first = *seen == 0;
                self.reached += usize::from(is_first);
                *seen |= magnitude;
                news = news.max(if is_first {
                    News::Branch
                } else {
                    News::Oftener
                });
            }
        });
        news
    }

    /// How many branches were reached.
    pub(crate) fn reached(&self) -> usize {
        self.reached
    }
}

/// One bit for each order of magnitude: a loop that runs once more than before is nothing new.
fn magnitude(times: u8) -> u8 {
    match times {
        0 => 0,
        1 => 1,
        2 => 1 << 1,
        3 => 1 << 2,
        4..=7 => 1 << 3,
        8..=15 => 1 << 4,
        16..=31 => 1 << 5,
        32..=127 => 1 << 6,
        128.. => 1 << 7,
    }
}
