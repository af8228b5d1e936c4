//! Where nonces come from: the library in this process, or the nodes of a cluster over HTTP.

mod http;
mod library;

use std::sync::Arc;

use async_trait::async_trait;
use domain::{B256, Holder, Nonce, Timestamp};
use proof::Outcome;

use crate::journal::Journal;
use crate::settings::{Settings, SourceSettings};

/// A reserved nonce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReservedNonce {
    pub(crate) nonce: Nonce,
    pub(crate) holder: Holder,
    pub(crate) expires_at: Timestamp,
}

/// A mark on it.
#[derive(Clone, Debug)]
pub(crate) enum Mark {
    Submitted(B256),
    Used(B256),
    Recyclable,
}

/// Why a call was refused.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// Refused by the rules: repeating it does not help.
    Permanent(String),
    /// May be repeated; the text is for counting.
    Retryable(&'static str),
}

impl Refusal {
    /// For counting.
    pub(crate) fn kind(&self) -> &str {
        match self {
            Self::Permanent(why) => why,
            Self::Retryable(kind) => kind,
        }
    }
}

/// Reserves and marks nonces.
#[async_trait]
pub(crate) trait NonceSource: Send + Sync {
    async fn allocate(&self) -> Result<ReservedNonce, Refusal>;
    async fn mark(&self, reserved: &ReservedNonce, mark: &Mark) -> Result<(), Refusal>;
    async fn close(&self);
}

/// Opens the source that the settings name.
pub(crate) async fn open(
    settings: &Settings,
    journal: &Arc<Journal>,
) -> Outcome<Arc<dyn NonceSource>> {
    Ok(match &settings.source {
        SourceSettings::Http { nodes } => Arc::new(http::Nodes::new(settings, nodes)?),
        SourceSettings::Library { .. } => {
            Arc::new(library::Library::open(settings, Arc::clone(journal)).await?)
        }
    })
}
