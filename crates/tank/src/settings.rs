//! Every number in the rules, with what it means. A season's file may set each of them anew.

use serde::{Deserialize, Serialize};

use referee::contestant::LONGEST_WAIT;
use referee::{RefereeSettings, meanings};

/// Declares the settings once: the field, its meaning and its default serve the code, the file and the manual.
macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr;)+) => {
        /// The numbers of the game.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct Settings {
            $($(#[doc = $doc])+ pub $name: $type,)+
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl Settings {
            /// Each setting's name and meaning, in order.
            pub const MEANINGS: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),+))),+];
        }
    };
}

settings! {
    /// Valid pitches that a round needs, or it is BLOCKED. Wild-card rounds need one.
    min_pitches: usize = 2;
    /// Sharks of distinct temperaments that a round needs, or it is BLOCKED.
    min_sharks: usize = 3;
    /// The part of the time that a claimed interval should hold what is measured.
    interval_level: f64 = 0.8;
    /// Hours of work below which a pitch is of low complexity.
    low_hours: f64 = 2.0;
    /// Hours of work up to which a pitch is of medium complexity; beyond, it is high.
    medium_hours: f64 = 6.0;
    /// The speedups above which the rubric gives 10, 9, 8, 7, 6, 5 and 4 points; below the last, and above 1, it gives
    /// 3.
    rubric: Vec<f64> = vec![10.0, 5.0, 2.0, 1.5, 1.2, 1.1, 1.05];
    /// How near to 1 a predicted speedup must be to count as none at all (1 point); below, it is a regression (0
    /// points).
    rubric_nothing: f64 = 0.005;
    /// How far beyond the measured roofline a claim may go before it is impossible, as a part of one.
    roofline_slack: f64 = 0.05;
    /// Fields of a configuration that a minimal fix may change.
    minimal_fix_changes: usize = 1;
    /// Pitches in one round on which one shark may abstain.
    abstentions_per_shark: usize = 1;
    /// Abstentions that flag a pitch.
    abstentions_flag: usize = 2;
    /// Where every shark's total of every pitch is below this, nothing is built and a research round follows.
    research_below: f64 = 4.0;
    /// Failed rounds in a row after which a research round and a wild-card round follow.
    failures_before_research: usize = 3;
    /// Whether sharks count by how right they were so far, instead of equally. Both results are shown either way.
    weigh_votes: bool = false;
    /// Verdicts of INCONCLUSIVE after which the same thing counts as tried, and needs new evidence as after a FAILURE.
    inconclusive_tries: usize = 2;
    /// Pitches of one round that are tried: the winner, then the runner-up.
    attempts: usize = 2;
    /// Sittings that are held anew when the first one's controls failed.
    void_retries: usize = 2;
    /// Whether a season waits for a person's word when a verdict is PARTIAL; otherwise the champion stays.
    partial_waits: bool = false;
    /// In a staged deal: how much slower any problem may be in the quick probe before the rest is called off.
    probe_loss: f64 = 0.1;
    /// Seconds that a shark which is a command may think about a round.
    shark_seconds: f64 = 60.0;
    /// The referee's own numbers.
    referee: RefereeSettings = RefereeSettings::default();
}

impl Settings {
    /// How much faster the geometric mean must be at least, as a part of one.
    pub fn margin(&self) -> f64 {
        self.referee.timing.least_margin
    }

    /// How much slower any problem may be at worst, as a part of one.
    pub fn max_loss(&self) -> f64 {
        self.referee.timing.most_loss
    }

    /// The settings as a file that sets each of them to what it is, with their meanings as comments.
    pub fn text(&self) -> String {
        let table = toml::Table::try_from(self).unwrap_or_default();
        let (referee, own): (Vec<_>, Vec<_>) = Self::MEANINGS.iter().partition(|(name, _)| *name == "referee");
        let mut text: String = own.iter().map(|(name, meaning)| entry(&table, name, meaning)).collect();
        let sections = referee.iter().filter_map(|(name, _)| table.get(*name)?.as_table()).flatten();
        for (section, values) in sections {
            text += &format!("[referee.{section}]\n\n");
            let values = values.as_table().cloned().unwrap_or_default();
            text.extend(meanings(section).iter().map(|(name, meaning)| entry(&values, name, meaning)));
        }
        text
    }

    /// Points for a speedup: 10 above tenfold, down to 0 for a regression.
    pub fn rubric_points(&self, speedup: f64) -> f64 {
        if speedup < 1.0 - self.rubric_nothing {
            return 0.0;
        }
        if speedup <= 1.0 + self.rubric_nothing {
            return 1.0;
        }
        let place = self.rubric.iter().position(|&threshold| speedup >= threshold);
        place.map_or(3.0, |place| 10.0 - place as f64)
    }

    /// What makes no sense in these settings, with what to do.
    pub fn fault(&self) -> Option<String> {
        let part = |name: &str, value: f64| {
            let sensible = (0.0..1.0).contains(&value);
            (!sensible).then(|| format!("{name} is {value}; give a part of one, such as 0.05 for five per cent"))
        };
        let parts = [
            ("interval_level", self.interval_level),
            ("rubric_nothing", self.rubric_nothing),
            ("roofline_slack", self.roofline_slack),
            ("probe_loss", self.probe_loss),
        ];
        let counts = [
            ("min_pitches", self.min_pitches),
            ("min_sharks", self.min_sharks),
            ("attempts", self.attempts),
            ("failures_before_research", self.failures_before_research),
        ];
        let count = |(name, value): (&str, usize)| (value == 0).then(|| format!("{name} is 0; give at least 1"));
        let falling = self.rubric.len() == 7 && self.rubric.windows(2).all(|pair| pair[0] > pair[1]);
        let rubric = (!falling).then(|| "rubric must be seven falling numbers, for 10 points down to 4".to_owned());
        let positive = self.shark_seconds > 0.0 && self.shark_seconds <= LONGEST_WAIT;
        let seconds = (!positive).then(|| {
            format!("shark_seconds is {}; give a time above 0 and at most {LONGEST_WAIT}", self.shark_seconds)
        });
        parts
            .into_iter()
            .find_map(|(name, value)| part(name, value))
            .or_else(|| counts.into_iter().find_map(count))
            .or(rubric)
            .or(seconds)
    }
}

/// One setting with its meaning before it.
fn entry(table: &toml::Table, name: &str, meaning: &str) -> String {
    let value = table.get(name).map(ToString::to_string).unwrap_or_default();
    format!("# {}\n{name} = {value}\n\n", meaning.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_settings_read_back_as_themselves() {
        let settings = Settings::default();
        let read: Settings = toml::from_str(&settings.text()).unwrap();
        assert_eq!(read, settings);
        assert!(Settings::MEANINGS.iter().all(|(_, meaning)| meaning.len() > 10));
    }

    #[test]
    fn every_number_of_the_referee_is_printed_with_its_meaning() {
        let text = Settings::default().text();
        let table = toml::Table::try_from(Settings::default()).unwrap();
        for (section, values) in table["referee"].as_table().unwrap() {
            for key in values.as_table().unwrap().keys() {
                let place =
                    text.find(&format!("\n{key} = ")).unwrap_or_else(|| panic!("{section}.{key} is not printed"));
                let line = text[..place].lines().next_back().unwrap();
                assert!(line.starts_with("# ") && line.len() > 12, "{section}.{key} has no meaning: {line}");
            }
        }
    }

    #[test]
    fn the_rubric_gives_the_points_of_the_rules() {
        let points = |speedup| Settings::default().rubric_points(speedup);
        for (speedup, expected) in [
            (12.0, 10.0),
            (7.0, 9.0),
            (3.0, 8.0),
            (1.7, 7.0),
            (1.3, 6.0),
            (1.15, 5.0),
            (1.07, 4.0),
            (1.03, 3.0),
            (1.0, 1.0),
            (0.9, 0.0),
        ] {
            assert_eq!(points(speedup), expected, "{speedup}×");
        }
    }

    #[test]
    fn settings_without_sense_are_refused_by_name() {
        let refused = |settings: Settings| settings.fault().unwrap();
        assert!(refused(Settings { probe_loss: 5.0, ..Settings::default() }).contains("probe_loss"));
        assert!(refused(Settings { min_sharks: 0, ..Settings::default() }).contains("min_sharks"));
        assert!(refused(Settings { rubric: vec![1.0], ..Settings::default() }).contains("rubric"));
        assert_eq!(Settings::default().fault(), None);
    }
}
