//! `cargo run -p sim -- --seed 7` replays one world with its trace; `--seeds 1000` or `--for 10m` searches.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use sim::command::{Amount, Search, Tally, regressions, replay};
use sim::world::{Changes, Options, Part};

/// The seeded simulator: real nodes on in-memory twins, in one thread per world. Without a kind, each
/// seed's world is of one of them, and busy.
#[derive(Debug, Parser)]
struct Arguments {
    /// Replays this seed and prints its trace.
    #[arg(long, conflicts_with_all = ["seeds", "time"])]
    seed: Option<u64>,
    /// Runs so many seeds, after those of regressions.txt.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// Runs new seeds for so long (30s, 10m, 2h), after those of regressions.txt.
    #[arg(long = "for", value_name = "TIME", value_parser = duration, conflicts_with = "seeds")]
    time: Option<Duration>,
    /// The first seed of a search: 1, or a random one with --for.
    #[arg(long)]
    from: Option<u64>,
    /// How many worlds run at once.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Goes on after a seed that fails.
    #[arg(long)]
    keep_going: bool,
    /// Leaves the recorded seeds out of a search.
    #[arg(long)]
    only_new: bool,
    /// Prints the figures of a search as JSON, too.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    kind: Kind,
    #[command(flatten)]
    smaller: Smaller,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Kinds of worlds")]
struct Kind {
    /// Everything may go wrong.
    #[arg(long)]
    stormy: bool,
    /// Nothing goes wrong.
    #[arg(long)]
    calm: bool,
    /// Forks go deeper than what is final.
    #[arg(long)]
    deep_forks: bool,
    /// Once the store's standby takes over and lacks the last commits.
    #[arg(long)]
    lossy: bool,
    /// And an operator accepts what busy lanes have lost.
    #[arg(long, requires = "lossy", requires = "busy")]
    accept_loss: bool,
    /// Also batches, readers, deploys, nodes that come and go, and more.
    #[arg(long)]
    busy: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Smaller worlds")]
struct Smaller {
    /// Leaves these parts out, for example forks,foreign.
    #[arg(long, value_delimiter = ',', value_parser = Part::parse)]
    without: Vec<Part>,
    /// Only the first so many requests.
    #[arg(long)]
    requests: Option<u64>,
    /// Only requests of the first so many lanes.
    #[arg(long)]
    lanes: Option<usize>,
    /// So many nodes.
    #[arg(long)]
    nodes: Option<usize>,
    /// Only so many strikes at nodes, and as many at the chain.
    #[arg(long)]
    strikes: Option<u64>,
}

impl Kind {
    fn options(&self, seed: u64) -> Options {
        let Self {
            stormy,
            calm,
            deep_forks,
            lossy,
            accept_loss,
            busy,
        } = *self;
        if !(stormy || calm || deep_forks || lossy || busy) {
            return Options::mixed(seed);
        }
        Options {
            calm,
            deep_forks,
            lossy,
            accept_loss,
            busy,
            ..Options::default()
        }
    }
}

impl Smaller {
    fn changes(&self) -> Changes {
        Changes {
            without: self.without.iter().copied().collect(),
            requests: self.requests,
            lanes: self.lanes,
            nodes: self.nodes,
            strikes: self.strikes,
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let changes = arguments.smaller.changes();
    let is_good = match arguments.seed {
        Some(seed) => replay(seed, arguments.kind.options(seed).with(changes)),
        None => search(arguments, changes),
    };
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn search(arguments: Arguments, changes: Changes) -> bool {
    let from = match (arguments.from, arguments.time) {
        (Some(from), _) => from,
        (None, Some(_)) => random_seed(),
        (None, None) => 1,
    };
    let amount = arguments
        .time
        .map_or(Amount::Seeds(arguments.seeds), Amount::For);
    let recorded = if arguments.only_new {
        Vec::new()
    } else {
        regressions()
    };
    eprintln!(
        "{} recorded seeds, then new ones from {from}",
        recorded.len()
    );
    let kind = arguments.kind;
    let search = Search {
        amount,
        from,
        recorded,
        options: Box::new(move |seed| kind.options(seed).with(changes)),
        jobs: arguments.jobs,
        keep_going: arguments.keep_going,
    };
    let tally = search.run();
    eprintln!("{tally}");
    if arguments.json {
        print_json(from, &tally);
    }
    tally.failed.is_empty()
}

#[expect(clippy::print_stdout, reason = "asked for, to be read by a program")]
fn print_json(from: u64, tally: &Tally) {
    println!(
        "{{\"from\":{from},\"seeds\":{},\"failed\":{:?},\"events\":{},\"simulatedHours\":{:.1},\
         \"cpuSeconds\":{:.1},\"wallSeconds\":{:.1},\"simulatedHoursPerCpuMinute\":{:.1},\
         \"eventsPerCpuSecond\":{:.0},\"longestHealingSeconds\":{},\"longestHealingOfBoundPercent\":{:.0}}}",
        tally.seeds,
        tally.failed,
        tally.events,
        tally.simulated.as_secs_f64() / 3_600.0,
        tally.cpu.as_secs_f64(),
        tally.wall.as_secs_f64(),
        tally.hours_per_cpu_minute(),
        tally.events_per_second(),
        tally.healing_max.as_secs(),
        tally.healing_share_max * 100.0,
    );
}

/// Not for keys: any number will do, and it is printed.
fn random_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = now.map_or(0, |now| now.subsec_nanos());
    u64::from(nanos)
}

/// `30s`, `10m` or `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let units = [('s', 1), ('m', 60), ('h', 3_600)];
    let parsed = units.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        number.checked_mul(*seconds)
    });
    let parsed = parsed.map(Duration::from_secs);
    parsed.ok_or_else(|| format!("{text:?} is no time; write 30s, 10m or 2h"))
}
