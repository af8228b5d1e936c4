//! Changes that know nothing of the form.

use rand::Rng as _;
use rand::rngs::SmallRng;

use super::{INPUT_BYTES_MAX, NUMBERS, range};

pub(super) fn change(input: &mut Vec<u8>, token: &str, chance: &mut SmallRng) {
    let place = chance.random_range(0..=input.len());
    match chance.random_range(0..9) {
        0 => {
            if let Some(byte) = input.get_mut(place) {
                *byte ^= 1 << chance.random_range(0..8);
            }
        }
        1 => {
            if let Some(byte) = input.get_mut(place) {
                *byte = chance.random();
            }
        }
        2 => input.insert(place, chance.random()),
        3 => {
            let gone = range(input.len(), chance);
            input.drain(gone);
        }
        4 => {
            let copied = input[range(input.len(), chance)].to_vec();
            input.splice(place..place, copied);
        }
        5 => repeat(input, place, chance),
        6 => {
            input.splice(place..place, token.bytes());
        }
        7 => {
            let gone = range(input.len(), chance);
            input.splice(gone, token.bytes());
        }
        _ => change_number(input, place, chance),
    }
}

/// The same again and again, often until the input is as long as it may be: what costs a little per item
/// then costs a lot.
fn repeat(input: &mut Vec<u8>, place: usize, chance: &mut SmallRng) {
    let what = input[range(input.len(), chance)].to_vec();
    let room = INPUT_BYTES_MAX.saturating_sub(input.len());
    let most = room / what.len().max(1);
    if what.is_empty() || most == 0 {
        return;
    }
    let times = if chance.random_ratio(1, 8) {
        most
    } else {
        chance.random_range(1..=most.min(64))
    };
    input.splice(place..place, what.repeat(times));
}

/// Another number in the place of the next one.
fn change_number(input: &mut Vec<u8>, place: usize, chance: &mut SmallRng) {
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let Some(start) = input[place..].iter().position(is_digit) else {
        return;
    };
    let start = place + start;
    let len = input[start..]
        .iter()
        .take_while(|byte| is_digit(byte))
        .count();
    let number = NUMBERS[chance.random_range(0..NUMBERS.len())];
    input.splice(start..start + len, number.bytes());
}
