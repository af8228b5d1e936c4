//! Changes of the JSON inside an input: what comes out is JSON again, so that it gets past the parser.

use rand::Rng as _;
use rand::rngs::SmallRng;
use serde_json::{Map, Value};

use super::{INPUT_BYTES_MAX, NUMBERS, TEXTS};

/// How deep values are nested when depth is tried. Parsers give up before.
const DEPTH_MAX: usize = 200;

/// Changes one node of the first JSON object or array; leaves an input without any as it is.
pub(super) fn change(input: &mut Vec<u8>, token: &str, chance: &mut SmallRng) {
    let Some(start) = start_of_json(input, chance) else {
        return;
    };
    let mut values = serde_json::Deserializer::from_slice(&input[start..]).into_iter::<Value>();
    let Some(Ok(mut tree)) = values.next() else {
        return;
    };
    let end = start + values.byte_offset();
    let chosen = chance.random_range(0..count(&tree));
    if let Some(node) = node_at(&mut tree, &mut { chosen }) {
        change_node(node, token, chance);
    }
    let text = tree.to_string();
    input.splice(start..end, text.into_bytes());
}

/// Where an object or array begins; inputs of several parts have several.
fn start_of_json(input: &[u8], chance: &mut SmallRng) -> Option<usize> {
    let is_start = |(_, byte): &(usize, &u8)| matches!(**byte, b'{' | b'[');
    let is_outer = |(at, _): &(usize, &u8)| *at == 0 || input[at - 1] == b'\n';
    let outer: Vec<usize> = input
        .iter()
        .enumerate()
        .filter(is_start)
        .filter(is_outer)
        .map(|(at, _)| at)
        .collect();
    if outer.is_empty() {
        return None;
    }
    Some(outer[chance.random_range(0..outer.len())])
}

fn count(tree: &Value) -> usize {
    let inside: usize = match tree {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    };
    inside + 1
}

/// The n-th node, counted from the root.
fn node_at<'t>(tree: &'t mut Value, n: &mut usize) -> Option<&'t mut Value> {
    if *n == 0 {
        return Some(tree);
    }
    *n -= 1;
    match tree {
        Value::Array(list) => list.iter_mut().find_map(|child| node_at(child, n)),
        Value::Object(map) => map.values_mut().find_map(|child| node_at(child, n)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

fn change_node(node: &mut Value, token: &str, chance: &mut SmallRng) {
    match node {
        Value::Array(list) if !list.is_empty() && chance.random_ratio(2, 3) => {
            change_list(list, chance);
        }
        Value::Object(map) if !map.is_empty() && chance.random_ratio(2, 3) => {
            change_map(map, token, chance);
        }
        Value::String(text) if chance.random_ratio(1, 3) => change_text(text, token, chance),
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => *node = another(node, token, chance),
    }
}

fn change_list(list: &mut Vec<Value>, chance: &mut SmallRng) {
    let place = chance.random_range(0..list.len());
    match chance.random_range(0..3) {
        0 => {
            list.remove(place);
        }
        1 => {
            let second = chance.random_range(0..list.len());
            list.swap(place, second);
        }
        _ => {
            let one = list[place].clone();
            let most = INPUT_BYTES_MAX / (one.to_string().len() + 1);
            let most = if chance.random() { 4 } else { most.max(4) };
            let times = chance.random_range(1..=most);
            list.splice(place..place, std::iter::repeat_n(one, times));
        }
    }
}

fn change_map(map: &mut Map<String, Value>, token: &str, chance: &mut SmallRng) {
    let place = chance.random_range(0..map.len());
    let Some(key) = map.keys().nth(place).cloned() else {
        return;
    };
    let value = map.remove(&key);
    match (chance.random_range(0..3), value) {
        (0, _) | (_, None) => {}
        (1, Some(value)) => {
            map.insert(token.to_owned(), value);
        }
        (_, Some(value)) => {
            map.insert(key, another(&value, token, chance));
            map.insert(token.to_owned(), value);
        }
    }
}

fn change_text(text: &mut String, token: &str, chance: &mut SmallRng) {
    let middle = text.char_indices().nth(chance.random_range(0..=text.len()));
    let at = middle.map_or(text.len(), |(at, _)| at);
    match chance.random_range(0..3) {
        0 => text.insert_str(at, token),
        1 => text.truncate(at),
        _ => text.insert(at, char::from(chance.random::<u8>())),
    }
}

/// Another value in the place of one.
fn another(old: &Value, token: &str, chance: &mut SmallRng) -> Value {
    match chance.random_range(0..9) {
        0 => Value::Null,
        1 => Value::Bool(chance.random()),
        2 => serde_json::from_str(NUMBERS[chance.random_range(0..NUMBERS.len())])
            .unwrap_or(Value::Null),
        3 => Value::from(TEXTS[chance.random_range(0..TEXTS.len())]),
        4 => Value::from(token),
        5 => Value::Array(vec![old.clone()]),
        6 => Value::Array(Vec::new()),
        7 => Value::Object(Map::new()),
        _ => {
            let depth = chance.random_range(1..DEPTH_MAX);
            (0..depth).fold(Value::Null, |inner, _| Value::Array(vec![inner]))
        }
    }
}
