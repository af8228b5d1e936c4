//! The place of a value in a body: for people in a message, for programs as a JSON pointer.

use std::fmt;

/// The names of the fields from the outermost on, within an item of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldPath<'a> {
    item: Option<usize>,
    fields: &'a [&'a str],
}

impl<'a> FieldPath<'a> {
    /// Without fields: the whole body.
    pub(crate) fn new(fields: &'a [&'a str]) -> Self {
        Self { item: None, fields }
    }

    /// Within the item of a batch, where one is given.
    pub(crate) fn in_item(item: Option<usize>, fields: &'a [&'a str]) -> Self {
        Self { item, fields }
    }

    /// The JSON pointer (RFC 6901).
    pub(crate) fn pointer(self) -> String {
        let item = self.item.map(|item| format!("/txs/{item}"));
        let fields = self.fields.iter();
        let fields = fields.map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1")));
        item.into_iter().chain(fields).collect()
    }
}

/// Names are escaped: an unknown one may contain anything.
impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let item = self.item.map(|item| format!("txs[{item}]"));
        let fields = self
            .fields
            .iter()
            .map(|name| name.escape_debug().to_string());
        let path: Vec<String> = item.into_iter().chain(fields).collect();
        if path.is_empty() {
            return f.write_str("the body");
        }
        write!(f, "`{}`", path.join("."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shown_escaped_and_point() {
        for (path, shown, pointer) in [
            (FieldPath::new(&[]), "the body", ""),
            (
                FieldPath::new(&["payload", "gas"]),
                "`payload.gas`",
                "/payload/gas",
            ),
            (FieldPath::in_item(Some(3), &[]), "`txs[3]`", "/txs/3"),
            (
                FieldPath::in_item(Some(0), &["a/b~", "c\n\u{1b}"]),
                "`txs[0].a/b~.c\\n\\u{1b}`",
                "/txs/0/a~1b~0/c\n\u{1b}",
            ),
        ] {
            assert_eq!(
                (path.to_string(), path.pointer()),
                (shown.into(), pointer.into())
            );
        }
    }
}
