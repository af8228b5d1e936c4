//! Inputs of several parts: texts, with a line of three hyphens between them.

/// What stands between two parts.
const BETWEEN: &[u8] = b"\n---\n";

/// The parts of an input; at least one.
pub(crate) fn parts(input: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = input;
    while let Some(at) = find(rest, BETWEEN) {
        parts.push(&rest[..at]);
        rest = &rest[at + BETWEEN.len()..];
    }
    parts.push(rest);
    parts
}

/// The first line of a part, as text, and what follows.
pub(crate) fn first_line(part: &[u8]) -> (String, &[u8]) {
    let end = part.iter().position(|byte| *byte == b'\n');
    let (line, rest) = match end {
        Some(end) => (&part[..end], &part[end + 1..]),
        None => (part, &part[part.len()..]),
    };
    (String::from_utf8_lossy(line).trim_end().to_owned(), rest)
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_falls_into_its_parts() {
        assert_eq!(parts(b""), [b""]);
        assert_eq!(parts(b"a\n---\n\n---\nb\nc"), [&b"a"[..], b"", b"b\nc"]);
        assert_eq!(
            first_line(b"200 5\nbody"),
            ("200 5".to_owned(), &b"body"[..])
        );
        assert_eq!(first_line(b"200"), ("200".to_owned(), &b""[..]));
    }
}
