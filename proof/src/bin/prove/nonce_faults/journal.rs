//! The journals of the holders.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use proof::Outcome;
use serde_json::Value;

use crate::nonce_faults::times::RESERVATION;

/// Microseconds since 1970, the same clock for all processes of this machine.
pub(crate) type MicrosTime = u64;

/// What a holder did with one nonce.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldNonce {
    pub(crate) nonce: u64,
    pub(crate) holder: String,
    pub(crate) worker: usize,
    pub(crate) allocated_at: MicrosTime,
    pub(crate) expires_at: MicrosTime,
    pub(crate) signed: Option<String>,
    pub(crate) announced_at: Option<MicrosTime>,
    pub(crate) offered: Vec<String>,
    /// When its release was about to be requested.
    pub(crate) returning_at: Option<MicrosTime>,
    pub(crate) is_used: bool,
    /// Sent, and left to the chain to close it.
    pub(crate) is_left: bool,
    pub(crate) is_abandoned: bool,
    pub(crate) dropped: Option<String>,
}

/// All journals, as far as they were read.
#[derive(Debug, Default)]
pub(crate) struct Journals {
    files: Vec<Tail>,
    /// By holder.
    reservations: BTreeMap<String, HeldNonce>,
    /// Refused allocations and their reasons.
    pub(crate) refused: Vec<(MicrosTime, String)>,
    /// By worker: when Redis was bypassed (false) and used again (true).
    pub(crate) redis: BTreeMap<usize, Vec<(MicrosTime, bool)>>,
}

/// A file that grows.
#[derive(Debug)]
struct Tail {
    path: PathBuf,
    read: usize,
}

impl Journals {
    /// One per worker; they may not exist yet.
    pub(crate) fn of(files: Vec<PathBuf>) -> Self {
        let tail = |path| Tail { path, read: 0 };
        Self {
            files: files.into_iter().map(tail).collect(),
            ..Self::default()
        }
    }

    /// Reads new lines.
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
            // The last line may be incomplete.
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            tail.read += whole;
            for line in text[..whole].lines() {
                self.apply_line(worker, &serde_json::from_str(line)?)?;
            }
        }
        Ok(())
    }

    fn apply_line(&mut self, worker: usize, line: &Value) -> Outcome<()> {
        let at = line["at"].as_u64().ok_or("a line without a time")?;
        match line["kind"].as_str().unwrap_or_default() {
            "refused" => {
                let why = line["why"].as_str().unwrap_or_default();
                self.refused.push((at, why.to_owned()));
            }
            "redis" => {
                let is_well = line["isAvailable"] == true;
                self.redis.entry(worker).or_default().push((at, is_well));
            }
            kind => {
                let holder = line["holder"].as_str().ok_or("a line without a holder")?;
                let reservation = self.reservations.entry(holder.to_owned()).or_default();
                reservation.worker = worker;
                reservation.apply_line(kind, at, line)?;
            }
        }
        Ok(())
    }

    pub(crate) fn reservations(&self) -> impl Iterator<Item = &HeldNonce> {
        self.reservations.values()
    }

    /// The highest allocated nonce.
    pub(crate) fn top(&self) -> Option<u64> {
        self.reservations()
            .map(|reservation| reservation.nonce)
            .max()
    }

    /// Allocations since then, by worker.
    pub(crate) fn allocated_since(&self, at: MicrosTime) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        for reservation in self
            .reservations()
            .filter(|reservation| reservation.allocated_at >= at)
        {
            *counts.entry(reservation.worker).or_default() += 1;
        }
        counts
    }
}

impl HeldNonce {
    fn apply_line(&mut self, kind: &str, at: MicrosTime, line: &Value) -> Outcome<()> {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        match kind {
            "reserved" => {
                self.nonce = line["nonce"]
                    .as_u64()
                    .ok_or("a reservation without a nonce")?;
                self.holder = text("holder");
                self.allocated_at = at;
                let expires = line["expiresAt"]
                    .as_u64()
                    .ok_or("a reservation without an expiry")?;
                self.expires_at = expires * 1_000;
            }
            "signed" => self.signed = Some(text("hash")),
            "announced" => {
                // A restarted holder announces its earlier transactions again.
                self.announced_at.get_or_insert(at);
            }
            "offered" => self.offered.push(text("hash")),
            "used" => self.is_used = true,
            "left" => self.is_left = true,
            "recycling" => self.returning_at = Some(at),
            "abandoned" => self.is_abandoned = true,
            "dropped" => self.dropped = Some(text("why")),
            "recycled" => {}
            other => return Err(format!("no such line: {other}").into()),
        }
        Ok(())
    }

    /// The latest possible time of the grant.
    pub(crate) fn granted_at(&self) -> MicrosTime {
        let time = u64::try_from(RESERVATION.as_micros()).unwrap_or(u64::MAX);
        self.allocated_at.min(self.expires_at.saturating_sub(time))
    }

    /// Whether its holder has not used it yet.
    pub(crate) fn is_silent(&self) -> bool {
        self.signed.is_none() && self.returning_at.is_none() && !self.is_abandoned
    }
}
