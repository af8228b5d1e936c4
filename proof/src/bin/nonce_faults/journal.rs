//! What the borrowers wrote down, read back.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use proof::Outcome;
use serde_json::Value;

use crate::times::RESERVATION;

/// Microseconds since 1970, as all processes of this machine read them.
pub(crate) type At = u64;

/// What one borrower did with one nonce that was lent to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReservationTerms {
    pub(crate) nonce: u64,
    pub(crate) holder: String,
    pub(crate) worker: usize,
    pub(crate) lent_at: At,
    pub(crate) expires_at: At,
    pub(crate) signed: Option<String>,
    pub(crate) announced_at: Option<At>,
    pub(crate) offered: Vec<String>,
    /// When it was about to be given back.
    pub(crate) returning_at: Option<At>,
    pub(crate) is_used: bool,
    /// Sent, and left to the chain to be closed.
    pub(crate) is_left: bool,
    pub(crate) is_abandoned: bool,
    pub(crate) dropped: Option<String>,
}

/// All journals together, as far as they were read.
#[derive(Debug, Default)]
pub(crate) struct Journals {
    files: Vec<Tail>,
    /// By holder.
    loans: BTreeMap<String, ReservationTerms>,
    /// When an allocation was refused, and why.
    pub(crate) refused: Vec<(At, String)>,
    /// By worker: when Redis was left out (false) and used again (true).
    pub(crate) redis: BTreeMap<usize, Vec<(At, bool)>>,
}

/// A file that grows.
#[derive(Debug)]
struct Tail {
    path: PathBuf,
    read: usize,
}

impl Journals {
    /// One per worker; none need be there yet.
    pub(crate) fn of(files: Vec<PathBuf>) -> Self {
        let tail = |path| Tail { path, read: 0 };
        Self {
            files: files.into_iter().map(tail).collect(),
            ..Self::default()
        }
    }

    /// Reads what has come since the last time.
    pub(crate) fn read_on(&mut self) -> Outcome<()> {
        for worker in 0..self.files.len() {
            let tail = &mut self.files[worker];
            if !tail.path.exists() {
                continue;
            }
            let mut file = File::open(&tail.path)?;
            file.seek(SeekFrom::Start(u64::try_from(tail.read)?))?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            // The last line may be half written at this moment.
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            tail.read += whole;
            for line in text[..whole].lines() {
                self.take(worker, &serde_json::from_str(line)?)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, worker: usize, line: &Value) -> Outcome<()> {
        let at = line["at"].as_u64().ok_or("a line without a time")?;
        match line["kind"].as_str().unwrap_or_default() {
            "refused" => {
                let why = line["why"].as_str().unwrap_or_default();
                self.refused.push((at, why.to_owned()));
            }
            "redis" => {
                let is_well = line["isWell"] == true;
                self.redis.entry(worker).or_default().push((at, is_well));
            }
            kind => {
                let holder = line["holder"].as_str().ok_or("a line without a holder")?;
                let loan = self.loans.entry(holder.to_owned()).or_default();
                loan.worker = worker;
                loan.take(kind, at, line)?;
            }
        }
        Ok(())
    }

    /// All loans.
    pub(crate) fn loans(&self) -> impl Iterator<Item = &ReservationTerms> {
        self.loans.values()
    }

    /// The highest nonce that was ever lent.
    pub(crate) fn top(&self) -> Option<u64> {
        self.loans().map(|loan| loan.nonce).max()
    }

    /// How many were lent since then, by whom.
    pub(crate) fn lent_since(&self, at: At) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        for loan in self.loans().filter(|loan| loan.lent_at >= at) {
            *counts.entry(loan.worker).or_default() += 1;
        }
        counts
    }
}

impl ReservationTerms {
    fn take(&mut self, kind: &str, at: At, line: &Value) -> Outcome<()> {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        match kind {
            "lent" => {
                self.nonce = line["nonce"].as_u64().ok_or("a loan without a nonce")?;
                self.holder = text("holder");
                self.lent_at = at;
                let expires = line["expiresAt"].as_u64().ok_or("a loan without an end")?;
                self.expires_at = expires * 1_000;
            }
            "signed" => self.signed = Some(text("hash")),
            "announced" => {
                // A second life announces again what the first one had.
                self.announced_at.get_or_insert(at);
            }
            "offered" => self.offered.push(text("hash")),
            "used" => self.is_used = true,
            "left" => self.is_left = true,
            "returning" => self.returning_at = Some(at),
            "abandoned" => self.is_abandoned = true,
            "dropped" => self.dropped = Some(text("why")),
            "returned" => {}
            other => return Err(format!("no such line: {other}").into()),
        }
        Ok(())
    }

    /// When it was granted, at the latest.
    pub(crate) fn granted_at(&self) -> At {
        let time = u64::try_from(RESERVATION.as_micros()).unwrap_or(u64::MAX);
        self.lent_at.min(self.expires_at.saturating_sub(time))
    }

    /// Whether its holder has done nothing with it yet.
    pub(crate) fn is_silent(&self) -> bool {
        self.signed.is_none() && self.returning_at.is_none() && !self.is_abandoned
    }
}
