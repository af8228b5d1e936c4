//! The table of each scheme's cost per crash, in docs/nonce.md between two markers.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proof::Outcome;

use crate::nonce_faults::measurements::Cost;
use crate::nonce_faults::plan::{Case, Fault};
use crate::nonce_faults::times;

const BEGIN: &str = "<!-- written by proof/06-3-faults --write-docs: begin -->";
const END: &str = "<!-- written by proof/06-3-faults --write-docs: end -->";

/// Writes the table between the markers.
pub(crate) fn write(costs: &[(Case, Cost)]) -> Outcome<PathBuf> {
    let docs_table = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/nonce.md");
    let text = std::fs::read_to_string(&docs_table)?;
    let (before, rest) = text
        .split_once(BEGIN)
        .ok_or("docs/nonce.md has no first mark")?;
    let (_, after) = rest
        .split_once(END)
        .ok_or("docs/nonce.md has no last mark")?;
    let table = table(costs)?;
    std::fs::write(&docs_table, format!("{before}{BEGIN}\n{table}{END}{after}"))?;
    Ok(docs_table)
}

pub(crate) fn table(costs: &[(Case, Cost)]) -> Outcome<String> {
    let mut text = String::new();
    let ms = |time: Duration| time.as_millis();
    writeln!(
        text,
        "Measured with a reservation timeout of {} s, leases of {} s, a probe of Redis every {} ms and \
         a sweep every {} ms; three processes that reserve nonces all the time. An expired nonce is free when the chain has \
         shown nothing of it for {} s; nodes (scheme `lane`) wait {} s for that.\n",
        times::RESERVATION.as_secs(),
        times::LEASE.as_secs(),
        ms(times::PROBE),
        ms(times::SWEEP),
        times::FREE_GRACE.as_secs(),
        times::FREE_GRACE_OF_NODES.as_secs(),
    )?;
    writeln!(
        text,
        "| what breaks | scheme | longest pause | refused | delayed until the timeout | as before after | \
         holes closed after |\n|---|---|--:|--:|--:|--:|--:|"
    )?;
    for fault in Fault::ALL {
        for (case, cost) in costs.iter().filter(|(case, _)| case.fault == fault) {
            let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
            writeln!(
                text,
                "| {} | `{}` | {} | {} | {} | {} | {} |",
                fault.about(),
                case.scheme.as_str(),
                seconds(cost.pause),
                cost.refused,
                cost.delayed,
                seconds(cost.normal_after),
                seconds(cost.closed_after),
            )?;
        }
    }
    Ok(text)
}
