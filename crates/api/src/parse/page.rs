//! Filters, limits and cursors of lists.

use domain::{EventKind, LaneKey, Nonce, TxState};
use engine::ports::{EventFilter, LanePlace, TxCursor, TxFilter};

use crate::parse::amount::{chain_id, plain_decimal};
use crate::parse::identifier::{address, tx_id};
use crate::parse::{Query, RuleViolation, excerpt};
use crate::problem::{Problem, ProblemKind};

const LIMIT_MAX: usize = 1_000;
const LIMIT_DEFAULT: usize = 100;
/// Cursors of this API are shorter; their content is opaque here.
const CURSOR_LEN_MAX: usize = 256;

/// The filter of `GET /api/v1/tx`.
pub(crate) fn tx_filter(query: &Query<'_>) -> Result<TxFilter, Problem> {
    let mut filter = TxFilter {
        chain_id: query.optional("chainId", chain_id)?,
        signer: query.optional("signer", address)?,
        state: query.optional("state", parse_state)?,
        after: None,
        limit: parse_limit(query)?,
    };
    if let Some(text) = query.get("cursor") {
        let cursor = parse_tx_cursor(text).filter(|cursor| filter.has_place(*cursor));
        filter.after = Some(cursor.ok_or_else(|| invalid_cursor("cursor"))?);
    }
    Ok(filter)
}

/// The text of a cursor of `GET /api/v1/tx`.
pub(crate) fn tx_cursor_text(cursor: TxCursor) -> String {
    match cursor {
        TxCursor::After(id) => id.to_string(),
        TxCursor::InLane(LaneKey { chain_id, signer }, place) => match place {
            LanePlace::WithoutNonce(id) => format!("{chain_id}:{signer}:{id}"),
            LanePlace::WithNonce(nonce) => format!("{chain_id}:{signer}:n{nonce}"),
        },
    }
}

/// Reads exactly what [`tx_cursor_text`] writes.
fn parse_tx_cursor(text: &str) -> Option<TxCursor> {
    let cursor = match text.rsplit_once(':') {
        None => TxCursor::After(tx_id(text).ok()?),
        Some((lane, place)) => {
            let place = match place.strip_prefix('n') {
                Some(nonce) => LanePlace::WithNonce(Nonce(nonce.parse().ok()?)),
                None => LanePlace::WithoutNonce(tx_id(place).ok()?),
            };
            TxCursor::InLane(parse_lane_cursor(lane)?, place)
        }
    };
    (tx_cursor_text(cursor) == text).then_some(cursor)
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
        kinds: query.optional("type", parse_kinds)?.unwrap_or_default(),
        limit: parse_limit(query)?,
    })
}

/// The page of `GET /api/v1/lanes`: the lane to continue after, and the limit.
pub(crate) fn lane_page(query: &Query<'_>) -> Result<(Option<LaneKey>, usize), Problem> {
    let after = query
        .get("cursor")
        .map(|text| parse_lane_cursor(text).ok_or_else(|| invalid_cursor("cursor")))
        .transpose()?;
    Ok((after, parse_limit(query)?))
}

/// A cursor of the feed; only the store can interpret it.
pub(super) fn event_cursor(text: &str, name: &str) -> Result<String, Problem> {
    let fits = (1..=CURSOR_LEN_MAX).contains(&text.len());
    if fits && text.bytes().all(|b| b.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    Err(invalid_cursor(name))
}

fn parse_lane_cursor(text: &str) -> Option<LaneKey> {
    let (chain, signer) = text.split_once(':')?;
    Some(LaneKey {
        chain_id: chain_id(chain).ok()?,
        signer: address(signer).ok()?,
    })
}

fn invalid_cursor(name: &str) -> Problem {
    Problem::new(
        ProblemKind::InvalidCursor,
        format!(
            "`{name}` is not a cursor of this list: send `next` of an earlier response unchanged, or \
             leave it out to start at the beginning"
        ),
    )
}

fn parse_limit(query: &Query<'_>) -> Result<usize, Problem> {
    let parsed = query.optional("limit", |text| {
        let limit = plain_decimal(text).and_then(|limit| usize::try_from(limit).ok());
        let expected = format!("a number from 1 to {LIMIT_MAX} without leading zeros");
        limit
            .filter(|limit| (1..=LIMIT_MAX).contains(limit))
            .ok_or_else(|| RuleViolation::must_be(&expected, text))
    })?;
    Ok(parsed.unwrap_or(LIMIT_DEFAULT))
}

fn parse_state(text: &str) -> Result<TxState, RuleViolation> {
    text.parse().map_err(|_unknown| {
        let names = TxState::ALL.map(TxState::as_str).join(", ");
        RuleViolation::must_be(&format!("one of {names}"), text)
    })
}

fn parse_kinds(text: &str) -> Result<Vec<String>, RuleViolation> {
    let mut kinds: Vec<String> = Vec::new();
    for name in text.split(',') {
        if !EventKind::NAMES.contains(&name) {
            let names = EventKind::NAMES.join(", ");
            return Err(RuleViolation::new(format!(
                "must name event types, separated by commas, among {names}, not {}",
                excerpt(name)
            )));
        }
        // Bounds the list by the number of event types.
        if !kinds.iter().any(|seen| seen == name) {
            kinds.push(name.to_owned());
        }
    }
    Ok(kinds)
}
