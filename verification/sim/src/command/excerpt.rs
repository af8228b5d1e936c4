//! The part of a trace that explains a violation: the last events of the lane in question, and of nodes, store
//! and chain meanwhile.

use std::collections::BTreeSet;

use super::promise;

/// The maximum number of lines.
const LINES_MAX: usize = 40;

/// The last lines before the first violation of `broken` that are related to it.
#[must_use]
pub fn excerpt<'a>(lines: &'a [String], broken: &str) -> Vec<&'a str> {
    let is_it = |line: &String| {
        let violation = line.split_once("VIOLATION ").map(|(_, text)| text);
        violation.is_some_and(|text| promise(text) == broken)
    };
    let Some(end) = lines.iter().position(is_it) else {
        return Vec::new();
    };
    let before = &lines[..=end];
    let lane = lane_of(before, &lines[end]);
    let hashes = hashes_of(before, lane.as_deref());
    let is_relevant = |line: &&String| is_relevant(line, lane.as_deref(), &hashes);
    let relevant: Vec<&str> = before
        .iter()
        .filter(is_relevant)
        .map(String::as_str)
        .collect();
    relevant[relevant.len().saturating_sub(LINES_MAX)..].to_vec()
}

/// The lane of a violation, in the spelling of the trace: named in full or short, or found by a request or tx
/// that another line names together with its lane.
fn lane_of(lines: &[String], violation: &str) -> Option<String> {
    let words: Vec<&str> = violation.split([' ', ',', '"', '(']).collect();
    if let Some(lane) = words.iter().find_map(|word| short_lane(word)) {
        return Some(lane);
    }
    let names = words
        .iter()
        .map(|word| word.trim_end_matches([':', ')']))
        .filter(|word| is_request(word) || is_tx(word));
    for name in names {
        let line = lines.iter().find_map(|line| {
            let lane = line.split(' ').find_map(short_lane);
            lane.filter(|_| line.split([' ', '@', ':']).any(|word| word == name))
        });
        if line.is_some() {
            return line;
        }
    }
    None
}

/// `31337:0x0101…0101` and `31337:0101` both become `31337:0101`.
fn short_lane(word: &str) -> Option<String> {
    let (chain, signer) = word.trim_end_matches([':', '.']).split_once(':')?;
    let signer = signer.split(['#', '/']).next()?;
    let is_hex = |text: &str| text.chars().all(|letter| letter.is_ascii_hexdigit());
    let digits = signer.strip_prefix("0x").unwrap_or(signer);
    let is_lane = !chain.is_empty()
        && chain.chars().all(|letter| letter.is_ascii_digit())
        && matches!(digits.len(), 4 | 40)
        && is_hex(digits);
    is_lane.then(|| format!("{chain}:{}", digits[digits.len() - 4..].to_lowercase()))
}

fn is_request(word: &str) -> bool {
    let digits = word.strip_prefix('r').unwrap_or_default();
    !digits.is_empty() && digits.chars().all(|letter| letter.is_ascii_digit())
}

fn is_tx(word: &str) -> bool {
    word.len() == 36 && word.chars().filter(|letter| *letter == '-').count() == 4
}

/// The hashes that a lane signed, as shown in blocks.
fn hashes_of<'a>(lines: &'a [String], lane: Option<&str>) -> BTreeSet<&'a str> {
    let Some(lane) = lane else {
        return BTreeSet::new();
    };
    let of_lane = lines.iter().filter(|line| line.contains(lane));
    let words = of_lane.flat_map(|line| line.split(' '));
    words
        .filter_map(|word| word.strip_prefix('+')?.split('@').next())
        .collect()
}

fn is_relevant(line: &str, lane: Option<&str>, hashes: &BTreeSet<&str>) -> bool {
    let text = line
        .trim_start()
        .split_once(' ')
        .map_or("", |(_, text)| text);
    let Some(lane) = lane else {
        let is_empty_block = text.starts_with("chain  block") && text.ends_with(':');
        return !(is_empty_block || text.starts_with("plan") || text.starts_with("reader"));
    };
    if text.contains(lane) {
        return !text.starts_with("reader");
    }
    let has_hash = || {
        let mut words = text.split([' ', '@']);
        words.any(|word| hashes.contains(word))
    };
    let global = [
        "===",
        "node",
        "store  FAILED",
        "store  standby",
        "store  clock",
    ];
    let of_chain = ["chain  fork", "VIOLATION"];
    global
        .iter()
        .chain(&of_chain)
        .any(|start| text.starts_with(start))
        || (text.starts_with("chain") && has_hash())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_has_one_lane_and_global_events() {
        let lines = [
            "0.000 === faults",
            "0.001 client sends r1 to a on 7:0101",
            "0.002 client sends r2 to a on 7:0202",
            "0.003 store  commit 7:0101 after 0 by a/1: applied r1@0=Tracking/ +aabbccdd@0:original",
            "0.004 store  commit 7:0202 after 0 by a/1: applied r2@0=Tracking/ +11223344@0:original",
            "0.005 node b crashed after 3 polls",
            "0.006 chain  block 1 ffffffff: aabbccdd@0",
            "0.007 chain  block 2 eeeeeeee: 11223344@0",
            "0.008 VIOLATION requests end as expected: r1 as STUCK (None)",
            "0.009 node c crashed after 3 polls",
        ]
        .map(str::to_owned);
        let found = excerpt(&lines, "requests end as expected");
        let kept = [0, 1, 3, 5, 6, 8].map(|at: usize| lines[at].as_str());
        assert_eq!(found, kept);
        assert!(excerpt(&lines, "another promise").is_empty());
    }

    #[test]
    fn lanes_are_found_under_both_spellings() {
        let long = "31337:0x0202020202020202020202020202020202020202";
        assert_eq!(short_lane(long).as_deref(), Some("31337:0202"));
        assert_eq!(short_lane("31337:0101#5").as_deref(), Some("31337:0101"));
        assert_eq!(short_lane("client:"), None);
    }
}
