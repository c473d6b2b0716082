//! Samples that neighbours disturbed: when one is taken again, and when that ends.
//!
//! A take is disturbed if its threads stood in line for a processor for more than a small part of it. That is known
//! from the scheduler and not from the time, so who is slow gets no second try for being slow. Whoever made its own
//! threads wait whenever a run went badly could still choose among its runs; so a side that is disturbed far more often
//! than the other, for the time that it ran, beside the same neighbours, is not believed any more: then every take
//! counts, of both sides, for the rest of the measurement, and waiting costs whoever waits.

use crate::record::Side;
use crate::samples::Take;
use crate::settings::Timing;

/// By how many deviations of their difference, and how many takes whatever those are, one side may be disturbed more
/// often than the other for the time that it ran.
const DEVIATIONS: f64 = 4.0;
const CHANCE: f64 = 5.0;

/// What was disturbed so far.
#[derive(Debug, Default)]
pub(crate) struct Disturbances {
    all: [u64; 2],
    /// Of this measurement: disturbed takes, and seconds of those that were not.
    disturbed: [f64; 2],
    seconds: [f64; 2],
    /// Whether one side was disturbed too often in this measurement, and in any.
    ended: bool,
    ever_ended: Option<Side>,
}

impl Disturbances {
    /// Begins a measurement.
    pub(crate) fn begin(&mut self) {
        *self = Self { all: self.all, ever_ended: self.ever_ended, ..Self::default() };
    }

    /// Notes a take, and says whether it was disturbed.
    pub(crate) fn note(&mut self, side: Side, take: Take, timing: &Timing) -> bool {
        let disturbed = take.waited > timing.waiting * take.seconds;
        match disturbed {
            true => self.disturbed[side.index()] += 1.0,
            false => self.seconds[side.index()] += take.seconds,
        }
        disturbed
    }

    /// Whether a take that was disturbed last may be taken again.
    pub(crate) fn excuse(&mut self, side: Side) -> bool {
        for (one, other) in [(Side::Champion, Side::Challenger), (Side::Challenger, Side::Champion)] {
            let ([few, many], [short, long]) = (of(self.disturbed, other, one), of(self.seconds, other, one));
            let longer = if short > 0.0 && long > 0.0 { (long / short).max(1.0) } else { 1.0 };
            if many - longer * few > CHANCE + DEVIATIONS * (many + longer * longer * few).sqrt() {
                self.ended = true;
                self.ever_ended = Some(one);
            }
        }
        self.all[side.index()] += u64::from(!self.ended);
        !self.ended
    }

    /// Samples of champion and challenger that were taken again.
    pub(crate) fn retaken(&self) -> [u64; 2] {
        self.all
    }

    /// What a reader should know.
    pub(crate) fn remark(&self) -> Option<String> {
        let side = self.ever_ended?;
        Some(format!(
            "the {side} waited for a processor far more often than its rival beside the same neighbours, so no sample of a measurement was taken \
             again for that any more"
        ))
    }
}

fn of(pair: [f64; 2], first: Side, second: Side) -> [f64; 2] {
    [pair[first.index()], pair[second.index()]]
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: Take = Take { seconds: 1e-3, waited: 1e-6 };
    const DISTURBED: Take = Take { seconds: 5e-3, waited: 4e-3 };

    #[test]
    fn a_take_is_disturbed_by_what_it_waited_and_not_by_what_it_took() {
        let (mut noted, timing) = (Disturbances::default(), Timing::default());
        assert!(!noted.note(Side::Champion, Take { seconds: 9.0, waited: 1e-3 }, &timing));
        assert!(noted.note(Side::Champion, DISTURBED, &timing));
    }

    #[test]
    fn both_sides_are_excused_as_often_as_neighbours_come() {
        let (mut noted, timing) = (Disturbances::default(), Timing::default());
        for _ in 0..500 {
            for side in [Side::Champion, Side::Challenger] {
                noted.note(side, CLEAN, &timing);
                noted.note(side, DISTURBED, &timing);
                assert!(noted.excuse(side));
            }
        }
        assert_eq!((noted.retaken(), noted.remark()), ([500, 500], None));
    }

    #[test]
    fn whoever_makes_itself_wait_is_excused_no_more() {
        let (mut noted, timing) = (Disturbances::default(), Timing::default());
        for _ in 0..100 {
            noted.note(Side::Champion, CLEAN, &timing);
            noted.note(Side::Challenger, DISTURBED, &timing);
            noted.excuse(Side::Challenger);
        }
        assert!(noted.retaken()[1] < 30, "{noted:?}");
        assert!(noted.remark().unwrap().contains("the challenger waited"));
        noted.begin();
        noted.note(Side::Challenger, DISTURBED, &timing);
        assert!(noted.excuse(Side::Challenger), "another measurement begins anew");
    }
}
