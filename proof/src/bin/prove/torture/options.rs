//! The command line options.

use std::time::Duration;

use proof::network::{NodeKind, parse_node_kinds};
use proof::{Outcome, ensure, flag};

use crate::torture::fault_kind::FaultKind;
use crate::torture::plan::PlanRequest;

/// The defaults.
const FULL: Duration = Duration::from_secs(30 * 60);
const FULL_FAULTS: u32 = 200;

/// The bounds of `--for`.
const LONGEST: Duration = Duration::from_secs(4 * 3_600);
const SHORTEST: Duration = Duration::from_secs(30);

/// `--for`, `--faults-min`, `--seed`, `--only` and `--node`.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) wanted: PlanRequest,
    pub(crate) node_kind: NodeKind,
}

impl Options {
    pub(crate) fn read() -> Outcome<Self> {
        let time = time(&flag("for", "30m"))?;
        ensure(
            (SHORTEST..=LONGEST).contains(&time),
            format!("--for is from {SHORTEST:?} to {LONGEST:?}"),
        )?;
        let faults_min = match flag("faults-min", "").as_str() {
            "" => scaled(time),
            given => given.parse()?,
        };
        let seed = match flag("seed", "").as_str() {
            "" => rand::random_range(0..1_000_000_000),
            given => given.parse()?,
        };
        let node_kind = parse_node_kinds(&flag("node", "anvil"))?[0];
        ensure(
            [NodeKind::ANVIL, NodeKind::Devchain].contains(&node_kind),
            "--node is anvil or devchain: the others keep no blocks, or no pace",
        )?;
        let kinds = FaultKind::list(&flag("only", ""))?;
        Ok(Self {
            wanted: PlanRequest {
                seed,
                time,
                faults_min,
                kinds,
            },
            node_kind,
        })
    }
}

/// The fault rate of a full run.
fn scaled(time: Duration) -> usize {
    let share = time.as_secs_f64() / FULL.as_secs_f64();
    let faults = Duration::from_secs(1) * FULL_FAULTS;
    let scaled = faults.mul_f64(share).as_secs();
    usize::try_from(scaled).unwrap_or(usize::MAX)
}

/// `90s`, `2m`, `1h`.
fn time(text: &str) -> Outcome<Duration> {
    let units = [('s', 1), ('m', 60), ('h', 3_600)];
    let found = units.into_iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(seconds)
    });
    let seconds = found.ok_or_else(|| format!("{text:?} is no time: 90s, 2m or 1h"))?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares() {
        assert_eq!(time("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(time("2m").unwrap(), Duration::from_secs(120));
        assert!(time("2").is_err() && time("m").is_err() && time("").is_err());
        assert_eq!(scaled(FULL), 200);
        assert_eq!(scaled(Duration::from_secs(120)), 13);
    }
}
