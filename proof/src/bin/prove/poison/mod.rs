//! 14.1: every kind of poisoned request on anvil, hardhat, ganache and the dev chain: refused with the right problem, or
//! harmless; in both cases the next payment of the same account is mined in time.

mod kinds;
mod trial;

use std::collections::BTreeMap;

use proof::network::{NodeKind, parse_node_kinds};
use proof::stats::{Spread, ms};
use proof::{Outcome, Report, ensure, flag, print_step};
use serde_json::json;

use trial::{Setup, Verdict};

const PROOF: &str = "14-1-poison";

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let setups = chosen()?;
    let only = flag("only", "");
    let (mut table, mut shortfalls) = (Table::default(), Vec::new());
    let (mut refused, mut next) = (0, Vec::new());
    for setup in &setups {
        report.part(setup.name());
        let verdicts = setup.run(&only).await?;
        for verdict in &verdicts {
            if let Some(why) = &verdict.shortfall {
                shortfalls.push(format!("{} on {}: {why}", verdict.kind, setup.name()));
            }
            refused += usize::from(!verdict.answer.starts_with("accepted"));
            next.extend(verdict.next);
            let next_ms = verdict.next.map(ms);
            report.note(
                verdict.kind,
                json!({"answer": verdict.answer, "nextMinedMs": next_ms, "shortfall": verdict.shortfall}),
            );
            table.insert(&setup.name(), verdict);
        }
        let slowest =
            Spread::of(verdicts.iter().filter_map(|verdict| verdict.next).collect()).max();
        report.fact("slowestNextMs", ms(slowest));
    }
    report.part("summary");
    print_step(table.to_markdown());
    report.note("table", table.to_markdown());
    report.fact("shortfalls", json!(shortfalls));
    let tried = table.count();
    ensure(
        shortfalls.is_empty(),
        format!(
            "{} of {tried} fall short: {}",
            shortfalls.len(),
            shortfalls.join("; ")
        ),
    )?;
    Ok(format!(
        "{} kinds on {} chains, {tried} trials: {refused} refused, {} harmless; the next payment mined after {} ms at most",
        table.rows.len(),
        setups.len(),
        tried - refused,
        ms(Spread::of(next).max()),
    ))
}

/// The selected chains: `--node a,b`, `--endpoints 1|2`; each with and without base fee, and with one endpoint and two.
fn chosen() -> Outcome<Vec<Setup>> {
    let node_kinds = match flag("node", "").as_str() {
        "" => NodeKind::ALL.to_vec(),
        named => parse_node_kinds(named)?,
    };
    let endpoints: Vec<usize> = match flag("endpoints", "").as_str() {
        "" => vec![1, 2],
        count => vec![count.parse()?],
    };
    let is_short = std::env::args().any(|arg| arg == "--short");
    let mut setups = Vec::new();
    for node_kind in node_kinds {
        for is_legacy in [false, true] {
            if is_legacy && (is_short || node_kind == NodeKind::Devchain) {
                continue; // the dev chain always has a base fee
            }
            setups.extend(endpoints.iter().map(|endpoints| Setup {
                node_kind,
                is_legacy,
                endpoints: *endpoints,
            }));
        }
    }
    Ok(setups)
}

/// Kind by kind, in the order of their first trial.
#[derive(Default)]
struct Table {
    rows: Vec<&'static str>,
    columns: Vec<String>,
    cells: BTreeMap<(&'static str, String), String>,
}

impl Table {
    fn insert(&mut self, column: &str, verdict: &Verdict) {
        if !self.rows.contains(&verdict.kind) {
            self.rows.push(verdict.kind);
        }
        if !self.columns.iter().any(|known| known == column) {
            self.columns.push(column.to_owned());
        }
        let next = verdict
            .next
            .map(|next| format!("{:.1} s", next.as_secs_f64()));
        let next = next.unwrap_or_else(|| "never".into());
        let cell = match &verdict.shortfall {
            Some(why) => format!("**{why}**"),
            None => format!("{}, {next}", verdict.answer),
        };
        self.cells.insert((verdict.kind, column.to_owned()), cell);
    }

    fn count(&self) -> usize {
        self.cells.len()
    }

    fn to_markdown(&self) -> String {
        let mut lines = vec![
            format!("| poison | {} |", self.columns.join(" | ")),
            format!("|---|{}", "---|".repeat(self.columns.len())),
        ];
        for row in &self.rows {
            let cell = |column: &String| {
                let cell = self.cells.get(&(*row, column.clone()));
                cell.cloned().unwrap_or_default()
            };
            let cells: Vec<String> = self.columns.iter().map(cell).collect();
            lines.push(format!("| {row} | {} |", cells.join(" | ")));
        }
        lines.join("\n")
    }
}
