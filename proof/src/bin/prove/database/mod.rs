//! 3.4: database failures under load. After a kill and restart: 503 quickly, automatic recovery, nothing lost or
//! duplicated. After the promotion of a synchronous standby: no accepted request is lost. After the promotion of an
//! asynchronous standby: lanes with lost commits halt and name the loss, the others continue.

mod loss;
mod promotion;
mod restart;

use std::time::Duration;

use proof::cluster::{Settings, chosen_majors};
use proof::config::Lease;
use proof::{Outcome, Report, flag};

const LEASE: Lease = Lease {
    duration: Duration::from_secs(3),
    renew: Duration::from_millis(900),
    skew: Duration::from_millis(500),
};

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let rounds: usize = flag("rounds", "5").parse()?;
    let promotions: usize = flag("promotions", "3").parse()?;
    let mut figures = Vec::new();
    for major in chosen_majors(&["rounds", "promotions", "part"])? {
        report.part(format!("PostgreSQL {major}"));
        figures.push(prove_on(report, major, rounds, promotions).await?);
    }
    Ok(figures.join("; "))
}

async fn prove_on(
    report: &mut Report,
    major: u32,
    rounds: usize,
    promotions: usize,
) -> Outcome<String> {
    let part = flag("part", "all");
    let mut figures = vec![format!("PostgreSQL {major}")];
    if part == "all" || part == "restart" {
        figures.push(restart::prove(report, major, rounds).await?);
    }
    if part == "all" || part == "promotion" {
        figures.push(promotion::prove(report, major, promotions).await?);
    }
    if part == "all" || part == "loss" {
        figures.push(loss::prove(report, major).await?);
    }
    Ok(figures.join("; "))
}

fn settings(lanes: usize) -> Settings {
    Settings {
        lease: LEASE,
        ..Settings::new("03-4-database", lanes)
    }
}
