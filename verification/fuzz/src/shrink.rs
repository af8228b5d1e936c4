//! A failing input made small, so that people see what fails.

use std::time::{Duration, Instant};

/// Bounds on the search: a large input that still fails is better than none.
const TRIES_MAX: u32 = 3_000;
const TIME_MAX: Duration = Duration::from_secs(20);

/// The smallest input that `still_fails`, as far as leaving ranges out and plain characters lead.
pub fn shrink(input: &[u8], still_fails: impl FnMut(&[u8]) -> bool) -> Vec<u8> {
    let mut search = Search {
        best: input.to_vec(),
        still_fails,
        tries: 0,
        began: Instant::now(),
    };
    loop {
        let before = search.best.len();
        search.leave_out();
        if search.best.len() == before || search.is_over() {
            break;
        }
    }
    search.make_plain();
    search.best
}

struct Search<F> {
    best: Vec<u8>,
    still_fails: F,
    tries: u32,
    began: Instant,
}

impl<F: FnMut(&[u8]) -> bool> Search<F> {
    fn is_over(&self) -> bool {
        self.tries >= TRIES_MAX || self.began.elapsed() > TIME_MAX
    }

    fn keeps(&mut self, candidate: Vec<u8>) -> bool {
        self.tries += 1;
        let fails = (self.still_fails)(&candidate);
        if fails {
            self.best = candidate;
        }
        fails
    }

    /// Leaves out ranges: halves first, single bytes last.
    fn leave_out(&mut self) {
        let mut len = self.best.len() / 2;
        while len > 0 {
            let mut start = 0;
            while start < self.best.len() && !self.is_over() {
                let end = (start + len).min(self.best.len());
                let candidate = [&self.best[..start], &self.best[end..]].concat();
                if !self.keeps(candidate) {
                    start += len;
                }
            }
            len /= 2;
        }
    }

    /// Strange bytes become plain ones where that changes nothing.
    fn make_plain(&mut self) {
        for place in 0..self.best.len() {
            let byte = self.best[place];
            let is_plain = byte.is_ascii_graphic() || matches!(byte, b' ' | b'\n');
            if is_plain || self.is_over() {
                continue;
            }
            let mut candidate = self.best.clone();
            candidate[place] = b'0';
            self.keeps(candidate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_goes() {
        let input = b"something\x00 with a {bad} word\xff inside of it".repeat(40);
        let mut tries = 0;
        let small = shrink(&input, |candidate| {
            tries += 1;
            candidate.windows(5).any(|window| window == b"{bad}")
        });
        assert_eq!(small, b"{bad}");
        assert!(tries <= TRIES_MAX, "{tries}");
    }
}
