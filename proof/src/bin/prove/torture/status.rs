//! A status line: rewritten in place on a terminal, otherwise printed every ten seconds.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use proof::balancer::Balancer;
use proof::load::Load;

use crate::torture::feed::Feed;
use crate::torture::plan::letter;
use crate::torture::scheduler::History;

const EVERY: Duration = Duration::from_secs(1);

/// Updates per line where it cannot be rewritten.
const LINE_EVERY: u32 = 10;

/// The sources of the status.
pub(crate) struct Status<'a> {
    pub(crate) loads: &'a [Load],
    pub(crate) history: &'a History,
    pub(crate) feed: &'a Feed,
    /// For readiness.
    pub(crate) balancer: &'a Balancer,
    pub(crate) nodes: usize,
    pub(crate) promised: &'a (dyn Fn() -> usize + Sync),
    pub(crate) time: Duration,
}

impl Status<'_> {
    /// Prints the status without end.
    #[expect(clippy::print_stdout, reason = "it is there to be seen")]
    pub(crate) async fn print_status(&self) {
        let began = Instant::now();
        let in_place = std::io::stdout().is_terminal();
        let mut before = 0;
        for tick in 1_u32.. {
            tokio::time::sleep(EVERY).await;
            let promised = (self.promised)();
            let pace = promised - before;
            if in_place {
                print!("\r\x1b[2K{}", self.line(began.elapsed(), promised, pace));
                // A failed write is repeated a second later.
                std::io::stdout().flush().ok();
                before = promised;
            } else if tick.is_multiple_of(LINE_EVERY) {
                let pace = pace / LINE_EVERY as usize;
                println!("{}", self.line(began.elapsed(), promised, pace));
                before = promised;
            }
        }
    }

    fn line(&self, elapsed: Duration, promised: usize, pace: usize) -> String {
        let ready: String = (0..self.nodes)
            .map(|node| match self.balancer.is_ready(node) {
                true => letter(node),
                false => '-',
            })
            .collect();
        let now = self.history.under_way();
        let now = match now.as_slice() {
            [] => "calm".to_owned(),
            some => some.join(" + "),
        };
        let tries: usize = self.loads.iter().map(Load::len).sum();
        format!(
            "{}/{} s · {} faults · ready {ready} · {promised} accepted ({pace}/s, {} tries) · {} confirmed · {now}",
            elapsed.as_secs(),
            self.time.as_secs(),
            self.history.count(),
            tries,
            self.feed.confirmed_count(),
        )
    }
}
