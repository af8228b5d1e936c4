//! Where nonces come from: the library in this process, or the nodes of a cluster over HTTP.

mod http;
mod library;

use std::sync::Arc;

use async_trait::async_trait;
use domain::{B256, Holder, Nonce, Timestamp};
use proof::Outcome;

use crate::journal::Journal;
use crate::settings::{DoorSettings, Settings};

/// A nonce that was lent to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReservationTerms {
    pub(crate) nonce: Nonce,
    pub(crate) holder: Holder,
    pub(crate) expires_at: Timestamp,
}

/// What is said of it.
#[derive(Clone, Debug)]
pub(crate) enum Word {
    Submitted(B256),
    Used(B256),
    Recyclable,
}

/// Why something was not done.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// The rules refuse it: repeating it does not help.
    ForGood(String),
    /// A repetition may help; the word is for counting.
    Later(&'static str),
}

impl Refusal {
    /// For counting.
    pub(crate) fn kind(&self) -> &str {
        match self {
            Self::ForGood(why) => why,
            Self::Later(kind) => kind,
        }
    }
}

/// The door.
#[async_trait]
pub(crate) trait Door: Send + Sync {
    async fn allocate(&self) -> Result<ReservationTerms, Refusal>;
    async fn say(&self, loan: &ReservationTerms, word: &Word) -> Result<(), Refusal>;
    async fn close(&self);
}

/// The one that the settings name.
pub(crate) async fn open(settings: &Settings, journal: &Arc<Journal>) -> Outcome<Arc<dyn Door>> {
    Ok(match &settings.door {
        DoorSettings::Http { nodes } => Arc::new(http::Nodes::new(settings, nodes)?),
        DoorSettings::Library { .. } => {
            Arc::new(library::Library::open(settings, Arc::clone(journal)).await?)
        }
    })
}
