//! The search: mutate, run, keep what is new, shrink what fails, until the time is over.

mod current;
mod watchdog;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};

use crate::corpus;
use crate::coverage::{Coverage, News};
use crate::judge::{Fault, Judge, Trial};
use crate::mutate::{Mutator, SHORT_BYTES_MAX};
use crate::queue::Queue;
use crate::shrink::shrink;
use crate::targets::Kind;
use current::Current;
pub use watchdog::EXIT_HANGS;
use watchdog::Watchdog;

/// After so many different faults of one target there is enough to mend.
const FAULTS_MAX: usize = 10;
/// How often the search says where it stands.
const REPORT_PERIOD: Duration = Duration::from_secs(10);
/// Found inputs that are kept in the corpus: how many, and how long they may be.
const KEEP_MAX: usize = 40;
const KEEP_BYTES_MAX: usize = 2 << 10;

/// What to search, and for how long.
pub struct Plan {
    /// The target.
    pub kind: &'static Kind,
    /// For how long.
    pub time: Duration,
    /// What everything by chance follows from.
    pub seed: u64,
    /// Where the corpus is.
    pub corpus: PathBuf,
    /// Where failing inputs go.
    pub out: PathBuf,
    /// Whether a small choice of what was found joins the corpus.
    pub keep: bool,
}

/// What came of a search.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CampaignResult {
    /// The target.
    pub target: String,
    /// Inputs that were run.
    pub executions: u64,
    /// In so many seconds.
    pub seconds: f64,
    /// Branches that were reached, by all inputs together; 0 without counters.
    pub branches: usize,
    /// Branches that there are, in all of our code.
    pub branches_in_all: usize,
    /// Inputs in the queue at the end.
    pub inputs: usize,
    /// The most memory that one input took, in bytes.
    pub memory_most: usize,
    /// The longest that one input took, in milliseconds.
    pub slowest_ms: f64,
    /// What failed.
    pub faults: Vec<Found>,
}

/// A failing input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// Where: two faults of one place are one bug.
    pub place: String,
    /// What it did.
    pub fault: String,
    /// The input, made small.
    pub file: PathBuf,
}

/// Searches.
pub fn run_campaign(plan: &Plan) -> io::Result<CampaignResult> {
    let seeds = corpus::inputs(&plan.corpus, plan.kind.name)?;
    let mut campaign = Campaign::new(plan, seeds.clone())?;
    for seed in seeds {
        campaign.take(&seed)?;
    }
    let mut chance = SmallRng::seed_from_u64(plan.seed);
    let mutator = Mutator::new(plan.kind.dictionary);
    let mut reported_at = Instant::now();
    while campaign.began.elapsed() < plan.time && campaign.result.faults.len() < FAULTS_MAX {
        let input = campaign.queue.pick(&mut chance);
        let other = campaign.queue.pick(&mut chance);
        let input = mutator.mutate(input, other, &mut chance);
        let is_new = match campaign.take(&input)? {
            News::Branch => true,
            // A long input does everything oftener: that is nothing to build on.
            News::Oftener => input.len() <= SHORT_BYTES_MAX,
            News::Nothing => false,
        };
        if is_new {
            campaign.queue.add(input, &mut chance);
        }
        if reported_at.elapsed() >= REPORT_PERIOD {
            reported_at = Instant::now();
            eprintln!("{}", campaign.figures());
        }
    }
    let result = campaign.figures();
    eprintln!("{result}");
    if plan.keep {
        campaign.keep()?;
    }
    Ok(result)
}

struct Campaign<'p> {
    plan: &'p Plan,
    began: Instant,
    judge: Judge,
    coverage: Coverage,
    queue: Queue,
    current: Current,
    watchdog: Watchdog,
    result: CampaignResult,
}

impl<'p> Campaign<'p> {
    fn new(plan: &'p Plan, seeds: Vec<Vec<u8>>) -> io::Result<Self> {
        fs::create_dir_all(failures(plan))?;
        Ok(Self {
            plan,
            began: Instant::now(),
            judge: Judge::new(plan.kind),
            coverage: Coverage::new(),
            queue: Queue::new(seeds),
            current: Current::open(&current_file(&plan.out, plan.kind.name))?,
            watchdog: Watchdog::start()?,
            result: CampaignResult {
                target: plan.kind.name.to_owned(),
                branches_in_all: probe::edges::count(),
                ..CampaignResult::default()
            },
        })
    }

    /// Runs one input; says what it reached that none had before.
    fn take(&mut self, input: &[u8]) -> io::Result<News> {
        let trial = self.run(input)?;
        self.result.executions += 1;
        self.result.memory_most = self.result.memory_most.max(trial.bytes);
        let ms = trial.took.as_secs_f64() * 1_000.0;
        self.result.slowest_ms = self.result.slowest_ms.max(ms);
        if let Some(fault) = trial.fault {
            self.note(input, &fault)?;
        }
        Ok(self.coverage.absorb())
    }

    fn run(&mut self, input: &[u8]) -> io::Result<Trial> {
        self.current.write(input)?;
        self.watchdog.begin();
        let trial = self.judge.run(input);
        self.watchdog.end();
        Ok(trial)
    }

    /// Makes a failing input small and writes it down, once for each place.
    fn note(&mut self, input: &[u8], fault: &Fault) -> io::Result<()> {
        let place = fault.place();
        if self.result.faults.iter().any(|known| known.place == place) {
            return Ok(());
        }
        let small = shrink(input, |candidate| {
            // A run that cannot be written down cannot be told from one that does not fail.
            let trial = self.run(candidate).ok();
            let fault = trial.and_then(|trial| trial.fault);
            fault.is_some_and(|fault| fault.place() == place)
        });
        let file = failures(self.plan).join(corpus::name_of(&small));
        fs::write(&file, &small)?;
        let found = Found {
            place,
            fault: fault.to_string(),
            file,
        };
        eprintln!("{}: {found}", self.plan.kind.name);
        self.result.faults.push(found);
        Ok(())
    }

    fn figures(&self) -> CampaignResult {
        CampaignResult {
            seconds: self.began.elapsed().as_secs_f64(),
            branches: self.coverage.reached(),
            inputs: self.queue.len(),
            ..self.result.clone()
        }
    }

    /// Adds the smallest inputs to the corpus that reach what its own do not.
    fn keep(&mut self) -> io::Result<()> {
        self.coverage = Coverage::new();
        for seed in corpus::inputs(&self.plan.corpus, self.plan.kind.name)? {
            self.take(&seed)?;
        }
        let mut found = self.queue.found().to_vec();
        found.retain(|input| input.len() <= KEEP_BYTES_MAX);
        found.sort_by_key(Vec::len);
        let mut kept = 0;
        for input in found {
            if self.take(&input)? == News::Branch && kept < KEEP_MAX {
                kept += 1;
                let name = format!("found-{}", corpus::name_of(&input));
                fs::write(
                    self.plan.corpus.join(self.plan.kind.name).join(name),
                    &input,
                )?;
            }
        }
        Ok(())
    }
}

/// Where the input is that is being run: what is left of it when the process dies.
#[must_use]
pub fn current_file(out: &Path, target: &str) -> PathBuf {
    out.join(target).join("current")
}

fn failures(plan: &Plan) -> PathBuf {
    plan.out.join(plan.kind.name)
}
