//! `fuzz`: searches for inputs that break something, or replays one.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use clap::Parser;
use fuzz::campaign::{CampaignResult, EXIT_HANGS, Found, Plan, current_file, run_campaign};
use fuzz::corpus;
use fuzz::judge::Judge;
use fuzz::report::Report;
use fuzz::targets::{KINDS, Kind, kind};

#[global_allocator]
static ALLOCATOR: probe::memory::Counting = probe::memory::Counting;

/// Feeds mutated inputs to everything that takes bytes from outside.
#[derive(Parser)]
#[command(name = "fuzz")]
struct Args {
    /// Only this target; may be given several times. All without.
    #[arg(long)]
    target: Vec<String>,
    /// How long, for all targets together: 30s, 5m, 1h.
    #[arg(long = "for", default_value = "1m", value_parser = duration)]
    time: Duration,
    /// What chance follows from; another one every time without.
    #[arg(long)]
    seed: Option<u64>,
    /// Where the inputs are that it begins with.
    #[arg(long, default_value_os_t = corpus::folder())]
    corpus: PathBuf,
    /// Where failing inputs go.
    #[arg(long, default_value = "target/fuzz")]
    out: PathBuf,
    /// Adds a small choice of what was found to the corpus.
    #[arg(long)]
    keep: bool,
    /// Writes the report there as JSON; the file's name is the name of the proof.
    #[arg(long)]
    report: Option<PathBuf>,
    /// Runs one input, says what comes of it, and ends. Its folder is named like its target.
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Searches one target in this process, and gives the result as JSON.
    #[arg(long, hide = true)]
    worker: bool,
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.replay {
        Some(file) => replay(&args, file),
        None if args.worker => work(&args),
        None => run_all(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Runs every target in a process of its own: one that dies takes no other with it.
fn run_all(args: &Args) -> Outcome<bool> {
    let kinds = chosen(args)?;
    if probe::edges::count() == 0 {
        eprintln!("built without counters: it searches blindly (proof/05-5-fuzz builds with them)");
    }
    let seed = args.seed.unwrap_or_else(rand::random);
    eprintln!("seed {seed}");
    let share = args.time / u32::try_from(kinds.len())?;
    let mut report = Report {
        targets: Vec::new(),
        seed,
    };
    for kind in kinds {
        report.targets.push(run_one(args, kind, share, seed)?);
    }
    for found in report.targets.iter().flat_map(|target| &target.faults) {
        eprintln!("{found}");
    }
    let name = args.report.as_deref().and_then(Path::file_stem);
    let name = name.map_or("fuzz".into(), |name| name.to_string_lossy());
    if let Some(file) = &args.report {
        fs::write(file, format!("{:#}\n", report.json(&name)))?;
    }
    let verdict = if report.holds() { "HOLDS" } else { "FAILS" };
    print_line(&format!("{verdict} {name}: {}", report.figure()));
    Ok(report.holds())
}

fn run_one(
    args: &Args,
    kind: &'static Kind,
    share: Duration,
    seed: u64,
) -> Outcome<CampaignResult> {
    let mut worker = Command::new(std::env::current_exe()?);
    worker
        .args([
            "--worker",
            "--target",
            kind.name,
            "--seed",
            &seed.to_string(),
        ])
        .args(["--for", &format!("{}ms", share.as_millis())])
        .args([
            Path::new("--corpus"),
            &args.corpus,
            Path::new("--out"),
            &args.out,
        ])
        .stdout(Stdio::piped());
    if args.keep {
        worker.arg("--keep");
    }
    let ended = worker.spawn()?.wait_with_output()?;
    match serde_json::from_slice(&ended.stdout) {
        Ok(result) if ended.status.code().is_some_and(|code| code < 2) => Ok(result),
        Ok(_) | Err(_) => died(args, kind, ended.status),
    }
}

/// What is left of a target whose process died: the input that it ran.
fn died(args: &Args, kind: &'static Kind, status: ExitStatus) -> Outcome<CampaignResult> {
    let fault = match (status.code(), status.signal()) {
        (Some(EXIT_HANGS), _) => "it hangs".to_owned(),
        (None, Some(signal)) => format!("the process died of signal {signal}"),
        (code, _) => return Err(format!("target {} ended with {code:?}", kind.name).into()),
    };
    let current = current_file(&args.out, kind.name);
    let file = current.with_file_name(corpus::name_of(&fs::read(&current)?));
    fs::rename(&current, &file)?;
    let found = Found {
        place: fault.clone(),
        fault,
        file,
    };
    Ok(CampaignResult {
        target: kind.name.to_owned(),
        faults: vec![found],
        ..CampaignResult::default()
    })
}

fn work(args: &Args) -> Outcome<bool> {
    let [kind] = chosen(args)?[..] else {
        return Err("a worker has one target".into());
    };
    let result = run_campaign(&Plan {
        kind,
        time: args.time,
        seed: args.seed.unwrap_or_default(),
        corpus: args.corpus.clone(),
        out: args.out.clone(),
        keep: args.keep,
    })?;
    print_line(&serde_json::to_string(&result)?);
    Ok(result.faults.is_empty())
}

fn replay(args: &Args, file: &Path) -> Outcome<bool> {
    let kind = match &args.target[..] {
        [] => {
            let folder = file.parent().and_then(Path::file_name);
            let name = folder.map(|name| name.to_string_lossy().into_owned());
            kind(&name.unwrap_or_default()).ok_or("whose input is it? say --target NAME")?
        }
        _ => chosen(args)?[0],
    };
    let trial = Judge::new(kind).run(&fs::read(file)?);
    print_line(&format!(
        "{}: {:.1?}, {} bytes of memory",
        kind.name, trial.took, trial.bytes
    ));
    match &trial.fault {
        Some(fault) => print_line(&format!("FAILS {fault}")),
        None => print_line("HOLDS"),
    }
    Ok(trial.fault.is_none())
}

fn chosen(args: &Args) -> Outcome<Vec<&'static Kind>> {
    if args.target.is_empty() {
        return Ok(KINDS.iter().collect());
    }
    let find = |name: &String| {
        let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        kind(name).ok_or_else(|| format!("no target {name}: there are {}", names.join(", ")).into())
    };
    args.target.iter().map(find).collect()
}

fn duration(text: &str) -> Result<Duration, String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("write it like 30s, 5m or 1h".to_owned()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_no_number| "write it like 30s, 5m or 1h")?;
    Ok(Duration::from_millis(number.saturating_mul(millis)))
}

#[expect(clippy::print_stdout, reason = "the result of a command")]
fn print_line(line: &str) {
    println!("{line}");
}
