//! Aligned columns without frames.

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table, presets};

use super::Tone;

/// A table with these headings. Those that end in `#` hold numbers and are aligned right.
pub struct Columns {
    table: Table,
}

impl Columns {
    pub fn new(headings: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        // No wrapping: a wrapped hash cannot be copied.
        table.set_content_arrangement(ContentArrangement::Disabled);
        let heading =
            |text: &&str| Cell::new(text.trim_end_matches('#')).add_attribute(Attribute::Bold);
        table.set_header(headings.iter().map(heading));
        for (column, heading) in table.column_iter_mut().zip(headings) {
            column.set_padding((0, 2));
            if heading.ends_with('#') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self { table }
    }

    pub fn add_row(&mut self, cells: Vec<(Tone, String)>) {
        self.table.add_row(cells.into_iter().map(|(tone, text)| {
            let cell = Cell::new(super::safe(&text));
            match tone {
                Tone::Plain => cell,
                Tone::Good => cell.fg(Color::Green),
                Tone::Bad => cell.fg(Color::Red),
                Tone::Busy => cell.fg(Color::Yellow),
                Tone::Quiet => cell.add_attribute(Attribute::Dim),
                Tone::Strong => cell.add_attribute(Attribute::Bold),
            }
        }));
    }
}

impl std::fmt::Display for Columns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, line) in self.table.lines().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { "\n" }, line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Columns::new(&["state", "nonce#", "hash"]);
        let cell = |text: &str| (Tone::Plain, text.to_owned());
        table.add_row(vec![cell("CONFIRMED"), cell("7"), cell("0xaa")]);
        table.add_row(vec![cell("STUCK"), cell("1234567"), cell("0xbb")]);
        expect![[r#"
            state        nonce  hash
            CONFIRMED        7  0xaa
            STUCK      1234567  0xbb"#]]
        .assert_eq(&table.to_string());
    }
}
