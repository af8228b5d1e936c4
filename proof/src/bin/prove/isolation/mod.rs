//! 14.3: what one caller does costs others nothing. A repeat of a known request while thousands of txs are in flight, and
//! a flood of reverted transactions whose reasons take a second each.

mod repeat;
mod reverts;

use proof::cluster::postgres;
use proof::{Outcome, Report, flag};
use rig::postgres::majors;

const PROOF: &str = "14-3-isolation";

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let in_flight: usize = flag("in-flight", "5000").parse()?;
    let reverts: usize = flag("reverts", "1000").parse()?;
    let payments: usize = flag("payments", "20").parse()?;
    let major = majors().last().copied().ok_or("no PostgreSQL")?;
    let server = postgres(major).await?;
    let repeat = repeat::count(report, &server, in_flight).await;
    let reverts = reverts::measure(report, &server, reverts, payments).await;
    // A failed part must not hide the result of the other.
    match (repeat, reverts) {
        (Ok(repeat), Ok(reverts)) => Ok(format!("{repeat}; {reverts}")),
        (Err(short), Ok(fine)) | (Ok(fine), Err(short)) => {
            Err(format!("{short}; but {fine}").into())
        }
        (Err(repeat), Err(reverts)) => Err(format!("{repeat}; {reverts}").into()),
    }
}
