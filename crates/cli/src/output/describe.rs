//! Txs, lanes, nodes and events as text.

use std::fmt::{Display, Write as _};

use alloy_primitives::U256;
use serde_json::Value;

use super::{Columns, Tone, paint, safe};
use crate::amount;
use crate::client::{EventView, LaneView, MemberView, TxView};

fn state_tone(state: &str) -> Tone {
    match state {
        "CONFIRMED" => Tone::Good,
        "FAILED_FINAL" | "STUCK" => Tone::Bad,
        _ => Tone::Busy,
    }
}

pub fn tx_table(txs: &[TxView]) -> String {
    let mut table = Columns::new(&["tx", "state", "", "nonce#", "from", "value#", "to", "age#"]);
    for tx in txs {
        let to = tx.payload.to.as_deref();
        table.add_row(vec![
            (Tone::Plain, tx.tx_id.clone()),
            (state_tone(&tx.state), tx.state.clone()),
            (Tone::Quiet, tx.sub_state.clone().unwrap_or_default()),
            (Tone::Plain, or_dash(tx.nonce)),
            (Tone::Plain, short(&tx.signer)),
            (Tone::Plain, wei(&tx.payload.value)),
            (
                Tone::Plain,
                to.map_or_else(|| "(deploys)".to_owned(), short),
            ),
            (Tone::Quiet, age(&tx.created_at)),
        ]);
    }
    table.to_string()
}

pub fn tx_details(tx: &TxView) -> String {
    let mut page = Details::default();
    let sub = tx
        .sub_state
        .as_deref()
        .map_or_else(String::new, |sub| format!(" ({})", safe(sub)));
    page.line("tx", &tx.tx_id);
    let state = paint(state_tone(&tx.state), &safe(&tx.state));
    page.painted_line("state", &format!("{state}{sub}"));
    page.optional_line("reason", tx.reason.as_deref());
    page.optional_line("waiting for", tx.waiting_for.as_deref());
    page.line("request", &tx.request_id);
    page.line("chain", tx.chain_id);
    page.line("from", &tx.signer);
    let to = tx.payload.to.as_deref();
    page.line("to", to.unwrap_or("(deploys a contract)"));
    page.line("value", wei(&tx.payload.value));
    if tx.payload.data.len() > 2 {
        let bytes = (tx.payload.data.len() - 2) / 2;
        page.line("data", format_args!("{bytes} bytes"));
    }
    page.optional_line("nonce", tx.nonce);
    page.optional_line("hash", tx.tx_hash.as_deref());
    if tx.attempts.len() > 1 {
        for attempt in &tx.attempts {
            let sent = attempt.first_sent_at.as_deref().unwrap_or("not sent yet");
            let (hash, kind) = (&attempt.tx_hash, &attempt.kind);
            page.line("attempt", format_args!("{hash} {kind} {sent}"));
        }
    }
    if let Some(receipt) = &tx.receipt {
        let (number, hash) = (receipt.block_number, &receipt.block_hash);
        page.line("block", format_args!("{number} {hash}"));
        let (status, gas) = (&receipt.status, plain(&receipt.gas_used));
        page.line("result", format_args!("{status}, {gas} gas used"));
        page.optional_line("revert", receipt.revert_reason.as_deref());
        let newest = tx
            .confirmations
            .last()
            .map_or(number, |header| header.number);
        page.line("confirmations", newest.saturating_sub(number));
    }
    page.line("accepted", &tx.created_at);
    page.optional_line("confirmed", tx.confirmed_at.as_deref());
    page.text
}

pub fn lane_table(lanes: &[LaneView]) -> String {
    let headings = [
        "chain#",
        "signer",
        "keeper",
        "token#",
        "next#",
        "mined#",
        "in flight#",
        "queued#",
        "",
    ];
    let mut table = Columns::new(&headings);
    for lane in lanes {
        let keeper = lane.keeper.as_ref();
        let mined = lane.chain_nonce.as_ref().map(|nonce| nonce.latest);
        table.add_row(vec![
            (Tone::Plain, lane.chain_id.to_string()),
            (Tone::Plain, lane.signer.clone()),
            (Tone::Plain, or_dash(keeper.map(|keeper| &keeper.node))),
            (Tone::Plain, or_dash(keeper.map(|keeper| keeper.token))),
            (Tone::Plain, lane.next_nonce.to_string()),
            (Tone::Plain, or_dash(mined)),
            (Tone::Plain, lane.in_flight.to_string()),
            (Tone::Plain, lane.queued.to_string()),
            lane_warning(lane),
        ]);
    }
    table.to_string()
}

fn lane_warning(lane: &LaneView) -> (Tone, String) {
    if let Some(why) = &lane.waiting_for {
        (Tone::Bad, why.clone())
    } else if lane.paused {
        (Tone::Bad, "paused".to_owned())
    } else if !lane.gaps.is_empty() {
        (Tone::Busy, format!("{} gaps", lane.gaps.len()))
    } else {
        (Tone::Quiet, String::new())
    }
}

pub fn node_table(members: &[MemberView]) -> String {
    let mut table = Columns::new(&["node", "address", "up for#", "seen", ""]);
    for member in members {
        let (tone, note) = match (member.draining, member.this_node) {
            (true, _) => (Tone::Busy, "draining"),
            (false, true) => (Tone::Quiet, "this node"),
            (false, false) => (Tone::Quiet, ""),
        };
        table.add_row(vec![
            (Tone::Strong, member.node.clone()),
            (Tone::Plain, or_dash(member.advertise.as_ref())),
            (Tone::Plain, age(&member.started_at)),
            (Tone::Plain, format!("{} ago", age(&member.seen_at))),
            (tone, note.to_owned()),
        ]);
    }
    table.to_string()
}

pub fn lane_details(lane: &LaneView) -> String {
    let mut page = Details::default();
    page.line("chain", lane.chain_id);
    page.line("signer", &lane.signer);
    match &lane.keeper {
        Some(keeper) => {
            let (node, token, until) = (&keeper.node, keeper.token, &keeper.expires_at);
            page.line(
                "keeper",
                format_args!("{node} (token {token}) until {until}"),
            );
        }
        None => page.line(
            "keeper",
            "none; the next request or restart acquires the lane",
        ),
    }
    page.line("next nonce", lane.next_nonce);
    if let Some(nonce) = &lane.chain_nonce {
        let (latest, pending) = (nonce.latest, nonce.pending);
        page.line(
            "chain nonce",
            format_args!("{latest} latest, {pending} pending"),
        );
    }
    page.line("in flight", lane.in_flight);
    page.line("queued", lane.queued);
    if !lane.gaps.is_empty() {
        let shown = lane.gaps.iter().take(GAPS_SHOWN_MAX).map(u64::to_string);
        let gaps = shown.collect::<Vec<_>>().join(", ");
        match lane.gaps.len().saturating_sub(GAPS_SHOWN_MAX) {
            0 => page.line("gaps", gaps),
            more => page.line("gaps", format_args!("{gaps} and {more} more")),
        }
    }
    page.line("paused", if lane.paused { "yes" } else { "no" });
    page.optional_line("waiting for", lane.waiting_for.as_deref());
    page.text
}

const GAPS_SHOWN_MAX: usize = 20;

/// An event in one line.
pub fn event_line(event: &EventView) -> String {
    let (tone, label) = match event.r#type.as_str() {
        "TxAccepted" => (Tone::Plain, "accepted"),
        "TxAllocated" => (Tone::Plain, "allocated"),
        "TxSubmitted" => (Tone::Busy, "submitted"),
        "TxReceiptUpdated" => (Tone::Busy, "mined"),
        "TxConfirmations" => (Tone::Busy, "confirmations"),
        "TxConfirmed" => (Tone::Good, "confirmed"),
        "TxFailed" => (Tone::Bad, "failed"),
        "TxStuck" => (Tone::Bad, "stuck"),
        "TxReorged" => (Tone::Bad, "reorged out"),
        other => (Tone::Plain, other),
    };
    let mut details = Vec::new();
    let data = |key: &str| event.data.get(key).filter(|value| !value.is_null());
    let mut add_detail = |key: &str, label: &str| {
        details.extend(data(key).map(|value| format!("{label}{}", plain(value))));
    };
    add_detail("nonce", "nonce ");
    add_detail("txHash", "");
    add_detail("blockNumber", "block ");
    add_detail("status", "");
    add_detail("count", "");
    add_detail("reason", "");
    add_detail("from", "previous keeper ");
    if event.r#type == "TxConfirmed" {
        let newest = data("confirmations").and_then(|list| list.as_array()?.last()?.get("number"));
        let blocks = [newest, data("blockNumber")].map(|number| number.and_then(Value::as_u64));
        if let [Some(newest), Some(block)] = blocks {
            details.push(format!("{} confirmations", newest.saturating_sub(block)));
        }
    }
    if data("afterFinal") == Some(&Value::Bool(true)) {
        details.push("after it was final".to_owned());
    }
    let padded = format!("{:<13}", safe(label));
    format!("{} {}", paint(tone, &padded), details.join("  "))
        .trim_end()
        .to_owned()
}

/// The time of day of an RFC 3339 timestamp.
pub fn clock_time(at: &str) -> &str {
    at.get(11..23).unwrap_or(at)
}

fn or_dash(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A JSON value without its quotes.
fn plain(value: &Value) -> String {
    match value.as_str() {
        Some(text) => safe(text),
        None => safe(&value.to_string()),
    }
}

/// `0xf39F…2266`
pub fn short(hex: &str) -> String {
    let tail = hex.len().checked_sub(4).and_then(|from| hex.get(from..));
    match (hex.get(..6), tail) {
        (Some(head), Some(tail)) if hex.len() > 12 => format!("{head}…{tail}"),
        _ => hex.to_owned(),
    }
}

fn wei(decimal: &str) -> String {
    U256::from_str_radix(decimal, 10).map_or_else(|_| decimal.to_owned(), amount::show)
}

/// The time since a timestamp, in one unit.
fn age(at: &str) -> String {
    use time::format_description::well_known::Rfc3339;
    let Ok(at) = time::OffsetDateTime::parse(at, &Rfc3339) else {
        return String::new();
    };
    let seconds = (time::OffsetDateTime::now_utc() - at)
        .whole_seconds()
        .max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[derive(Default)]
struct Details {
    text: String,
}

impl Details {
    fn line(&mut self, label: &str, value: impl Display) {
        self.painted_line(label, &safe(&value.to_string()));
    }

    fn optional_line(&mut self, label: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.line(label, value);
        }
    }

    fn painted_line(&mut self, label: &str, value: &str) {
        let label = paint(Tone::Quiet, &format!("{label:<14}"));
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        write!(self.text, "{label}{value}").expect("writing to a string");
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn tx_details_show_every_field() {
        let tx: TxView = serde_json::from_value(json!({
            "txId": "0192-a", "chainId": 31337, "signer": "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266",
            "requestId": "payout-7", "nonce": 3, "state": "TRACKING", "subState": "mined",
            "reason": null, "waitingFor": "confirmations", "txHash": "0xabcd",
            "payload": {"to": "0x70997970C51812dc3A010C7d01b50e0d17dc79C8", "value": "100000000000000000", "data": "0x1234"},
            "attempts": [{"txHash": "0xabcd", "kind": "original", "firstSentAt": null}],
            "receipt": {"blockNumber": 9, "blockHash": "0xbb", "status": "success", "gasUsed": "21000", "revertReason": null},
            "confirmations": [{"number": 9}, {"number": 10}], "createdAt": "2026-01-01T00:00:00.000Z", "confirmedAt": null,
        }))
        .unwrap();
        expect![[r#"
            tx            0192-a
            state         TRACKING (mined)
            waiting for   confirmations
            request       payout-7
            chain         31337
            from          0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266
            to            0x70997970C51812dc3A010C7d01b50e0d17dc79C8
            value         0.1 eth
            data          2 bytes
            nonce         3
            hash          0xabcd
            block         9 0xbb
            result        success, 21000 gas used
            confirmations 1
            accepted      2026-01-01T00:00:00.000Z"#]]
        .assert_eq(&tx_details(&tx));
    }

    #[test]
    fn event_lines_are_readable_and_escape_control_characters() {
        let line = |kind: &str, data: Value| {
            event_line(&EventView {
                r#type: kind.into(),
                signer: "0xa".into(),
                tx_id: None,
                at: "2026-01-01T00:00:00.000Z".into(),
                data,
            })
        };
        let lines = [
            line("TxAccepted", json!({"nonce": null})),
            line("TxSubmitted", json!({"txHash": "0xab", "nonce": 7})),
            line(
                "TxReceiptUpdated",
                json!({"txHash": "0xab", "blockNumber": 5, "status": "reverted"}),
            ),
            line(
                "TxConfirmed",
                json!({"txHash": "0xab", "blockNumber": 5, "confirmations": [{"number": 6}, {"number": 7}]}),
            ),
            line("TxReorged", json!({"blockNumber": 5, "afterFinal": true})),
            line("TxStuck", json!({"reason": "\u{1b}[2Jgone"})),
            line("SomethingNew", json!({})),
        ];
        expect![[r#"
            accepted
            submitted     nonce 7  0xab
            mined         0xab  block 5  reverted
            confirmed     0xab  block 5  2 confirmations
            reorged out   block 5  after it was final
            stuck         �[2Jgone
            SomethingNew"#]]
        .assert_eq(&lines.join("\n"));
    }

    #[test]
    fn hex_is_shortened_at_character_boundaries() {
        assert_eq!(
            short("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"),
            "0xf39F…2266"
        );
        assert_eq!(short("ääääääääääääää"), "äää…ää");
        assert_eq!(short("0x12"), "0x12");
    }
}
