//! 2.4: `lanekeeper bench accept` on the embedded store: one lane and 100 lanes, signed and with the depth known,
//! next to two limits of the same run. Batches must grow with the clients.

use proof::{COMMAND_WITHIN, Outcome, Report, ensure, flag, print_step, run_bench};
use serde_json::Value;

/// The target: accepts per second on one lane, signed, with 512 clients.
const AIM_PER_SECOND: f64 = 5_000.0;

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
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
    ensure(
        best >= AIM_PER_SECOND,
        format!("{best:.0} accepted/s on one lane; the aim is {AIM_PER_SECOND:.0}"),
    )?;
    Ok(format!(
        "{best:.0} accepted/s on one lane, signed, 512 clients"
    ))
}

async fn bench(lanes: &str, depth: &str, duration: &str) -> Outcome<Value> {
    print_step(format!("bench accept: {lanes} lanes, mempoolDepth {depth}"));
    let args = [
        "accept",
        "--lanes",
        lanes,
        "--mempool-depth",
        depth,
        "--duration",
        duration,
        "--clients",
        "1,64,512",
    ];
    run_bench(COMMAND_WITHIN, &args).await
}

/// Checks that hold on every machine: rows counted, and batches that grow with the clients.
fn judge(name: &str, bench: &Value) -> Outcome<f64> {
    let runs = bench["runs"].as_array().ok_or("the bench has no runs")?;
    let mut batches = Vec::new();
    for run in runs {
        let (accepted, rows) = (run["accepted"].as_u64(), run["rows"].as_u64());
        ensure(
            accepted == rows && accepted > Some(0),
            format!("{name}: {accepted:?} accepted, {rows:?} rows"),
        )?;
        batches.push(run["meanBatch"].as_f64().ok_or("a run has no meanBatch")?);
    }
    let grows = batches.windows(2).all(|pair| pair[1] > pair[0]);
    ensure(
        grows,
        format!("{name}: the gate's batch does not grow with the clients: {batches:?}"),
    )?;
    let last = runs.last().and_then(|run| run["perSecond"].as_f64());
    last.ok_or_else(|| "a run has no perSecond".into())
}
