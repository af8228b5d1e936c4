//! Filters, limits and cursors of lists.

use domain::{ChainId, EventKind, LaneKey, TxState};
use engine::ports::{EventFilter, TxFilter};

use crate::parse::account::{address, tx_id};
use crate::parse::amount::chain_id;
use crate::parse::{Broken, Query, excerpt};
use crate::problem::{Problem, ProblemKind};

/// The largest page.
const LIMIT_MAX: usize = 1_000;
/// The page of a caller that does not say.
const LIMIT_DEFAULT: usize = 100;
/// Longer cursors are none of ours; what they hold is the store's business.
const CURSOR_LEN_MAX: usize = 256;

/// The filter of `GET /api/v1/tx`.
pub(crate) fn tx_filter(query: &Query<'_>) -> Result<TxFilter, Problem> {
    Ok(TxFilter {
        chain_id: query.optional("chainId", chain_id)?,
        signer: query.optional("signer", address)?,
        state: query.optional("state", state)?,
        after: query
            .get("cursor")
            .map(|text| tx_id(text).or(Err(no_cursor("cursor"))))
            .transpose()?,
        limit: limit(query)?,
    })
}

/// The filter of `GET /api/v1/events` and of its stream.
pub(crate) fn event_filter(query: &Query<'_>) -> Result<EventFilter, Problem> {
    Ok(EventFilter {
        after: query
            .get("after")
            .map(|text| event_cursor(text, "after"))
            .transpose()?,
        chain_id: query.optional("chainId", chain_id)?,
        signer: query.optional("signer", address)?,
        kinds: query.optional("type", kinds)?.unwrap_or_default(),
        limit: limit(query)?,
    })
}

/// The page of `GET /api/v1/lanes`: continue after this lane, at most so many.
pub(crate) fn lane_page(query: &Query<'_>) -> Result<(Option<LaneKey>, usize), Problem> {
    let after = match query.get("cursor") {
        None => None,
        Some(text) => Some(lane_key(text).ok_or_else(|| no_cursor("cursor"))?),
    };
    Ok((after, limit(query)?))
}

/// A cursor of the feed, which only the store can read.
pub(super) fn event_cursor(text: &str, name: &str) -> Result<String, Problem> {
    let fits = (1..=CURSOR_LEN_MAX).contains(&text.len());
    if fits && text.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    Err(no_cursor(name))
}

fn lane_key(text: &str) -> Option<LaneKey> {
    let (chain, signer) = text.split_once(':')?;
    let chain_id: ChainId = chain_id(chain).ok()?;
    Some(LaneKey {
        chain_id,
        signer: address(signer).ok()?,
    })
}

fn no_cursor(name: &str) -> Problem {
    Problem::new(
        ProblemKind::InvalidCursor,
        format!(
            "`{name}` is not a cursor of this list: send `next` of an earlier answer unchanged, or \
             leave it out to start anew"
        ),
    )
}

fn limit(query: &Query<'_>) -> Result<usize, Problem> {
    let parsed = query.optional("limit", |text| {
        let is_decimal = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(limit) if is_decimal && (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
            Ok(_) | Err(_) => Err(Broken::by(format!(
                "must be a number from 1 to {LIMIT_MAX}, not {}",
                excerpt(text)
            ))),
        }
    })?;
    Ok(parsed.unwrap_or(LIMIT_DEFAULT))
}

fn state(text: &str) -> Result<TxState, Broken> {
    TxState::from_word(text).ok_or_else(|| {
        let words = TxState::ALL.map(TxState::as_str).join(", ");
        Broken::by(format!("must be one of {words}, not {}", excerpt(text)))
    })
}

fn kinds(text: &str) -> Result<Vec<String>, Broken> {
    let mut kinds: Vec<String> = Vec::new();
    for word in text.split(',') {
        if !EventKind::NAMES.contains(&word) {
            let words = EventKind::NAMES.join(", ");
            return Err(Broken::by(format!(
                "must name event types, separated by commas, among {words}, not {}",
                excerpt(word)
            )));
        }
        // Bounds the list by the number of words that there are.
        if !kinds.iter().any(|seen| seen == word) {
            kinds.push(word.to_owned());
        }
    }
    Ok(kinds)
}
