//! Tables and numbers as people read them.

/// A table with a heading; columns are as wide as they must be, numbers stand to the right.
#[derive(Debug)]
pub struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns. A heading that starts with `>` makes its column stand to the right.
    pub fn new(headings: &[&'static str]) -> Self {
        Self { headings: headings.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, a cell for each column.
    pub fn row(&mut self, cells: impl Into<Vec<String>>) {
        let cells = cells.into();
        debug_assert_eq!(cells.len(), self.headings.len());
        self.rows.push(cells);
    }

    /// The table as text, each line ended.
    pub fn text(&self) -> String {
        let heading: Vec<String> = self.headings.iter().map(|h| h.trim_start_matches('>').to_owned()).collect();
        let lines = || std::iter::once(&heading).chain(&self.rows);
        let widths: Vec<usize> = (0..self.headings.len())
            .map(|column| lines().map(|line| line[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for line in lines() {
            let cells = line.iter().zip(&widths).zip(&self.headings).map(|((cell, &width), heading)| {
                if heading.starts_with('>') { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// A duration with three significant digits.
pub fn seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        // What would be rounded to a thousand has the larger unit.
        s if s >= 0.9995 => (s, "s"),
        s if s >= 0.9995e-3 => (s * 1e3, "ms"),
        s => (s * 1e6, "µs"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Two durations, with one unit where they have the same.
pub fn seconds_between(low: f64, high: f64) -> String {
    let (low, high) = (seconds(low), seconds(high));
    let unit = |text: &str| text.split_once(' ').map(|(_, unit)| unit.to_owned());
    let low = if unit(&low) == unit(&high) { low.split(' ').next().unwrap_or_default() } else { &low };
    format!("{low}…{high}")
}

/// A number of bytes.
pub fn bytes(bytes: f64) -> String {
    let (value, unit) = match bytes {
        b if b >= 1e9 => (b / 1e9, "GB"),
        b if b >= 1e6 => (b / 1e6, "MB"),
        b if b >= 1e3 => (b / 1e3, "kB"),
        b => return format!("{b:.0} bytes"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Three significant digits, no exponent.
pub fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

/// A part of the floor in percent, never above 100: what caches helped below it is at the floor.
pub fn of_floor(part: Option<f64>) -> String {
    percent(part.map(|part| part.min(1.0)))
}

/// An error as a part of what its bound allows: in percent, or as a power of ten where that would round to nothing,
/// down to the least that one rounding of double precision could be.
pub fn of_bound(part: f64) -> String {
    if (f64::EPSILON..5e-4).contains(&part) { format!("{part:.1e}") } else { percent(Some(part)) }
}

/// A part of a whole in percent, or a dash where there is no whole.
pub fn percent(part: Option<f64>) -> String {
    let text =
        |part: f64| if part >= 0.9995 { format!("{:.0} %", 100.0 * part) } else { format!("{:.1} %", 100.0 * part) };
    part.map_or_else(|| "-".to_owned(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_in_characters() {
        let mut table = Table::new(&["shape", ">time"]);
        table.row(["1×2×3".into(), "5".into()]);
        table.row(["→".into(), "12345".into()]);
        assert_eq!(table.text(), "shape   time\n1×2×3      5\n→      12345\n");
    }

    #[test]
    fn numbers_keep_three_significant_digits() {
        for (value, text) in
            [(0.0123, "12.3 ms"), (1.5, "1.50 s"), (2.5e-6, "2.50 µs"), (123.4, "123 s"), (0.9996e-3, "1.00 ms")]
        {
            assert_eq!(seconds(value), text);
        }
        assert_eq!(bytes(33.03e6), "33.0 MB");
        assert_eq!(bytes(12.0), "12 bytes");
        assert_eq!([Some(0.1234), Some(1.2), None].map(percent), ["12.3 %", "120 %", "-"]);
        assert_eq!([Some(0.1234), Some(1.2), None].map(of_floor), ["12.3 %", "100 %", "-"]);
        let told = [0.955, 0.0, 1.24e-7, 5e-101, 1.5].map(of_bound);
        assert_eq!(told, ["95.5 %", "0.0 %", "1.2e-7", "0.0 %", "150 %"]);
        assert_eq!(seconds_between(0.0123, 0.5), "12.3…500 ms");
        assert_eq!(seconds_between(5e-4, 0.5), "500 µs…500 ms");
    }
}
