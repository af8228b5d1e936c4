//! The journal: every step is written before it is taken, one JSON object per line. A line is one write to a file opened
//! for appending, so `kill -9` loses no written line.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use domain::B256;
use proof::Outcome;
use serde_json::{Value, json};

use crate::nonce_source::ReservedNonce;

/// The journal of one holder, over all its incarnations.
pub(crate) struct Journal {
    file: Mutex<File>,
}

/// One line.
#[derive(Clone, Debug)]
pub(crate) enum Entry<'a> {
    /// A nonce was reserved.
    Reserved(&'a ReservedNonce),
    /// No nonce was reserved, for this kind of reason.
    Refused(&'a str),
    /// A transaction is signed; its hash is about to be submitted.
    Signed(&'a ReservedNonce, B256, &'a str),
    /// The submission was accepted: the transaction may be sent.
    Announced(&'a ReservedNonce),
    /// The transaction is about to be sent to the node.
    Offered(&'a ReservedNonce, B256),
    /// The submission was refused permanently: the transaction is never sent.
    Dropped(&'a ReservedNonce, &'a str),
    /// The nonce was marked used.
    Used(&'a ReservedNonce),
    /// The transaction is sent, and the chain closes the reservation without a mark.
    LeftToChain(&'a ReservedNonce),
    /// The nonce is about to be recycled.
    Recycling(&'a ReservedNonce),
    /// The nonce was recycled.
    Recycled(&'a ReservedNonce),
    /// The nonce is forgotten on purpose.
    Abandoned(&'a ReservedNonce),
    /// Whether Redis is in use.
    Redis(bool),
}

impl Journal {
    pub(crate) fn open(path: &Path) -> Outcome<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self {
            file: Mutex::new(file),
        })
    }

    /// Writes a line. A failure ends the process: no step may be taken that the journal does not have.
    pub(crate) fn write(&self, entry: &Entry<'_>) -> Outcome<()> {
        let mut line = to_json(entry);
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        line["at"] = u64::try_from(since_epoch.as_micros())?.into();
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(format!("{line}\n").as_bytes())?;
        Ok(())
    }
}

fn to_json(entry: &Entry<'_>) -> Value {
    let of = |kind: &str, reserved: &ReservedNonce| json!({"kind": kind, "nonce": reserved.nonce.0, "holder": reserved.holder.0.to_string()});
    let with = |mut line: Value, key: &str, value: Value| {
        line[key] = value;
        line
    };
    match entry {
        Entry::Reserved(reserved) => with(
            of("reserved", reserved),
            "expiresAt",
            reserved.expires_at.0.into(),
        ),
        Entry::Refused(why) => json!({"kind": "refused", "why": why}),
        Entry::Signed(reserved, hash, raw) => {
            let line = with(of("signed", reserved), "hash", hash.to_string().into());
            with(line, "raw", (*raw).into())
        }
        Entry::Announced(reserved) => of("announced", reserved),
        Entry::Offered(reserved, hash) => {
            with(of("offered", reserved), "hash", hash.to_string().into())
        }
        Entry::Dropped(reserved, why) => with(of("dropped", reserved), "why", (*why).into()),
        Entry::Used(reserved) => of("used", reserved),
        Entry::LeftToChain(reserved) => of("left", reserved),
        Entry::Recycling(reserved) => of("recycling", reserved),
        Entry::Recycled(reserved) => of("recycled", reserved),
        Entry::Abandoned(reserved) => of("abandoned", reserved),
        Entry::Redis(is_available) => json!({"kind": "redis", "isAvailable": is_available}),
    }
}
