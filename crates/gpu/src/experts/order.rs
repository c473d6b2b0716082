//! When launches begin of which some bring weights over: those in a line of their own, beside the others.
//!
//! Each line is in order, and a launch may wait for one of the other line. The first that brings weights waits for all
//! that was before it; each of the others for the reader of what it replaces, which the last but one has brought. A
//! reader waits for what it reads.

use super::layer::Fetch;

/// A launch in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Its place among all launches.
    pub launch: usize,
    /// Whether it is in the line beside the others.
    pub beside: bool,
    /// The launch, of the other line and before it, that must have ended before it begins, if it waits for one.
    pub after: Option<usize>,
}

/// So many launches as they are queued.
pub(crate) fn turns(launches: usize, fetches: &[Fetch]) -> Vec<Turn> {
    let turn = |launch: usize| match fetches.iter().position(|fetch| fetch.at == launch) {
        None => {
            let read = fetches.iter().find(|fetch| fetch.reader == launch);
            Turn { launch, beside: false, after: read.map(|fetch| fetch.at) }
        }
        Some(0) => Turn { launch, beside: true, after: launch.checked_sub(1) },
        Some(1) => Turn { launch, beside: true, after: None },
        Some(number) => Turn { launch, beside: true, after: Some(fetches[number - 2].reader) },
    };
    (0..launches).map(turn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_come_while_what_came_before_is_read_and_no_sooner_than_their_place_is_free() {
        // Two launches, a fetch, the product of slots, its reader; then fetches and readers in turn, and one behind.
        let fetches = [(2, 4), (5, 6), (7, 8), (9, 10)].map(|(at, reader)| Fetch { at, reader });
        let found = turns(12, &fetches);
        let line = |beside: bool| found.iter().filter(move |turn| turn.beside == beside);
        let waits = |beside| line(beside).filter_map(|turn| Some((turn.launch, turn.after?))).collect::<Vec<_>>();
        assert_eq!(line(true).map(|turn| turn.launch).collect::<Vec<_>>(), [2, 5, 7, 9]);
        assert_eq!(waits(true), [(2, 1), (7, 4), (9, 6)]);
        assert_eq!(waits(false), [(4, 2), (6, 5), (8, 7), (10, 9)]);
        assert!(found.iter().enumerate().all(|(at, turn)| turn.launch == at && turn.after.is_none_or(|it| it < at)));
        assert!(turns(3, &[]).iter().all(|turn| !turn.beside && turn.after.is_none()));
    }
}
