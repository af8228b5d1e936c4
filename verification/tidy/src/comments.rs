//! Comments of a source file, with their line numbers.

use crate::SourceFile;

/// A piece of prose and the line on which it starts.
pub struct Comment {
    pub line: usize,
    pub text: String,
}

/// The prose of a file: comments of source files, every line of a Markdown page.
pub fn prose_of(file: &SourceFile) -> Vec<Comment> {
    let marker = match file.path.rsplit('.').next() {
        Some("rs") => return rust_comments(&file.text),
        Some("md") => "",
        Some("sql" | "lua") => "--",
        Some("toml" | "py" | "sh") => "#",
        // Scripts without an extension begin with a shebang.
        _ if file.text.starts_with("#!") => "#",
        _ => return Vec::new(),
    };
    let after_marker = |line: &str| line.find(marker).map(|at| line[at..].to_owned());
    let lines = file.text.lines().enumerate();
    lines
        .filter_map(|(at, line)| after_marker(line).map(|text| Comment { line: at + 1, text }))
        .collect()
}

/// The comments of Rust source. String and character literals are passed over, because a URL in one
/// is no comment.
fn rust_comments(text: &str) -> Vec<Comment> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            found.push((at, &rest[..length]));
            length
        } else if rest.starts_with("/*") {
            let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
            found.push((at, &rest[..length]));
            length
        } else {
            literal_length(rest)
        };
        at += length;
        while !text.is_char_boundary(at) {
            at += 1;
        }
    }
    let line_of = |at: usize| text[..at].matches('\n').count() + 1;
    found
        .into_iter()
        .map(|(at, text)| Comment {
            line: line_of(at),
            text: text.to_owned(),
        })
        .collect()
}

/// The length of the literal that starts here, or 1.
fn literal_length(rest: &str) -> usize {
    if let Some(raw) = rest.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let body = 1 + hashes + 1;
            return rest[body..]
                .find(&end)
                .map_or(rest.len(), |at| body + at + end.len());
        }
    }
    if rest.starts_with('"') {
        return closing_quote(rest, '"');
    }
    // A lifetime has no closing quote: only what closes within an escape's length is a character.
    if let Some(quoted) = rest.strip_prefix('\'') {
        let length = closing_quote(rest, '\'');
        let is_escape = quoted.starts_with('\\') && length <= "'\\u{10ffff}'".len();
        if is_escape || quoted.chars().nth(1) == Some('\'') {
            return length;
        }
    }
    1
}

fn closing_quote(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if !is_escaped && c == quote {
            return at + 1;
        }
        is_escaped = !is_escaped && c == '\\';
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_found_and_literals_are_not() {
        let source = "let a = \"http://x // no\"; // yes\nlet b = r#\"// \"no\"#; let c = '\"'; /* also */\n\
                      fn f<'a>(x: &'a str) {} // third \"quote\nlet d = '/'; // fourth\n";
        let found = rust_comments(source);
        let texts: Vec<(usize, &str)> = found.iter().map(|c| (c.line, c.text.as_str())).collect();
        assert_eq!(
            texts,
            [
                (1, "// yes"),
                (2, "/* also */"),
                (3, "// third \"quote"),
                (4, "// fourth")
            ]
        );
    }
}
