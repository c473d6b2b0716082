//! The plots, as SVG that takes its colours from the page. Strips are stretched to the page's width and hold no text,
//! so that they can be read on a telephone; the roofline has its labels inside and scales as a whole.

use super::Report;

/// The ratios at the ends of a strip's logarithmic axis, wide enough for these values.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
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
            if ticks.iter().all(|(known, _)| (known - place).abs() > 90.0) {
                ticks.push((place, format!("{ratio}×")));
            }
        }
        ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
        ticks
    }

    /// The labels of the axis, to stand above strips.
    pub fn labels(&self) -> String {
        let label = |(place, text): (f64, String)| format!("<span style=\"left:{:.1}%\">{text}</span>", place / 10.0);
        format!(
            "<div class=\"axis\" aria-hidden=\"true\">{}</div>",
            self.ticks().into_iter().map(label).collect::<String>()
        )
    }
}

/// A strip with what was claimed above what was measured: a bar for each interval, a tick for each estimate.
pub fn strip(axis: &Axis, label: &str, claimed: Option<(f64, f64, f64)>, measured: Option<(f64, f64, f64)>) -> String {
    let mut marks = String::new();
    let mut bar = |class: &str, y: f64, (value, low, high): (f64, f64, f64)| {
        let (left, right) = (axis.place(low), axis.place(high));
        marks += &format!(
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"8\"/>",
            (right - left).max(2.0)
        );
        let x = axis.place(value);
        marks +=
            &format!("<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{}\"/>", y - 2.0, y + 10.0);
    };
    claimed.into_iter().for_each(|c| bar("claimed", 3.0, c));
    measured.into_iter().for_each(|m| bar("measured", 17.0, m));
    let one = axis.place(1.0);
    let ticks: String = axis
        .ticks()
        .into_iter()
        .map(|(place, _)| format!("<line class=\"tick\" x1=\"{place:.1}\" x2=\"{place:.1}\" y1=\"0\" y2=\"28\"/>"))
        .collect();
    format!(
        "<svg class=\"strip\" viewBox=\"0 0 1000 28\" preserveAspectRatio=\"none\" role=\"img\"><title>{label}</title>\
         <line class=\"one\" x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"0\" y2=\"28\"/>{ticks}{marks}</svg>"
    )
}

/// The size of the roofline plot and its margins.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;

/// The roofline: operations per byte against operations per second, with baseline and champion on every problem.
pub fn roofline(report: &Report) -> Option<String> {
    let times = report.times.as_ref()?;
    let (flops, bytes) = (times.flops_per_second?, times.bytes_per_second?);
    let points: Vec<(f64, f64, Option<f64>)> = times
        .shapes
        .iter()
        .filter(|s| s.bytes > 0.0 && s.seconds > 0.0)
        .map(|s| {
            let champion = report.champion_seconds(&s.problem).map(|seconds| s.flops / seconds);
            (s.flops / s.bytes, s.flops / s.seconds, champion)
        })
        .collect();
    let intensities = points.iter().map(|p| p.0).chain([flops / bytes]);
    let (x_low, x_high) = intensities.fold((f64::MAX, 0f64), |(low, high), x| (low.min(x), high.max(x)));
    let (x_low, x_high) = (x_low / 3.0, x_high * 3.0);
    let rates = points.iter().flat_map(|p| [Some(p.1), p.2]).flatten();
    let y_low = rates.fold(x_low * bytes, f64::min) / 2.0;
    let y_high = flops * 2.0;
    // A ledger may come from anyone, with times of zero and speeds without end: there is no plot of those.
    if [x_low, x_high, y_low, y_high].iter().any(|end| !(end.is_finite() && *end > 0.0)) {
        return None;
    }
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (value / x_low).ln() / (x_high / x_low).ln();
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / y_low).ln() / (y_high / y_low).ln();
    let mut marks = String::new();
    for (value, label) in decades(x_low, x_high) {
        marks += &format!(
            "<line class=\"grid\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{1}\"/><text x=\"{0:.1}\" y=\"{2}\" text-anchor=\"middle\">{label}</text>",
            x(value),
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 13.0
        );
    }
    for (value, label) in decades(y_low / 1e9, y_high / 1e9) {
        let place = y(value * 1e9);
        marks += &format!(
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{0}\" y1=\"{place:.1}\" y2=\"{place:.1}\"/><text x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\">{label}</text>",
            WIDTH - RIGHT,
            LEFT - 4.0,
            place + 4.0
        );
    }
    let ridge = flops / bytes;
    marks += &format!(
        "<polyline class=\"roof\" points=\"{:.1},{:.1} {:.1},{:.1} {:.1},{:.1}\"/>",
        x(x_low),
        y(x_low * bytes),
        x(ridge),
        y(flops),
        x(x_high),
        y(flops)
    );
    for (intensity, baseline, champion) in points {
        marks += &format!("<circle class=\"baseline\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"/>", x(intensity), y(baseline));
        if let Some(champion) = champion {
            let (px, py) = (x(intensity), y(champion));
            marks += &format!("<path class=\"champion\" d=\"M{:.1} {:.1}l5 8h-10z\"/>", px, py - 5.0);
        }
    }
    Some(format!(
        "<svg class=\"roofline\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><title>Roofline: GFLOP/s against operations per byte</title>{marks}\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">operations per byte</text><text x=\"{LEFT}\" y=\"9\">GFLOP/s</text></svg>",
        (LEFT + WIDTH) / 2.0,
        HEIGHT - 5.0
    ))
}

/// The powers of ten between two numbers, as people write them.
fn decades(low: f64, high: f64) -> Vec<(f64, String)> {
    let (first, last) = (low.log10().ceil() as i32, high.log10().floor() as i32);
    let step = ((last - first) / 5 + 1).max(1) as usize;
    (first..=last).step_by(step).map(|p| (10f64.powi(p), format!("{}", 10f64.powi(p)))).collect()
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
    fn a_strip_has_a_bar_for_each_interval_that_there_is() {
        let axis = Axis::of([0.8, 1.2].into_iter());
        let strip = |claimed, measured| strip(&axis, "x", claimed, measured).matches("<rect").count();
        assert_eq!(strip(Some((1.1, 1.0, 1.2)), Some((1.0, 0.9, 1.1))), 2);
        assert_eq!(strip(Some((1.1, 1.0, 1.2)), None), 1);
    }

    #[test]
    fn decades_are_the_powers_of_ten_between() {
        let labels = |low, high| decades(low, high).into_iter().map(|d| d.1).collect::<Vec<_>>();
        assert_eq!(labels(0.5, 150.0), ["1", "10", "100"]);
        assert_eq!(labels(2.0, 8.0), Vec::<String>::new());
    }
}
