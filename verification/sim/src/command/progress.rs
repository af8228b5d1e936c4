//! The progress and the speed of a search, as one line that is updated.

use std::fmt;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use super::search::{Amount, Tally};

/// How often the line is updated on a terminal.
const DRAW_INTERVAL: Duration = Duration::from_millis(250);
/// And how often it is printed elsewhere.
const PRINT_INTERVAL: Duration = Duration::from_secs(30);
/// The width of the bar.
const BAR: usize = 24;

/// The kernel's unit of CPU time in `/proc`; the same on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// Shows the progress of a search.
pub(super) struct ProgressLine {
    amount: Amount,
    /// The seeds beyond `amount`: the recorded ones.
    extra: u64,
    is_terminal: bool,
    shown_at: Instant,
}

impl ProgressLine {
    pub(super) fn new(amount: Amount, extra: u64) -> Self {
        Self {
            amount,
            extra,
            is_terminal: std::io::stderr().is_terminal(),
            shown_at: Instant::now(),
        }
    }

    /// Prints the line when it is due.
    pub(super) fn show(&mut self, tally: &Tally) {
        let interval = if self.is_terminal {
            DRAW_INTERVAL
        } else {
            PRINT_INTERVAL
        };
        if self.shown_at.elapsed() < interval {
            return;
        }
        self.shown_at = Instant::now();
        let (bar, total) = (bar(self.share(tally)), self.total());
        if self.is_terminal {
            eprint!("\r{bar} {tally}{total}\x1b[K");
            std::io::stderr().flush().ok(); // a lost progress line does not matter
        } else {
            eprintln!("{bar} {tally}{total}");
        }
    }

    /// Clears the line for other output.
    pub(super) fn clear(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }

    fn share(&self, tally: &Tally) -> f64 {
        match self.amount {
            Amount::Seeds(count) => tally.seeds as f64 / (count + self.extra).max(1) as f64,
            Amount::For(time) => tally.wall.as_secs_f64() / time.as_secs_f64().max(0.001),
        }
    }

    fn total(&self) -> String {
        match self.amount {
            Amount::Seeds(count) => format!(" (of {} seeds)", count + self.extra),
            Amount::For(time) => format!(" (of {} s)", time.as_secs()),
        }
    }
}

fn bar(share: f64) -> String {
    let full = (1..=BAR).filter(|cell| *cell as f64 <= share * BAR as f64);
    let full = full.count();
    format!("[{}{}]", "#".repeat(full), ".".repeat(BAR - full))
}

impl Tally {
    /// Simulated hours per minute of CPU time.
    #[must_use]
    pub fn hours_per_cpu_minute(&self) -> f64 {
        let hours = self.simulated.as_secs_f64() / 3_600.0;
        hours / (self.cpu.as_secs_f64() / 60.0).max(0.000_1)
    }

    /// Events per second of CPU time.
    #[must_use]
    pub fn events_per_second(&self) -> f64 {
        self.events as f64 / self.cpu.as_secs_f64().max(0.01)
    }
}

impl Tally {
    /// In how many worlds each fault and workload happened, the rarest first.
    #[must_use]
    pub fn fired_in_words(&self) -> String {
        let mut fired: Vec<(&str, u64)> = self.fired.iter().map(|(name, n)| (*name, *n)).collect();
        fired.sort_by_key(|(name, count)| (*count, *name));
        let words = fired.iter().map(|(name, count)| format!("{name} {count}"));
        words.collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let per_second = self.seeds as f64 / self.wall.as_secs_f64().max(0.001);
        write!(
            f,
            "{} seeds, {per_second:.0}/s, {:.0} simulated h, {:.0} per CPU-minute, {:.0} events/s, healed after \
             {} s at most ({:.0} % of the bound), {} backups restored, {} transactions attributed, {} requests held, \
             {} failed",
            self.seeds,
            self.simulated.as_secs_f64() / 3_600.0,
            self.hours_per_cpu_minute(),
            self.events_per_second(),
            self.healing_max.as_secs(),
            self.healing_share_max * 100.0,
            self.losses.restores,
            self.losses.unrecorded,
            self.losses.held,
            self.failed.len(),
        )
    }
}

/// CPU time of this process so far; `None` where there is no `/proc`.
pub(super) fn cpu() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The process name is in parentheses and may contain anything; the numbers follow it.
    let (_, numbers) = stat.rsplit_once(')')?;
    let times = numbers.split_whitespace().skip(11).take(2);
    let ticks: Vec<u32> = times.filter_map(|time| time.parse().ok()).collect();
    Some(TICK * ticks.iter().sum::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_fills_up() {
        assert_eq!(bar(0.0), "[........................]");
        assert_eq!(bar(0.5), "[############............]");
        assert_eq!(bar(7.0), "[########################]");
    }
}
