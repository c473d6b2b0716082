//! Processes that are started before their turn.
//!
//! A measurement takes fresh processes for every pair, and some programs take seconds to say hello: an import of torch,
//! say. Where they do, and there are processors for it, the processes of the next pairs load beside each other. Whoever
//! has said hello stands still like everybody between runs, and learns nothing more before its turn than a process that
//! is started for it: what it consumes meanwhile is its fault.

use std::time::{Duration, Instant};

use crate::contestant::{Contestant, Fault, Session};

/// Whose hello takes longer is started ahead.
const SLOW: Duration = Duration::from_secs(1);
/// Pairs that are started at a time at most: as many as the shortest measurement takes.
const MOST_PAIRS: usize = 3;
/// Processors for each pair, so that nobody is late because others load.
const PROCESSORS_A_PAIR: usize = 4;

/// Whose process it is, as the one who keeps them tells them apart.
pub(crate) type Kind = usize;

/// Who waits.
#[derive(Default)]
pub(crate) struct Waiting {
    sessions: Vec<(Kind, Box<dyn Session>)>,
    /// What the first pair took to say hello.
    hello: Option<Duration>,
}

impl Waiting {
    /// A pair that has said hello: who has waited longest, or fresh ones. A fault comes with the place of whose it is.
    pub(crate) fn pair(
        &mut self,
        kinds: [Kind; 2],
        contestants: [&dyn Contestant; 2],
    ) -> Result<[Box<dyn Session>; 2], (usize, Fault)> {
        if let Some(pair) = self.take(kinds) {
            return Ok(pair);
        }
        let start = Instant::now();
        let pairs = if self.hello.is_some_and(|hello| hello > SLOW) { at_once() } else { 1 };
        self.start(pairs, kinds, contestants)?;
        self.hello.get_or_insert_with(|| start.elapsed());
        let missing = || (0, Fault::Start { reason: "its process was not there".to_owned() });
        self.take(kinds).ok_or_else(missing)
    }

    /// Ends them all.
    pub(crate) fn end(&mut self) {
        self.sessions.clear();
    }

    /// Starts so many pairs beside each other, and waits until all of them have said hello.
    fn start(
        &mut self,
        pairs: usize,
        kinds: [Kind; 2],
        contestants: [&dyn Contestant; 2],
    ) -> Result<(), (usize, Fault)> {
        let mut started = Vec::with_capacity(2 * pairs);
        for place in (0..2 * pairs).map(|number| number % 2) {
            started.push((place, contestants[place].spawn().map_err(|fault| (place, fault))?));
        }
        for (place, mut session) in started {
            session.greet().map_err(|fault| (place, fault))?;
            self.sessions.push((kinds[place], session));
        }
        Ok(())
    }

    /// The two that have waited longest, if both are there.
    fn take(&mut self, kinds: [Kind; 2]) -> Option<[Box<dyn Session>; 2]> {
        let first = self.sessions.iter().position(|(kind, _)| *kind == kinds[0])?;
        let of_second = |(place, (kind, _)): (usize, &(Kind, _))| place != first && *kind == kinds[1];
        let second = self.sessions.iter().enumerate().position(of_second)?;
        let (_, one) = self.sessions.remove(first);
        let (_, other) = self.sessions.remove(second - usize::from(second > first));
        Some([one, other])
    }
}

/// Pairs that this machine starts beside each other.
fn at_once() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (processors / PROCESSORS_A_PAIR).clamp(1, MOST_PAIRS)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::contestant::About;
    use crate::doubling::Doubler;

    /// Notes who was started, and fails from a number on.
    struct Noted(&'static str, Rc<RefCell<Vec<&'static str>>>, usize);

    impl Contestant for Noted {
        fn about(&self) -> About {
            Doubler::named(self.0).about()
        }

        fn start(&self) -> Result<Box<dyn Session>, Fault> {
            self.1.borrow_mut().push(self.0);
            if self.1.borrow().len() > self.2 {
                return Err(Fault::Start { reason: self.0.to_owned() });
            }
            Doubler::named(self.0).start()
        }
    }

    #[test]
    fn those_who_were_started_ahead_come_one_after_the_other_and_each_once() {
        let log = Rc::default();
        let (one, other) = (Noted("one", Rc::clone(&log), 100), Noted("other", Rc::clone(&log), 100));
        let mut waiting = Waiting::default();
        waiting.start(3, [0, 1], [&one, &other]).unwrap();
        assert_eq!(*log.borrow(), ["one", "other", "one", "other", "one", "other"]);
        for left in [4, 2, 0] {
            assert!(waiting.pair([0, 1], [&one, &other]).is_ok());
            assert_eq!((waiting.sessions.len(), log.borrow().len()), (left, 6));
        }
        // Nobody is left, and what says hello at once is not started ahead.
        assert!(waiting.pair([0, 1], [&one, &other]).is_ok() && waiting.pair([0, 0], [&one, &one]).is_ok());
        assert_eq!((waiting.sessions.len(), log.borrow().len()), (0, 10));
    }

    #[test]
    fn a_pair_of_one_kind_is_two_processes_and_another_kind_is_nobodys_stand_in() {
        let log = Rc::default();
        let (one, other) = (Noted("one", Rc::clone(&log), 100), Noted("other", Rc::clone(&log), 100));
        let mut waiting = Waiting::default();
        waiting.start(1, [0, 0], [&one, &one]).unwrap();
        assert!(waiting.take([0, 1]).is_none() && waiting.take([1, 0]).is_none());
        assert_eq!(waiting.sessions.len(), 2, "who does not suit stays");
        assert!(waiting.pair([0, 1], [&one, &other]).is_ok());
        assert_eq!(*log.borrow(), ["one", "one", "one", "other"]);
        assert!(waiting.take([0, 0]).is_some() && waiting.sessions.is_empty());
        waiting.start(2, [0, 1], [&one, &other]).unwrap();
        waiting.end();
        assert!(waiting.sessions.is_empty());
    }

    #[test]
    fn a_fault_is_whose_it_is() {
        let log = Rc::default();
        let (one, other) = (Noted("one", Rc::clone(&log), 3), Noted("other", Rc::clone(&log), 3));
        let (place, fault) = Waiting::default().start(3, [0, 1], [&one, &other]).unwrap_err();
        assert!(place == 1 && matches!(fault, Fault::Start { reason } if reason == "other"));
    }
}
