//! A GPU on which both sides of a sitting compute: what it can do at most, how it was while they did, and whether
//! anything ran outside of its clock.

use std::collections::BTreeMap;
use std::time::Duration;

use gpu::device;
use gpu::driver::{Monitor, Reading};

use crate::Result;
use crate::contestant::{DeviceTime, Fault};
use crate::record::{DeviceReport, Side};
use crate::stats::median;

/// What events tell apart, by NVIDIA's documentation of them.
pub(crate) const RESOLUTION: f64 = 0.5e-6;
/// Seconds for which the whole device may be waited for after a run's last event: a host's own, on a machine with
/// neighbours.
const WAIT: f64 = 50e-6;
/// The same as a part of the run.
const WAIT_SHARE: f64 = 0.2;
/// Where runs are behind a latch: what the referee's own work around a run may take longer than it ever did. Honest
/// runs show up to 170 µs on an H200, and a change of contexts there and back, which nobody can come between the
/// referee's work without, takes 290 µs more.
const LATCHED: f64 = 400e-6;
const LATCHED_SHARE: f64 = 0.01;
/// What the device's clock may say beyond the host's, as a fraction: they are two crystals.
const CRYSTALS: f64 = 1e-3;
/// Seconds by which a run may be shorter than one of a kernel that does nothing: what both were seen to swing by on an
/// H200, several times over.
const BLANK_NOISE: f64 = 10e-6;

/// The same as a part of what its inputs add.
const COPY_NOISE: f64 = 0.05;
/// What the host's clock may say beyond the device's of a run with all that is around it: a host that queues and looks,
/// and as a part of it. A host that is late is so now and then; a device's clock that is slow is so in every run.
const HOST_LATE: f64 = 1e-3;
const HOST_LATE_SHARE: f64 = 0.05;
/// Runs from which the two clocks are compared.
const ENOUGH_RUNS: usize = 4;
/// How long the device rests before it is asked whether others compute on it: what it says is of up to the last second.
/// Then how often it is asked, and after which pauses.
const REST: Duration = Duration::from_millis(1100);
const ASKED: usize = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// A device that is watched.
pub struct Watched {
    /// What is known of it so far.
    pub(crate) report: DeviceReport,
    /// Bytes of its L2.
    pub(crate) cache_bytes: u64,
    /// Its clocks and its power now, where somebody can say.
    read: Option<Box<dyn Fn() -> Reading>>,
    /// Why nobody can.
    pub(crate) unread: Option<String>,
    /// The times of each side since they entered.
    times: [Vec<DeviceTime>; 2],
    /// For each shape, with how many jobs a kernel that does nothing was timed, and what it took.
    blanks: BTreeMap<usize, (usize, f64)>,
}

impl Watched {
    /// A device of this machine, or why it is not there.
    pub fn open(device: usize) -> Result<Self> {
        let context = device::context(device)?;
        let (info, facts) = (context.info(), &device::Device::of(device)?.facts);
        let (read, unread): (Option<Box<dyn Fn() -> Reading>>, _) = match Monitor::of(context) {
            Ok(monitor) => (Some(Box::new(move || monitor.reading())), None),
            Err(absent) => (None, Some(format!("no clocks and no power: {}", absent.reason))),
        };
        let (flops_per_second, bytes_per_second) = facts.ceilings();
        let (name, driver) = (info.name.clone(), info.driver);
        let report = DeviceReport { name, driver, flops_per_second, bytes_per_second, ..DeviceReport::default() };
        let (cache_bytes, times, blanks) = (info.cache_bytes as u64, Default::default(), BTreeMap::new());
        Ok(Self { report, cache_bytes, read, unread, times, blanks })
    }

    /// A device that is told of, for tests of what is done with it.
    pub fn told(report: DeviceReport, cache_bytes: u64, read: impl Fn() -> Reading + 'static) -> Self {
        let (read, times, blanks): (Option<Box<dyn Fn() -> Reading>>, _, _) =
            (Some(Box::new(read)), Default::default(), BTreeMap::new());
        Self { report, cache_bytes, read, unread: None, times, blanks }
    }

    /// Looks at its clocks and its power.
    pub(crate) fn look(&mut self) {
        let Some(reading) = self.read.as_ref().map(|read| read()) else { return };
        let widen = |known: &mut Option<[f64; 2]>, new: Option<f64>| {
            if let Some(new) = new {
                *known = Some(known.map_or([new, new], |[low, high]| [low.min(new), high.max(new)]));
            }
        };
        widen(&mut self.report.clock, reading.clock);
        widen(&mut self.report.memory_clock, reading.memory_clock);
        widen(&mut self.report.watts, reading.watts);
        widen(&mut self.report.celsius, reading.celsius);
        for words in reading.held_by {
            if !self.report.held_by.iter().any(|known| known == words) {
                self.report.held_by.push(words.to_owned());
            }
        }
    }

    /// Whether somebody else computes on it, asked when all contestants are gone: every time it is asked. Where nobody
    /// can say, nobody does.
    pub(crate) fn has_neighbours(&self) -> bool {
        let Some(read) = &self.read else { return false };
        let at_work = || read().busy.is_some_and(|busy| busy > 0.0);
        std::thread::sleep(REST);
        (0..ASKED).all(|_| {
            std::thread::sleep(PAUSE);
            at_work()
        })
    }

    /// Notes what runs of a kernel that does nothing took behind a latch, with the inputs of so many jobs of a shape,
    /// beside the contestants of now: their median. Of all of those the least counts, so that whoever leaves work
    /// behind on the device, which makes them longer, gains nothing by it.
    pub(crate) fn note_blanks(&mut self, shape: usize, jobs: usize, seconds: &[f64]) {
        let seconds = median(seconds);
        if jobs == 0 {
            self.report.blank_seconds = Some(self.report.blank_seconds.unwrap_or(f64::INFINITY).min(seconds));
            return;
        }
        let known = self.blanks.get(&shape).filter(|known| known.0 == jobs).map_or(f64::INFINITY, |known| known.1);
        self.blanks.insert(shape, (jobs, known.min(seconds)));
    }

    /// What a kernel that does nothing takes behind a latch with the inputs of so many jobs: each adds the same.
    fn blank(&self, shape: usize, jobs: usize) -> f64 {
        let none = self.report.blank_seconds.unwrap_or(0.0);
        let each = |&(of, seconds): &(usize, f64)| (seconds - none).max(0.0) / of as f64;
        none + jobs as f64 * self.blanks.get(&shape).map_or(0.0, each)
    }

    /// Notes what a run took, and how the device is right after it; the seconds that count. A device's clock that says
    /// more than the host's has been tampered with.
    pub(crate) fn note(
        &mut self,
        side: Side,
        (shape, jobs): (usize, usize),
        time: DeviceTime,
        host: f64,
    ) -> Result<f64, Fault> {
        let (none, blank) = (self.report.blank_seconds.unwrap_or(0.0), self.blank(shape, jobs));
        let seconds = time.seconds - blank;
        let [device, host_says, least] = [time.seconds, host, blank].map(|seconds| 1e6 * seconds);
        if time.seconds > host * (1.0 + CRYSTALS) || seconds.is_nan() {
            let what =
                format!("its clock: the device says {device:.1} µs of a run that took {host_says:.1} by the host's");
            return Err(Fault::Tampering { what });
        }
        if seconds < -BLANK_NOISE.max(COPY_NOISE * (blank - none)) {
            let what = format!(
                "its clock: a run took {device:.1} µs, and one kernel that does nothing takes {least:.1} behind the latch"
            );
            return Err(Fault::Tampering { what });
        }
        self.look();
        self.report.longest_wait = self.report.longest_wait.max(time.outside);
        self.times[side.index()].push(time);
        // A single small job can be as short as none.
        Ok(seconds.max(RESOLUTION))
    }

    /// Whether a side's work was between its events, by the median since it entered: a single long wait is the host's.
    pub(crate) fn settle(&mut self, side: Side) -> Result<(), Fault> {
        let times = std::mem::take(&mut self.times[side.index()]);
        if times.is_empty() {
            return Ok(());
        }
        let slow = |[device, host]: [f64; 2]| host > device * (1.0 + HOST_LATE_SHARE) + HOST_LATE;
        if times.len() >= ENOUGH_RUNS && times.iter().all(|time| slow(time.whole)) {
            let least = |part: usize| times.iter().map(|time| 1e3 * time.whole[part]).fold(f64::INFINITY, f64::min);
            let [device, host] = [least(0), least(1)];
            let what =
                format!("its clock: the device says {device:.2} ms of what took the host {host:.2} ms, in every run");
            return Err(Fault::Tampering { what });
        }
        let of = |part: fn(&DeviceTime) -> f64| median(&times.iter().map(part).collect::<Vec<_>>());
        let (seconds, outside) = (of(|time| time.seconds), of(|time| time.outside));
        let (least, share, when) = match self.report.blank_seconds {
            None => (WAIT, WAIT_SHARE, "after"),
            Some(_) => (LATCHED, LATCHED_SHARE, "before or after"),
        };
        if outside <= least.max(share * seconds) {
            return Ok(());
        }
        let [seconds, outside] = [seconds, outside].map(|seconds| 1e6 * seconds);
        let what = format!("its clock: the device was at work for {outside:.0} µs {when} runs of {seconds:.0} µs");
        Err(Fault::Tampering { what })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use super::*;
    use crate::contestant::{About, Contestant, Guard, Job, Readiness, Session, Tensors};
    use crate::doubling::{Doubler, task};
    use crate::{Clock, Course, CourseReport, Halt, Outcome, Pairing, Pool, RefereeSettings, Temperature};

    /// A clock that moves by a second with every look at it.
    #[derive(Default)]
    struct Seconds(Cell<f64>);

    impl Clock for Seconds {
        fn now(&self) -> f64 {
            self.0.set(self.0.get() + 1.0);
            self.0.get()
        }
    }

    /// A plain contestant, as if it had computed on a device that takes so long for a job, and was at work for so long
    /// afterwards; behind a latch that takes so long, if it queues.
    struct AsIfOnDevice {
        contestant: Doubler,
        job: f64,
        outside: f64,
        latch: Option<f64>,
        /// What the host's clock says of it, as a multiple of the device's.
        host: f64,
        /// What the inputs of a job take to be copied.
        copy: f64,
        swept: Rc<RefCell<Vec<u64>>>,
    }

    struct AsIfSession {
        session: Box<dyn Session>,
        jobs: usize,
        job: f64,
        outside: f64,
        latch: Option<f64>,
        host: f64,
        copy: f64,
        by_the_host: bool,
        prepared: bool,
        swept: Rc<RefCell<Vec<u64>>>,
    }

    impl Contestant for AsIfOnDevice {
        fn about(&self) -> About {
            self.contestant.about()
        }

        fn start(&self) -> Result<Box<dyn Session>, Fault> {
            let (session, swept) = (self.contestant.start()?, Rc::clone(&self.swept));
            let (by_the_host, prepared) = (false, false);
            let Self { job, outside, latch, host, copy, .. } = *self;
            let session =
                AsIfSession { session, jobs: 0, job, outside, latch, host, copy, by_the_host, prepared, swept };
            Ok(Box::new(session))
        }
    }

    impl Session for AsIfSession {
        fn deterministic(&self) -> bool {
            true
        }

        fn tensors(&mut self) -> &mut Tensors {
            self.session.tensors()
        }

        fn prepare(&mut self) -> Result<Readiness, Fault> {
            self.prepared = true;
            self.session.prepare()
        }

        fn queues(&self) -> bool {
            self.latch.is_some()
        }

        fn by_the_host(&mut self) {
            self.by_the_host = true;
        }

        fn stage(&mut self, jobs: &[Job]) -> Result<(), Fault> {
            self.jobs = jobs.len();
            self.session.stage(jobs)
        }

        fn sweep(&mut self, bytes: u64) -> bool {
            self.swept.borrow_mut().push(bytes);
            true
        }

        fn go(&mut self) -> Result<Option<DeviceTime>, Fault> {
            self.session.go()?;
            let timed = !self.by_the_host && (self.jobs > 0 || (self.prepared && self.latch.is_some()));
            let seconds = (self.job + self.copy) * self.jobs as f64 + self.latch.unwrap_or(0.0);
            let whole = [seconds, self.host * seconds];
            Ok(timed.then_some(DeviceTime { seconds, outside: self.outside, whole }))
        }

        fn guards(&self) -> Vec<Guard> {
            Vec::new()
        }
    }

    fn contestant_of(job: f64, outside: f64) -> AsIfOnDevice {
        AsIfOnDevice {
            contestant: Doubler::named("as if"),
            job,
            outside,
            latch: None,
            host: 1.0,
            copy: 0.0,
            swept: Rc::default(),
        }
    }

    /// A pair of samples of two programs on a machine with a GPU, each with what its latch takes if it queues, where a
    /// kernel that does nothing takes 0.3 ms; and the conditions: what is known of the GPU if its clock decided.
    fn programs(latches: [Option<f64>; 2], outside: f64, copy: f64) -> Result<([f64; 2], CourseReport), Halt> {
        let [champion, challenger] = &latches.map(|latch| {
            let contestant = Doubler::named(&format!("{latch:?}"));
            AsIfOnDevice { latch, contestant, copy, ..contestant_of(1e-3, outside) }
        });
        let (settings, clock) = (RefereeSettings::default(), Seconds::default());
        let pool = Pool::new(champion, challenger, vec![task()], &settings, &clock, 3);
        let device = Watched::told(DeviceReport::default(), 1000, Reading::default);
        let blank = AsIfOnDevice { latch: Some(3e-4), copy, ..contestant_of(0.0, 0.0) };
        let mut pool = pool.unwrap().perhaps_on_device(device, Box::new(blank));
        // The challenger is not among those who enter first.
        pool.enter(Pairing::Control, 1)?;
        pool.leave()?;
        pool.enter(Pairing::Duel, 1)?;
        pool.prepare(0)?;
        let samples = [
            pool.sample(Side::Champion, Temperature::Warm)?.seconds,
            pool.sample(Side::Challenger, Temperature::Warm)?.seconds,
        ];
        pool.leave()?;
        Ok((samples, pool.report()))
    }

    #[test]
    fn programs_that_queue_are_timed_by_the_device_less_what_a_kernel_takes_that_does_nothing() {
        let ([champion, challenger], report) = programs([Some(3e-4), Some(5e-4)], 0.0, 0.0).unwrap();
        let jobs = 20.0;
        assert!((champion - 1e-3).abs() < 1e-9, "{champion}");
        assert!(
            (challenger - 1e-3 - 2e-4 / jobs).abs() < 1e-9,
            "{challenger}: who makes its own latch slow pays for it"
        );
        assert!(report.remarks.is_empty(), "{:?}", report.remarks);
        let told = report.device.unwrap();
        assert_eq!(told.blank_seconds, Some(3e-4));
        assert!(told.to_string().contains("less the 300.0 µs of one that does nothing"), "{told}");
        // So much around a run is not the device's own doing.
        let Err(Halt::Fault(Side::Champion, Fault::Tampering { what })) = programs([Some(3e-4); 2], 5e-4, 0.0) else {
            panic!("not found")
        };
        assert!(what.contains("before or after"), "{what}");
    }

    #[test]
    fn nobody_is_done_before_a_kernel_that_does_nothing_nor_makes_it_count_for_more() {
        let mut device = Watched::told(DeviceReport::default(), 1000, Reading::default);
        device.note_blanks(0, 0, &[3e-4, 3.1e-4, 2e-3]);
        // Somebody has left work behind.
        device.note_blanks(0, 0, &[9e-4; 3]);
        let mut note =
            |seconds| device.note(Side::Champion, (0, 1), DeviceTime { seconds, outside: 0.0, whole: [0.0; 2] }, 1.0);
        assert!((note(5.1e-4).unwrap() - 2e-4).abs() < 1e-9);
        assert_eq!(note(3.05e-4), Ok(RESOLUTION), "a single job is over soon");
        let Err(Fault::Tampering { what }) = note(2.9e-4) else { panic!("what is not there was done") };
        assert!(what.contains("one kernel that does nothing takes 310.0"), "{what}");
    }

    #[test]
    fn what_copies_of_inputs_take_inside_the_clock_is_taken_off_with_the_kernel_that_does_nothing() {
        let ([champion, challenger], _) = programs([Some(3e-4); 2], 0.0, 2e-4).unwrap();
        assert!((champion - 1e-3).abs() < 1e-9 && (challenger - 1e-3).abs() < 1e-9, "{champion} {challenger}");
    }

    #[test]
    fn a_devices_clock_that_is_slow_in_every_run_is_found_by_the_hosts() {
        let note = |late: [f64; 6]| {
            let mut device = Watched::told(DeviceReport::default(), 1000, Reading::default);
            for late in late {
                let time = DeviceTime { seconds: 5e-3, outside: 0.0, whole: [1e-2, 1e-2 + late] };
                device.note(Side::Champion, (0, 1), time, 1.0).unwrap();
            }
            device.settle(Side::Champion)
        };
        let Err(Fault::Tampering { what }) = note([1e-2; 6]) else { panic!("a clock of half the speed is believed") };
        assert!(what.contains("10.00 ms of what took the host 20.00 ms"), "{what}");
        // A loaded host is late, but not always.
        assert_eq!(note([5e-2, 2e-4, 5e-2, 5e-2, 5e-2, 5e-2]), Ok(()));
    }

    #[test]
    fn where_one_of_them_does_not_queue_both_are_timed_by_the_host() {
        for latches in [[None, Some(3e-4)], [Some(3e-4), None]] {
            let ([champion, challenger], report) = programs(latches, 0.0, 0.0).unwrap();
            assert!(report.device.is_none() && champion == challenger && champion > 1e-3, "{champion} {challenger}");
            let blamed = "the host's clock times both: None does not queue its runs";
            assert!(matches!(&report.remarks[..], [remark] if remark.starts_with(blamed)), "{:?}", report.remarks);
        }
    }

    /// What becomes of one pair of samples, cold or warm.
    fn sampled(
        contestant: &AsIfOnDevice,
        pairing: Pairing,
        temperature: Temperature,
    ) -> Result<([f64; 2], Pool<'_>), Halt> {
        // Leaked, so that the pool can be looked at after it was used.
        let (settings, clock): (&RefereeSettings, &Seconds) = (Box::leak(Box::default()), Box::leak(Box::default()));
        let report = DeviceReport { flops_per_second: 1e9, bytes_per_second: 1e6, ..DeviceReport::default() };
        let reading = || Reading { clock: Some(1.5e9), held_by: vec!["the power cap"], ..Reading::default() };
        let pool = Pool::new(contestant, contestant, vec![task()], settings, clock, 3).unwrap();
        let mut pool = pool.on_device(Watched::told(report, 1000, reading));
        pool.enter(pairing, 1)?;
        pool.prepare(0)?;
        let samples =
            [pool.sample(Side::Champion, temperature)?.seconds, pool.sample(Side::Challenger, temperature)?.seconds];
        pool.leave()?;
        Ok((samples, pool))
    }

    #[test]
    fn the_devices_clock_counts_and_a_planted_slowdown_is_jobs_that_it_has_to_find() {
        let of = contestant_of(1e-3, 1e-5);
        let ([champion, challenger], pool) = sampled(&of, Pairing::Plant, Temperature::Cold).unwrap();
        assert!((champion - 1e-3).abs() < 1e-12, "{champion}");
        assert!((challenger / champion - 1.05).abs() < 1e-9, "{challenger} of {champion}");
        let report = pool.report();
        let device = report.device.unwrap();
        assert_eq!((device.clock, device.longest_wait), (Some([1.5e9; 2]), 1e-5));
        assert!(device.to_string().contains("held down by the power cap"), "{device}");
        assert_eq!(report.cache_bytes, 1000);
        let (floor, work) = (pool.floors().unwrap()[0], task().work());
        assert_eq!(floor.warm, work.flops.unwrap() / 1e9);
        assert!(floor.cold > floor.warm && floor.cold <= work.constant_bytes / 1e6, "{floor:?}");
    }

    #[test]
    fn cold_runs_begin_after_a_sweep_of_the_devices_cache_and_warm_ones_do_not() {
        let of = contestant_of(1e-3, 0.0);
        sampled(&of, Pairing::Control, Temperature::Warm).map(drop).unwrap();
        assert!(of.swept.borrow().is_empty());
        sampled(&of, Pairing::Control, Temperature::Cold).map(drop).unwrap();
        assert_eq!(*of.swept.borrow(), [2200, 2200]);
    }

    #[test]
    fn work_outside_of_the_devices_clock_is_found() {
        let fault = |job, outside| match sampled(&contestant_of(job, outside), Pairing::Duel, Temperature::Warm) {
            Err(Halt::Fault(_, Fault::Tampering { what })) => what,
            other => panic!("not found: {:?}", other.map(|(samples, _)| samples).err()),
        };
        assert!(fault(1e-3, 0.1).contains("at work"), "{}", fault(1e-3, 0.1));
        let fast = fault(30.0, 0.0);
        assert!(fast.contains("by the host's"), "{fast}");
    }

    #[test]
    fn work_outside_of_the_clock_is_nobodys_fault_where_others_compute() {
        let outcome = |busy: f64| {
            let (settings, clock) = (RefereeSettings::default(), Seconds::default());
            let (champion, challenger) = (contestant_of(1e-3, 0.0), contestant_of(1e-3, 0.1));
            let report = DeviceReport { flops_per_second: 1e9, bytes_per_second: 1e6, ..DeviceReport::default() };
            let reading = move || Reading { busy: Some(busy), ..Reading::default() };
            let pool = Pool::new(&champion, &challenger, vec![task()], &settings, &clock, 3).unwrap();
            let mut pool = pool.on_device(Watched::told(report, 1000, reading));
            crate::sit(&mut pool, &settings, &crate::Terms::default(), 3).unwrap().outcome
        };
        let blamed = outcome(0.0);
        assert!(matches!(&blamed, Outcome::Faulted { side: Side::Challenger, .. }), "{blamed:?}");
        let void = outcome(0.4);
        assert!(matches!(&void, Outcome::Void { why } if why[0].contains("others compute on this GPU")), "{void:?}");
    }
}
