//! `cargo run -p sim -- --seed 7` replays one world with its trace; `--seeds 1000` or `--for 10m` searches.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use sim::command::{Amount, Search, Tally, regressions, replay};
use sim::world::{Changes, Feature, Options};

/// The seeded simulator: real nodes on in-memory twins, in one thread per world. Without a kind, the seed
/// decides the kind of its world, and every world is busy.
#[derive(Debug, Parser)]
struct Arguments {
    /// Replays this seed and prints its trace.
    #[arg(long, conflicts_with_all = ["seeds", "time"])]
    seed: Option<u64>,
    /// The number of new seeds, after those of regressions.txt.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// Runs new seeds for this time (30s, 10m, 2h), after those of regressions.txt.
    #[arg(long = "for", value_name = "TIME", value_parser = duration, conflicts_with = "seeds")]
    time: Option<Duration>,
    /// The first seed of a search [default: 1, or a random one with --for].
    #[arg(long)]
    from: Option<u64>,
    /// How many worlds run at once.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Continues after a seed that fails.
    #[arg(long)]
    keep_going: bool,
    /// Searches new seeds only, without those of regressions.txt.
    #[arg(long)]
    only_new: bool,
    /// Also prints the figures of a search as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    kind: WorldKind,
    #[command(flatten)]
    world_size: WorldSize,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Kinds of worlds")]
struct WorldKind {
    /// All faults.
    #[arg(long)]
    stormy: bool,
    /// No faults.
    #[arg(long)]
    calm: bool,
    /// All faults, and reorgs deeper than finality.
    #[arg(long)]
    deep_forks: bool,
    /// All faults, and one failover that loses the last commits.
    #[arg(long)]
    lossy: bool,
    /// And an operator accepts the losses of halted lanes.
    #[arg(long, requires = "lossy", requires = "busy")]
    accept_loss: bool,
    /// Also batches, readers, rolling restarts, nodes that join and leave, nonce reservations, and more.
    #[arg(long)]
    busy: bool,
    /// Also accounts that run short of money, where requests are refused that they cannot pay for.
    #[arg(long, conflicts_with = "calm")]
    scarce: bool,
    /// Also lanes that end a tx which blocks them for too long.
    #[arg(long)]
    impatient: bool,
    /// Also poisoned requests, endpoints that hang by method or report wrong fees, and floods of repeats and readers.
    #[arg(long, requires = "busy")]
    hostile: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Smaller worlds")]
struct WorldSize {
    /// Disables these faults and workloads, for example forks,foreign.
    #[arg(long, value_delimiter = ',', value_parser = Feature::parse)]
    without: Vec<Feature>,
    /// Only the first N requests.
    #[arg(long)]
    requests: Option<u64>,
    /// Only requests of the first N lanes.
    #[arg(long)]
    lanes: Option<usize>,
    /// The number of nodes.
    #[arg(long)]
    nodes: Option<usize>,
    /// Only the first N faults of nodes, and the first N of the chain.
    #[arg(long)]
    faults: Option<u64>,
}

impl WorldKind {
    fn options(&self, seed: u64) -> Options {
        let Self {
            stormy,
            calm,
            deep_forks,
            lossy,
            accept_loss,
            busy,
            scarce,
            impatient,
            hostile,
        } = *self;
        if !(stormy || calm || deep_forks || lossy || busy || scarce || impatient || hostile) {
            return Options::mixed(seed);
        }
        Options {
            calm,
            deep_forks,
            lossy,
            accept_loss,
            busy,
            scarce,
            impatient,
            hostile,
            ..Options::default()
        }
    }
}

impl WorldSize {
    fn changes(&self) -> Changes {
        Changes {
            without: self.without.iter().copied().collect(),
            requests: self.requests,
            lanes: self.lanes,
            nodes: self.nodes,
            faults: self.faults,
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let changes = arguments.world_size.changes();
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
    eprintln!("worlds in which each happened: {}", tally.fired_in_words());
    if arguments.json {
        print_json(from, &tally);
    }
    tally.failed.is_empty()
}

#[expect(clippy::print_stdout, reason = "output for programs")]
fn print_json(from: u64, tally: &Tally) {
    println!(
        "{{\"from\":{from},\"seeds\":{},\"failed\":{:?},\"events\":{},\"simulatedHours\":{:.1},\
         \"cpuSeconds\":{:.1},\"wallSeconds\":{:.1},\"simulatedHoursPerCpuMinute\":{:.1},\
         \"eventsPerCpuSecond\":{:.0},\"longestHealingSeconds\":{},\"longestHealingOfBoundPercent\":{:.0},\
         \"fired\":{:?}}}",
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
        tally.fired, // a map of names prints as a JSON object
    );
}

/// Not cryptographic: any number is fine, and it is printed.
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
    parsed.ok_or_else(|| format!("{text:?} is not a duration; write 30s, 10m or 2h"))
}
