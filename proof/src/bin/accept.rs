//! 2.4: `lanekeeper bench accept` on the embedded store: one lane and 100 lanes, signed and with the
//! depth found out, next to two limits of the same run. A batch that does not grow fails it.

use std::process::ExitCode;

use proof::{Outcome, Report, demand, flag, run, say};
use serde_json::Value;

/// The aim: accepted per second on one lane, signed, with 512 clients.
const AIM_PER_SECOND: f64 = 5_000.0;

#[tokio::main]
async fn main() -> ExitCode {
    let mut report = Report::new("02-4-accept");
    let outcome = prove(&mut report).await;
    report.close(outcome)
}

async fn prove(report: &mut Report) -> Outcome<String> {
    let duration = flag("duration", "10s");
    let mut best = 0.0;
    for lanes in ["1", "100"] {
        for depth in ["1000000", "auto"] {
            let bench = bench(lanes, depth, &duration).await?;
            let name = format!("lanes{lanes}-depth-{depth}");
            let rate = judge(&name, &bench)?;
            report.fact(&name, bench);
            if lanes == "1" && depth != "auto" {
                best = rate;
            }
        }
    }
    report.fact("aimPerSecond", AIM_PER_SECOND);
    demand(
        best >= AIM_PER_SECOND,
        format!("{best:.0} accepted/s on one lane; the aim is {AIM_PER_SECOND:.0}"),
    )?;
    Ok(format!(
        "{best:.0} accepted/s on one lane, signed, 512 clients"
    ))
}

async fn bench(lanes: &str, depth: &str, duration: &str) -> Outcome<Value> {
    say(format!("bench accept: {lanes} lanes, mempoolDepth {depth}"));
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().to_string_lossy().into_owned();
    let args = [
        "bench",
        "accept",
        "--lanes",
        lanes,
        "--mempool-depth",
        depth,
        "--duration",
        duration,
        "--clients",
        "1,64,512",
        "--json",
        &path,
    ];
    let output = run(&args, &[]).await?;
    say(String::from_utf8_lossy(&output.stdout));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    demand(
        output.status.success(),
        format!("bench accept failed: {error}"),
    )?;
    Ok(serde_json::from_str(&std::fs::read_to_string(&path)?)?)
}

/// Checks what must hold whatever the machine: rows counted, and batches that grow with the clients.
fn judge(name: &str, bench: &Value) -> Outcome<f64> {
    let runs = bench["runs"].as_array().ok_or("the bench has no runs")?;
    let mut batches = Vec::new();
    for run in runs {
        let (accepted, rows) = (run["accepted"].as_u64(), run["rows"].as_u64());
        demand(
            accepted == rows && accepted > Some(0),
            format!("{name}: {accepted:?} accepted, {rows:?} rows"),
        )?;
        batches.push(run["meanBatch"].as_f64().ok_or("a run has no meanBatch")?);
    }
    let grows = batches.windows(2).all(|pair| pair[1] > pair[0]);
    demand(
        grows,
        format!("{name}: the gate's batch does not grow with the clients: {batches:?}"),
    )?;
    let last = runs.last().and_then(|run| run["perSecond"].as_f64());
    last.ok_or_else(|| "a run has no perSecond".into())
}
