//! Changes of whole lines: headers, keys of a configuration, parts of an input.

use rand::Rng as _;
use rand::rngs::SmallRng;

/// More lines than this are not taken apart.
const LINES_MAX: usize = 2_000;

pub(super) fn change(input: &mut Vec<u8>, other: &[u8], chance: &mut SmallRng) {
    let mut lines: Vec<&[u8]> = input.split(|byte| *byte == b'\n').take(LINES_MAX).collect();
    let place = chance.random_range(0..lines.len());
    let second = chance.random_range(0..lines.len());
    match chance.random_range(0..6) {
        0 => {
            lines.remove(place);
        }
        1 => lines.insert(second, lines[place]),
        2 => lines.swap(place, second),
        3 => lines.insert(place, b"---"),
        4 => lines[place] = lines[second],
        _ => {
            let theirs: Vec<&[u8]> = other.split(|byte| *byte == b'\n').take(LINES_MAX).collect();
            lines.insert(place, theirs[chance.random_range(0..theirs.len())]);
        }
    }
    *input = lines.join(&b'\n');
}
