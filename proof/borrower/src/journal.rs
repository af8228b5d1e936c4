//! Every step, written down before it is taken, one JSON object per line. A line is one write to a file that is
//! opened for appending: `kill -9` loses none that was written.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use domain::B256;
use proof::Outcome;
use serde_json::{Value, json};

use crate::door::ReservationTerms;

/// The journal of one borrower, over all its lives.
pub(crate) struct Journal {
    file: Mutex<File>,
}

/// What is written down.
#[derive(Clone, Debug)]
pub(crate) enum Entry<'a> {
    /// A nonce was lent to us.
    Lent(&'a ReservationTerms),
    /// No nonce was lent, for this kind of reason.
    Refused(&'a str),
    /// A transaction is signed; its hash is about to be announced.
    Signed(&'a ReservationTerms, B256, &'a str),
    /// The announcement was taken: it may be sent.
    Announced(&'a ReservationTerms),
    /// It is about to be offered to the node.
    Offered(&'a ReservationTerms, B256),
    /// The announcement was refused for good: it is never sent.
    Dropped(&'a ReservationTerms, &'a str),
    /// We said that it is used, and that was taken.
    Used(&'a ReservationTerms),
    /// It is sent, and we say nothing more: the chain closes it.
    Left(&'a ReservationTerms),
    /// We are about to give it back.
    Returning(&'a ReservationTerms),
    /// It was taken back.
    Returned(&'a ReservationTerms),
    /// We say nothing more about it.
    Abandoned(&'a ReservationTerms),
    /// Redis is in use, or left out.
    Redis(bool),
}

impl Journal {
    pub(crate) fn append_to(path: &Path) -> Outcome<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self {
            file: Mutex::new(file),
        })
    }

    /// Writes a line. A journal that cannot be written ends the business: nothing may happen that it does not tell.
    pub(crate) fn write(&self, entry: &Entry<'_>) -> Outcome<()> {
        let mut line = form(entry);
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        line["at"] = u64::try_from(since_epoch.as_micros())?.into();
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(format!("{line}\n").as_bytes())?;
        Ok(())
    }
}

fn form(entry: &Entry<'_>) -> Value {
    let of = |kind: &str, loan: &ReservationTerms| json!({"kind": kind, "nonce": loan.nonce.0, "holder": loan.holder.0.to_string()});
    let with = |mut line: Value, key: &str, value: Value| {
        line[key] = value;
        line
    };
    match entry {
        Entry::Lent(loan) => with(of("lent", loan), "expiresAt", loan.expires_at.0.into()),
        Entry::Refused(why) => json!({"kind": "refused", "why": why}),
        Entry::Signed(loan, hash, raw) => {
            let line = with(of("signed", loan), "hash", hash.to_string().into());
            with(line, "raw", (*raw).into())
        }
        Entry::Announced(loan) => of("announced", loan),
        Entry::Offered(loan, hash) => with(of("offered", loan), "hash", hash.to_string().into()),
        Entry::Dropped(loan, why) => with(of("dropped", loan), "why", (*why).into()),
        Entry::Used(loan) => of("used", loan),
        Entry::Left(loan) => of("left", loan),
        Entry::Returning(loan) => of("returning", loan),
        Entry::Returned(loan) => of("returned", loan),
        Entry::Abandoned(loan) => of("abandoned", loan),
        Entry::Redis(is_well) => json!({"kind": "redis", "isWell": is_well}),
    }
}
