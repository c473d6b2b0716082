//! Strips: ratios on a logarithmic axis that a whole list of rows shares. They are stretched to the page's width and
//! hold no text, so that they can be read on a telephone; their labels stand above them as HTML.

/// The ratios at the ends of a strip's logarithmic axis, wide enough for these values.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
}

/// What a strip shows: estimates with their intervals, and the margin around 1 within which nothing is decided.
#[derive(Clone, Copy, Debug, Default)]
pub struct Strip {
    /// What was claimed: the estimate, and the ends of its interval.
    pub claimed: Option<(f64, f64, f64)>,
    /// What was found.
    pub found: Option<(f64, f64, f64)>,
    /// The gain that has to be shown, as a fraction.
    pub margin: Option<f64>,
}

impl Axis {
    /// An axis that holds every value, and 1.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (0.9f64, 1.1f64);
        for value in values.filter(|v| v.is_finite() && *v > 0.0) {
            (low, high) = (low.min(value * 0.97), high.max(value * 1.03));
        }
        Self { low, high }
    }

    /// Where a value lies, from 0 to 1000.
    fn place(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        (1000.0 * (value / self.low).ln() / (self.high / self.low).ln()).min(1000.0)
    }

    /// Ratios to label, with where they lie, from 0 to 1000: as many round ones as there is room for.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        const ROUND: [f64; 26] = [
            0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.33, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.4, 1.7,
            2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0,
        ];
        let mut ticks: Vec<(f64, String)> = vec![(self.place(1.0), "1×".to_owned())];
        for ratio in ROUND.into_iter().filter(|ratio| (self.low..=self.high).contains(ratio)) {
            let place = self.place(ratio);
            // A label is centred on its place, so it needs room at the ends, too.
            if (25.0..=975.0).contains(&place) && ticks.iter().all(|(known, _)| (known - place).abs() > 120.0) {
                ticks.push((place, format!("{ratio}×")));
            }
        }
        ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
        ticks
    }

    /// The labels of the axis as a row of their own, to stand above strips.
    pub fn labels(&self) -> String {
        let label = |(place, text): (f64, String)| format!("<span style=\"left:{:.1}%\">{text}</span>", place / 10.0);
        format!(
            "<div class=\"row head\"><div></div><div><div class=\"axis\" aria-hidden=\"true\">{}</div></div><div></div></div>\n",
            self.ticks().into_iter().map(label).collect::<String>()
        )
    }

    /// A strip with what was claimed above what was found: a bar for each interval, a tick for each estimate. The label
    /// is HTML, for those who cannot see it.
    pub fn strip(&self, label: &str, strip: &Strip) -> String {
        let mut marks = String::new();
        if let Some(margin) = strip.margin {
            let (left, right) = (self.place(1.0 / (1.0 + margin)), self.place(1.0 + margin));
            marks += &format!(
                "<rect class=\"margin\" x=\"{left:.1}\" y=\"0\" width=\"{:.1}\" height=\"28\"/>",
                (right - left).max(1.0)
            );
        }
        for (place, _) in self.ticks() {
            marks += &format!("<line class=\"tick\" x1=\"{place:.1}\" x2=\"{place:.1}\" y1=\"0\" y2=\"28\"/>");
        }
        let one = self.place(1.0);
        marks += &format!("<line class=\"one\" x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"0\" y2=\"28\"/>");
        let mut bar = |class: &str, y: f64, (value, low, high): (f64, f64, f64)| {
            let (left, right, x) = (self.place(low), self.place(high), self.place(value));
            marks += &format!(
                "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"8\"/>\
                 <line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{}\"/>",
                (right - left).max(2.0),
                y - 2.0,
                y + 10.0
            );
        };
        strip.claimed.into_iter().for_each(|claimed| bar("claimed", 3.0, claimed));
        strip.found.into_iter().for_each(|found| bar("found", 17.0, found));
        format!(
            "<svg class=\"strip\" viewBox=\"0 0 1000 28\" preserveAspectRatio=\"none\" role=\"img\"><title>{label}</title>{marks}</svg>"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_is_logarithmic_and_holds_one() {
        let axis = Axis::of([0.5, 2.0].into_iter());
        assert!((axis.place(1.0) - 500.0).abs() < 1.0);
        assert_eq!((axis.place(1e-9), axis.place(1e9)), (0.0, 1000.0), "what is beyond lies at the edge");
    }

    #[test]
    fn a_strip_has_a_bar_for_each_interval_that_there_is_and_the_margin_s_band() {
        let axis = Axis::of([0.8, 1.2].into_iter());
        let bars = |claimed, found, margin| axis.strip("x", &Strip { claimed, found, margin }).matches("<rect").count();
        assert_eq!(bars(Some((1.1, 1.0, 1.2)), Some((1.0, 0.9, 1.1)), Some(0.01)), 3);
        assert_eq!(bars(Some((1.1, 1.0, 1.2)), None, None), 1);
    }

    #[test]
    fn labels_keep_away_from_the_ends_where_they_would_be_cut_off() {
        for far in [1.1, 1.5, 3.0, 40.0, 1000.0] {
            let ticks = Axis::of([1.0 / far, far].into_iter()).ticks();
            assert!(ticks.iter().all(|(place, _)| (20.0..=980.0).contains(place)), "{far}: {ticks:?}");
        }
    }
}
