//! Text tables: columns as wide as their content, numbers aligned right. The last column is not
//! padded.

use mail::printable;

/// Rows with a heading.
pub struct ColumnTable {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

/// The alignment of a column.
#[derive(Clone, Copy)]
pub enum Align {
    /// To the left edge.
    Left,
    /// To the right edge.
    Right,
}

impl ColumnTable {
    /// A table with these headings.
    pub fn new(columns: &[(&'static str, Align)]) -> ColumnTable {
        ColumnTable { columns: columns.into(), rows: Vec::new() }
    }

    /// Adds a row: a text for each column. The texts are escaped here, so that the widths are
    /// right.
    pub fn row(&mut self, row: Vec<String>) {
        self.rows.push(row.iter().map(|text| printable(text).into()).collect());
    }

    /// The lines, the heading first.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        let lengths = |row: &Vec<String>| row.iter().map(|text| text.chars().count()).collect::<Vec<_>>();
        let widths = self.rows.iter().fold(lengths(&heading), |widths, row| {
            widths.into_iter().zip(lengths(row)).map(|(width, length)| width.max(length)).collect()
        });
        std::iter::once(heading).chain(self.rows.iter().cloned()).map(move |row| self.line(&row, &widths))
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let cells = row.iter().zip(widths).zip(&self.columns).map(|((text, width), (_, side))| match side {
            Align::Left => format!("{text:<width$}"),
            Align::Right => format!("{text:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = ColumnTable::new(&[("NAME", Align::Left), ("N", Align::Right), ("ERROR", Align::Left)]);
        table.row(["ä.example", "7", ""].map(str::to_owned).into());
        table.row(["b", "1000", "why"].map(str::to_owned).into());
        table.row(["a\u{202e}bc", "1", ""].map(str::to_owned).into());
        let lines: Vec<_> = table.lines().collect();
        let expected = ["NAME          N  ERROR", "ä.example     7", "b          1000  why", r"a\u202ebc     1"];
        assert_eq!(lines, expected);
    }
}
