//! Bars of time from zero: one measurement against its floor, and the phases of a prediction one behind the other.

use crate::escape;

/// A measurement: one bar, one whisker, one line for the floor.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    /// Seconds where the bar ends.
    pub median: f64,
    /// The ends of the whisker.
    pub range: Option<(f64, f64)>,
    /// The least seconds that are possible.
    pub floor: Option<f64>,
}

impl Time {
    /// Where the last of its marks ends.
    pub fn end(&self) -> f64 {
        self.median.max(self.range.map_or(0.0, |(_, high)| high)).max(self.floor.unwrap_or(0.0))
    }

    /// The bar on a scale that ends at so many seconds. The label is HTML, for those who cannot see it.
    pub fn bar(&self, label: &str, scale: f64) -> String {
        let x = |seconds: f64| (1000.0 * seconds / scale).min(1000.0);
        let line = |class: &str, x: f64, [top, bottom]: [u32; 2]| {
            format!("<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\"/>")
        };
        let mut marks = format!("<rect class=\"time\" x=\"0\" y=\"3\" width=\"{:.1}\" height=\"12\"/>", x(self.median));
        if let Some((low, high)) = self.range {
            let (low, high) = (x(low), x(high));
            marks += &format!("<line class=\"whisker\" x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"9\" y2=\"9\"/>");
            marks += &(line("whisker", low, [6, 12]) + &line("whisker", high, [6, 12]));
        }
        marks.extend(self.floor.map(|floor| line("floor", x(floor), [0, 18])));
        format!(
            "<svg class=\"bar\" viewBox=\"0 0 1000 18\" preserveAspectRatio=\"none\" role=\"img\"><title>{label}</title>{marks}</svg>"
        )
    }
}

/// A phase of a prediction: its name, its seconds, and the number of its colour.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Its name, and what bounds it; text.
    pub name: String,
    /// How long it should take.
    pub seconds: f64,
    /// Which of the eight colours it has.
    pub colour: usize,
}

/// Phases one behind the other, each a step lower than the one before, on a scale that ends at so many seconds.
pub fn waterfall(phases: &[Phase], scale: f64) -> String {
    const STEP: usize = 12;
    let height = STEP * phases.len().max(1);
    let mut begun = 0.0;
    let mut marks = String::new();
    for (at, phase) in phases.iter().enumerate() {
        let (x, width) = (1000.0 * begun / scale, 1000.0 * phase.seconds / scale);
        marks += &format!(
            "<rect class=\"phase{}\" x=\"{x:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{}\"><title>{}</title></rect>",
            phase.colour % 8,
            STEP * at,
            width.max(1.5),
            STEP - 2,
            escape(&phase.name)
        );
        begun += phase.seconds;
    }
    format!(
        "<svg class=\"waterfall\" viewBox=\"0 0 1000 {height}\" style=\"height:{height}px\" preserveAspectRatio=\"none\" role=\"img\">\
         <title>{} phases</title>{marks}</svg>",
        phases.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_its_median_one_whisker_and_one_floor_to_scale() {
        let time = Time { median: 4.0, range: Some((3.0, 8.0)), floor: Some(1.0) };
        assert_eq!(time.end(), 8.0);
        let bar = time.bar("x", 8.0);
        for mark in [
            "<rect class=\"time\" x=\"0\" y=\"3\" width=\"500.0\"",
            "<line class=\"whisker\" x1=\"375.0\" x2=\"1000.0\" y1=\"9\"",
            "<line class=\"floor\" x1=\"125.0\"",
        ] {
            assert!(bar.contains(mark), "no {mark} in {bar}");
        }
        assert_eq!((bar.matches("class=\"time\"").count(), bar.matches("class=\"floor\"").count()), (1, 1));
    }

    #[test]
    fn phases_follow_one_another() {
        let phase = |name: &str, seconds, colour| Phase { name: name.into(), seconds, colour };
        let drawing = waterfall(&[phase("a<b", 1.0, 0), phase("c", 3.0, 9)], 4.0);
        assert!(drawing.contains("class=\"phase0\" x=\"0.0\" y=\"0\" width=\"250.0\""), "{drawing}");
        assert!(drawing.contains("class=\"phase1\" x=\"250.0\" y=\"12\" width=\"750.0\""), "{drawing}");
        assert!(drawing.contains("a&lt;b"));
    }
}
