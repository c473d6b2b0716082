//! Charts with axes: the roofline, steps of champions, a line that falls, a spectrum. Their labels are inside of the
//! drawing, which is as wide as a telephone and scales as a whole.

use crate::{escape, of_floor};

/// The size of a chart and its margins.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 34.0;
/// About how wide a letter is, for labels that must end somewhere.
const LETTER: f64 = 5.6;

/// One axis of a chart: its ends, and whether it is logarithmic.
#[derive(Clone, Copy, Debug)]
struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Scale {
    /// Where a value lies, from 0 to 1.
    fn part(&self, value: f64) -> f64 {
        let part = match self.logarithmic {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.0 }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * self.part(value)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * self.part(value)
    }
}

/// The drawing around marks, with a title for those who cannot see it; text.
fn drawn(class: &str, title: &str, marks: &str) -> String {
    format!(
        "<svg class=\"chart {class}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><title>{}</title>{marks}</svg>\n",
        escape(title)
    )
}

/// A line across with its label on the left.
fn level(y: f64, label: &str) -> String {
    format!(
        "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
         <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
        WIDTH - RIGHT,
        LEFT - 5.0,
        y + 3.5
    )
}

/// A label below the chart.
fn below(x: f64, label: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", HEIGHT - BOTTOM + 14.0)
}

/// What an axis shows, under the chart or above its left end.
fn named(across: &str, up: &str) -> String {
    format!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text><text x=\"2\" y=\"10\">{}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 5.0,
        escape(across),
        escape(up)
    )
}

/// A text that ends where so many pixels end.
fn shortened(text: &str, pixels: f64) -> String {
    let most = (pixels / LETTER).max(4.0) as usize;
    match text.chars().count() > most {
        true => format!("{}…", text.chars().take(most - 1).collect::<String>().trim_end()),
        false => text.to_owned(),
    }
}

/// A ratio as a label of an axis.
fn ratio(value: f64) -> String {
    let text = format!("{value:.2}");
    format!("{}×", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A rate with a prefix of its unit: 20 G, 1 T, 100 T.
fn rate(value: f64) -> String {
    let prefixes = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match prefixes.iter().find(|(size, _)| value >= 0.9999 * size) {
        Some((size, prefix)) => format!("{} {prefix}", (value / size * 100.0).round() / 100.0),
        None => format!("{value}"),
    }
}

/// The powers of ten between two numbers, no more than six of them.
fn decades(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().ceil() as i32, high.log10().floor() as i32);
    let step = ((last - first) / 5 + 1).max(1) as usize;
    (first..=last).step_by(step).map(|power| 10f64.powi(power)).collect()
}

/// Round values between two others, so few that their labels have room.
fn rounded(low: f64, high: f64) -> Vec<f64> {
    const STEPS: [f64; 10] = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];
    let step = STEPS.into_iter().find(|step| (high - low) / step <= 6.0).unwrap_or((high - low) / 6.0);
    let first = (low / step).ceil() as i64;
    (first..).map(|n| n as f64 * step).take_while(|value| *value <= high + 1e-9).take(12).collect()
}

/// A problem under the roof.
#[derive(Clone, Debug)]
pub struct Work {
    /// Its name.
    pub name: String,
    /// Operations that must be done.
    pub flops: f64,
    /// The least seconds that the machine's rates allow.
    pub floor: f64,
    /// Seconds of the baseline.
    pub baseline: f64,
    /// Seconds of the champion, where there is another.
    pub champion: Option<f64>,
}

/// The roofline: operations per byte against operations per second. What a dot reaches of the roof above it is what its
/// seconds reach of its floor: the roof is drawn from the floors, so that the picture and a table of them agree.
/// Nothing is drawn of figures that no machine has.
pub fn roofline(works: &[Work], bytes_per_second: f64) -> Option<String> {
    let works: Vec<&Work> = works.iter().filter(|w| w.flops > 0.0 && w.floor > 0.0 && w.baseline > 0.0).collect();
    // What the floors allow at most is what the machine computes; a lower roof is its memory's.
    let flops = works.iter().map(|w| w.flops / w.floor).fold(0.0, f64::max);
    let ridge = flops / bytes_per_second;
    let intensity = |work: &Work| work.flops / work.floor / bytes_per_second;
    let low = works.iter().map(|w| intensity(w)).fold(ridge, f64::min) / 3.0;
    let across = Scale { low, high: ridge * 6.0, logarithmic: true };
    let slowest = works.iter().flat_map(|w| [Some(w.baseline), w.champion].into_iter().flatten().map(|s| w.flops / s));
    let slowest = slowest.fold(low * bytes_per_second, f64::min);
    let up = Scale { low: slowest / 2.0, high: flops * 2.0, logarithmic: true };
    if [across.low, across.high, up.low, up.high].iter().any(|end| !(end.is_finite() && *end > 0.0)) {
        return None;
    }
    let mut marks = String::new();
    for value in decades(across.low, across.high) {
        let x = across.x(value);
        marks += &format!(
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{}\"/>{}",
            HEIGHT - BOTTOM,
            below(x, &rate(value))
        );
    }
    marks.extend(decades(up.low, up.high).into_iter().map(|value| level(up.y(value), &rate(value))));
    marks += &format!(
        "<polyline class=\"roof\" points=\"{:.1},{:.1} {:.1},{:.1} {:.1},{:.1}\"/>",
        across.x(across.low),
        up.y(across.low * bytes_per_second),
        across.x(ridge),
        up.y(flops),
        across.x(across.high),
        up.y(flops)
    );
    for work in works {
        // A problem that computing bounds lies anywhere right of the ridge: its roof is flat.
        let bound_by_memory = work.flops / work.floor < 0.999 * flops;
        let x = across.x(if bound_by_memory { intensity(work) } else { ridge * 1.6 });
        let reached = |seconds: f64| of_floor(work.floor, seconds);
        let y = |seconds: f64| up.y(work.flops / work.floor * reached(seconds) / 100.0);
        let (baseline, name) = (work.baseline, escape(&work.name));
        marks += &format!(
            "<circle class=\"baseline\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"4\"><title>{name}: the baseline reaches {:.0} %</title></circle>",
            y(baseline),
            reached(baseline)
        );
        if let Some(champion) = work.champion {
            marks += &format!(
                "<path class=\"champion\" d=\"M{x:.1} {:.1}l5 8h-10z\"><title>{name}: the champion reaches {:.0} %</title></path>",
                y(champion),
                reached(champion)
            );
        }
    }
    marks += &named("operations per byte from memory", "FLOP/s");
    Some(drawn("roofline", "Roofline: operations per second against operations per byte", &marks))
}

/// A place on the way of champions.
#[derive(Clone, Debug)]
pub struct Stop {
    /// What stands below it: a round's number, or a date.
    pub label: String,
    /// The champion from here on.
    pub champion: String,
    /// How many times as fast it is as the first one.
    pub height: f64,
    /// Whether this champion is new here.
    pub crowned: bool,
    /// Who was tried here and did not win: the name, how high it came where that is known, and its verdict.
    pub tried: Vec<(String, Option<f64>, String)>,
}

/// Champions over rounds or days: a line that rises where one is crowned, with everyone else who tried as a dot.
/// Both axes' names are text.
pub fn steps(stops: &[Stop], across: &str, up: &str) -> String {
    let heights = stops.iter().flat_map(|stop| {
        stop.tried
            .iter()
            .filter_map(|(_, height, _)| *height)
            .chain([stop.height])
            .filter(|h| h.is_finite() && *h > 0.0)
    });
    let (low, high) = heights.fold((0.95, 1.05), |(low, high): (f64, f64), h| (low.min(h), high.max(h)));
    let scale = Scale { low: low / (high / low).powf(0.06), high: high * (high / low).powf(0.12), logarithmic: true };
    let width = (WIDTH - LEFT - RIGHT) / stops.len().max(1) as f64;
    let left = |at: usize| LEFT + width * at as f64;
    let mut marks = String::new();
    for value in rounded(scale.low, scale.high) {
        marks += &level(scale.y(value), &ratio(value));
    }
    let mut line = String::new();
    let every = stops.len().div_ceil(8).max(1);
    for (at, stop) in stops.iter().enumerate() {
        let y = scale.y(stop.height);
        line += &format!("{:.1},{y:.1} {:.1},{y:.1} ", left(at), left(at + 1));
        if at % every == 0 {
            marks += &below(left(at) + width / 2.0, &escape(&shortened(&stop.label, width * every as f64)));
        }
        for (name, height, verdict) in &stop.tried {
            let class = verdict.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_lowercase();
            let (x, title) = (left(at) + width / 2.0, escape(&format!("{name}: {verdict}")));
            marks += &match height {
                Some(height) => format!(
                    "<circle class=\"tried {class}\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{title}, {height:.2}×</title></circle>",
                    scale.y(*height)
                ),
                // What has no figure stands at the foot.
                None => {
                    let y = HEIGHT - BOTTOM - 5.0;
                    format!(
                        "<path class=\"tried {class}\" d=\"M{0:.1} {1:.1}l6 6m0 -6l-6 6\"><title>{title}</title></path>",
                        x - 3.0,
                        y - 3.0
                    )
                }
            };
        }
    }
    marks += &format!("<polyline class=\"way\" points=\"{}\"/>", line.trim_end());
    for (at, stop) in stops.iter().enumerate().filter(|(_, stop)| stop.crowned) {
        // As much room as there is until the next is crowned.
        let next =
            stops.iter().enumerate().skip(at + 1).find(|(_, next)| next.crowned).map_or(stops.len(), |(next, _)| next);
        let (room, y) = (width * (next - at) as f64 - 6.0, scale.y(stop.height));
        marks += &format!(
            "<circle class=\"crown\" cx=\"{:.1}\" cy=\"{y:.1}\" r=\"4\"><title>{}: {:.2}×</title></circle>\
             <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            left(at),
            escape(&stop.champion),
            stop.height,
            left(at) + 5.0,
            y - 6.0,
            escape(&shortened(&stop.champion, room))
        );
    }
    marks += &named(across, up);
    drawn("steps", &format!("{up} over {across}"), &marks)
}

/// A claim on its way down: where it was made, its interval, and what stands beside it; text.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Where: a round, or a pitch's name.
    pub label: String,
    /// The ends of what was claimed, as times as fast.
    pub ends: [f64; 2],
    /// How sure its author was, from 0 to 1.
    pub confidence: Option<f64>,
}

/// A claim that was revised, as a line through its middles in the band of its intervals.
pub fn lineage(claims: &[Claim]) -> String {
    let ends = claims.iter().flat_map(|claim| claim.ends).filter(|end| end.is_finite());
    let (low, high) = ends.fold((1.0, 1.02), |(low, high): (f64, f64), end| (low.min(end), high.max(end)));
    let scale = Scale { low: low - 0.05 * (high - low), high: high + 0.15 * (high - low), logarithmic: false };
    let width = (WIDTH - LEFT - RIGHT) / claims.len().max(1) as f64;
    let x = |at: usize| LEFT + width * (at as f64 + 0.5);
    let mut marks: String =
        rounded(scale.low, scale.high).into_iter().map(|value| level(scale.y(value), &ratio(value))).collect();
    let edge = |end: usize| claims.iter().enumerate().map(move |(at, claim)| (at, claim.ends[end]));
    let point = |(at, value): (usize, f64)| format!("{:.1},{:.1}", x(at), scale.y(value));
    let there: Vec<String> = edge(1).map(point).collect();
    let back: Vec<String> = edge(0).map(point).collect::<Vec<_>>().into_iter().rev().collect();
    marks += &format!("<polygon class=\"band\" points=\"{} {}\"/>", there.join(" "), back.join(" "));
    let middle = |claim: &Claim| (claim.ends[0] + claim.ends[1]) / 2.0;
    let line: Vec<String> = claims.iter().enumerate().map(|(at, claim)| point((at, middle(claim)))).collect();
    marks += &format!("<polyline class=\"way\" points=\"{}\"/>", line.join(" "));
    for (at, claim) in claims.iter().enumerate() {
        let sure = claim.confidence.map(|sure| format!("{:.0} % sure", 100.0 * sure)).unwrap_or_default();
        marks += &format!(
            "<circle class=\"crown\" cx=\"{0:.1}\" cy=\"{1:.1}\" r=\"4\"/><text class=\"name\" x=\"{0:.1}\" y=\"{2:.1}\">{sure}</text>{3}",
            x(at),
            scale.y(middle(claim)),
            scale.y(claim.ends[1]) - 6.0,
            below(x(at), &escape(&shortened(&claim.label, width)))
        );
    }
    marks += &named("from round to round", "claimed");
    drawn("lineage", "What was claimed, from round to round", &marks)
}

/// Scores from 0 to 10 on one line, the safest on the right: a dot for each, in rows so that names do not overlap.
pub fn spectrum(scores: &[(&str, f64)]) -> String {
    const ROW: f64 = 18.0;
    let mut scores: Vec<(&str, f64)> = scores.to_vec();
    scores.sort_by(|a, b| b.1.total_cmp(&a.1));
    let scale = Scale { low: 0.0, high: 10.0, logarithmic: false };
    let height = ROW * scores.len() as f64 + 24.0;
    let mut marks = format!(
        "<line class=\"axis-line\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{1}\" y2=\"{1}\"/>\
         <text x=\"{LEFT}\" y=\"{2}\">risky 0</text><text x=\"{0}\" y=\"{2}\" text-anchor=\"end\">10 safe</text>",
        WIDTH - RIGHT,
        height - 16.0,
        height - 4.0
    );
    for (at, (name, score)) in scores.iter().enumerate() {
        let (x, y) = (scale.x(*score), ROW * at as f64 + 10.0);
        // The name stands on the side where there is more room.
        let right = *score < 5.0;
        let room = if right { WIDTH - x } else { x } - 12.0;
        let label = format!("{} {score:.1}", shortened(name, room - 24.0));
        marks += &format!(
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{}\"/><circle class=\"crown\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{}\">{}</text>",
            height - 16.0,
            if right { x + 8.0 } else { x - 8.0 },
            y + 3.5,
            if right { "start" } else { "end" },
            escape(&label)
        );
    }
    format!(
        "<svg class=\"chart spectrum\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\"><title>How safe the pitches are</title>{marks}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of an attribute, wherever it stands in what matches.
    fn numbers(text: &str, start: &str, attribute: &str) -> Vec<f64> {
        let tags = text.split(start).skip(1);
        let value = |tag: &str| tag.split(&format!("{attribute}=\"")).nth(1)?.split('"').next()?.parse().ok();
        tags.filter_map(value).collect()
    }

    #[test]
    fn a_dot_reaches_of_the_roof_what_its_time_reaches_of_the_floor_and_never_more() {
        let work = |floor: f64, baseline: f64, champion: f64| Work {
            name: "p".into(),
            flops: 1e9,
            floor,
            baseline,
            champion: Some(champion),
        };
        // One that computing bounds, at its roof, and one that memory bounds, which beats its floor.
        let drawing = roofline(&[work(1e-3, 1e-3, 4e-3), work(2e-3, 1e-3, 8e-3)], 1e11).unwrap();
        let dots = numbers(&drawing, "<circle class=\"baseline\"", "cy");
        let roof = drawing.split("class=\"roof\" points=\"").nth(1).unwrap().split('"').next().unwrap();
        let roof: Vec<[f64; 2]> = roof
            .split(' ')
            .map(|point| point.split_once(',').map(|(x, y)| [x, y].map(|n| n.parse().unwrap())).unwrap())
            .collect();
        assert!((dots[0] - roof[1][1]).abs() < 0.2, "{dots:?} {roof:?}");
        assert!(dots[1] >= roof[1][1], "no dot is above the roof: {dots:?} {roof:?}");
        assert!(drawing.contains("the baseline reaches 100 %") && drawing.contains("the champion reaches 25 %"));
        assert!(roofline(&[work(0.0, 1.0, 1.0)], 1e11).is_none() && roofline(&[], f64::NAN).is_none());
    }

    #[test]
    fn labels_of_the_left_axis_fit_beside_it() {
        for value in [1.0, 1e3, 1e5, 1e9, 1e11, 1e13, 1e17] {
            assert!(LETTER * rate(value).chars().count() as f64 <= LEFT - 5.0, "{}", rate(value));
        }
        assert_eq!([1e12, 2e10, 50.0].map(rate), ["1 T", "20 G", "50"]);
    }

    #[test]
    fn champions_rise_and_the_defeated_are_dots_or_crosses_at_the_foot() {
        let stop = |champion: &str, height, crowned, tried| Stop {
            label: "1".into(),
            champion: champion.into(),
            height,
            crowned,
            tried,
        };
        let tried =
            vec![("x".to_owned(), Some(0.8), "FAILURE".to_owned()), ("y".to_owned(), None, "BLOCKED".to_owned())];
        let drawing = steps(&[stop("baseline", 1.0, true, vec![]), stop("<second>", 1.5, true, tried)], "rounds", "×");
        assert_eq!(drawing.matches("class=\"crown\"").count(), 2);
        assert_eq!(
            (
                drawing.matches("<circle class=\"tried failure\"").count(),
                drawing.matches("<path class=\"tried blocked\"").count()
            ),
            (1, 1)
        );
        assert!(drawing.contains("&lt;second&gt;") && !drawing.contains("<second>"));
        let heights = numbers(&drawing, "class=\"crown\"", "cy");
        assert!(heights[1] < heights[0], "faster is higher: {heights:?}");
    }

    #[test]
    fn decades_and_round_values_are_between_the_ends() {
        assert_eq!(decades(0.5, 150.0), [1.0, 10.0, 100.0]);
        assert_eq!(decades(2.0, 8.0), [0.0; 0]);
        let values = rounded(0.9, 1.5);
        assert!(values.len() >= 3 && values.iter().all(|v| (0.9..=1.5001).contains(v)), "{values:?}");
    }

    #[test]
    fn a_label_ends_where_its_room_ends() {
        assert_eq!(shortened("a champion with a long name", 80.0), "a champion wi…");
        assert_eq!(shortened("short", 80.0), "short");
    }
}
