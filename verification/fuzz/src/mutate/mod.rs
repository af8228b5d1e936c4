//! New inputs from old ones: bytes, lines, dictionary tokens and JSON trees changed, and two inputs made into one.

mod bytes;
mod lines;
mod tree;

use rand::Rng as _;
use rand::rngs::SmallRng;

/// The longest input. Bodies may be much longer, but what is wrong with a long one is wrong with this.
pub(crate) const INPUT_BYTES_MAX: usize = 128 << 10;
/// Nearly all inputs are cut to this length: short ones run faster and say more.
pub(crate) const SHORT_BYTES_MAX: usize = 8 << 10;
/// One in so many may be long.
const LONG_ONE_IN: u32 = 16;
/// Changes that are made to one input at most.
const CHANGES_MAX: u32 = 6;

/// Numbers at which something changes, as they are written in JSON, queries and configurations.
pub(crate) const NUMBERS: [&str; 24] = [
    "0",
    "1",
    "-1",
    "-0",
    "127",
    "128",
    "255",
    "256",
    "65535",
    "65536",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "115792089237316195423570985008687907853269984665640564039457584007913129639936",
    "0.1",
    "1e308",
    "-1e-400",
    "1e999",
];
/// The same for quantities of JSON-RPC, and other texts.
pub(crate) const TEXTS: [&str; 14] = [
    "",
    "0x",
    "0x0",
    "0x1",
    "0x7fffffffffffffff",
    "0xffffffffffffffff",
    "0x10000000000000000",
    "0xffffffffffffffffffffffffffffffff",
    "0x0000000000000000000000000000000000000000",
    "0x0000000000000000000000000000000000000000000000000000000000000000",
    "0xffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "%00",
    "\u{202e}ü\u{0}\u{1f642}",
    "..",
];

/// Makes inputs of one kind.
pub(crate) struct Mutator {
    /// Tokens that this kind of input is made of.
    dictionary: Vec<String>,
}

impl Mutator {
    /// From a dictionary, one token in each line.
    pub(crate) fn new(dictionary: &str) -> Self {
        let all = dictionary.lines().chain(NUMBERS).chain(TEXTS);
        Self {
            dictionary: all.map(|token| token.replace("\\n", "\n")).collect(),
        }
    }

    /// A changed input. `other` lends parts.
    pub(crate) fn mutate(&self, input: &[u8], other: &[u8], chance: &mut SmallRng) -> Vec<u8> {
        let mut changed = input.to_vec();
        for _ in 0..chance.random_range(1..=CHANGES_MAX) {
            match chance.random_range(0..10) {
                0..5 => bytes::change(&mut changed, self.pick_token(chance), chance),
                5..7 => lines::change(&mut changed, other, chance),
                7..9 => tree::change(&mut changed, self.pick_token(chance), chance),
                _ => changed = splice(&changed, other, chance),
            }
        }
        changed.truncate(if chance.random_ratio(1, LONG_ONE_IN) {
            INPUT_BYTES_MAX
        } else {
            SHORT_BYTES_MAX
        });
        changed
    }

    fn pick_token(&self, chance: &mut SmallRng) -> &str {
        &self.dictionary[chance.random_range(0..self.dictionary.len())]
    }
}

/// The beginning of one and the end of another.
fn splice(one: &[u8], other: &[u8], chance: &mut SmallRng) -> Vec<u8> {
    let cut = chance.random_range(0..=one.len());
    let from = chance.random_range(0..=other.len());
    [&one[..cut], &other[from..]].concat()
}

/// A range inside so many bytes; short ones are more likely.
fn range(len: usize, chance: &mut SmallRng) -> std::ops::Range<usize> {
    let start = chance.random_range(0..=len);
    let longest = (len - start).min(1 << chance.random_range(0..12));
    start..start + chance.random_range(0..=longest)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn inputs_change_and_stay_within_their_size() {
        let mutator = Mutator::new("chainId");
        let input = br#"{"chainId":1,"list":[1,2,{"a":"b"}]}"#;
        let mut chance = SmallRng::seed_from_u64(1);
        let mut kept = input.to_vec();
        let mut changed = 0;
        for _ in 0..20_000 {
            let next = mutator.mutate(&kept, input, &mut chance);
            assert!(next.len() <= INPUT_BYTES_MAX);
            changed += usize::from(next != kept);
            kept = if chance.random_ratio(1, 50) {
                input.to_vec()
            } else {
                next
            };
        }
        assert!(changed > 15_000, "{changed}");
        for empty in [&b""[..], b"\n", b"{", b"\xff"] {
            for _ in 0..1_000 {
                mutator.mutate(empty, empty, &mut chance);
            }
        }
    }

    #[test]
    fn one_seed_one_input() {
        let made = |seed| {
            let mut chance = SmallRng::seed_from_u64(seed);
            Mutator::new("").mutate(b"GET /api/v1/tx?limit=5\n\n", b"POST", &mut chance)
        };
        assert_eq!(made(7), made(7));
        assert_ne!(made(7), made(8));
    }
}
