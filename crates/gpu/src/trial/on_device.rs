//! Trials on a GPU: what a child process answers, and what a process tries itself where there is no child.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use op::{Error, Result};

use super::attempt::{Attempts, Machine};
use super::child::{self, Children, asked, late, serve};
use super::{Place, Trial, Tried, all, kept, left_out};
use crate::driver::{Absent, Context, DeviceMemory, EncodedLaunch, Function, Stream};
use crate::facts::Facts;
use crate::family::Family;
use crate::launch::{KernelSpec, Launch};
use crate::ways::{Feature, LeftOut};

/// How long a way may take if nobody says otherwise: with the driver's compiler, and a machine that has other things to
/// do.
pub const LIMIT: Duration = Duration::from_secs(60);
/// How long all ways together may take, as a multiple of that: on a GPU on which every kernel hangs, someone waits.
const ALL_LIMITS: u32 = 10;

/// Whoever is told that a way is tried, and what came of it.
type Told<'t> = dyn FnMut(&Trial, Option<&Result<(), String>>) + 't;

/// Has ways tried, counts them, and tells of them.
struct Counted<'t> {
    ways: usize,
    right: usize,
    told: &'t mut Told<'t>,
}

impl Counted<'_> {
    fn attempt(&mut self, trial: &Trial, attempt: impl FnOnce(&Trial) -> Result<(), String>) -> Result<(), String> {
        (self.told)(trial, None);
        let found = attempt(trial);
        (self.told)(trial, Some(&found));
        self.ways += 1;
        self.right += usize::from(found.is_ok());
        found
    }
}

/// A GPU's memory, its kernels, and a stream.
struct OnDevice {
    context: &'static Context,
    stream: Stream,
    held: Vec<DeviceMemory>,
    functions: HashMap<KernelSpec, Arc<Function>>,
}

impl OnDevice {
    fn new(context: &'static Context) -> Result<Self> {
        Ok(OnDevice { context, stream: Stream::new(context)?, held: Vec::new(), functions: HashMap::new() })
    }
}

impl Machine for OnDevice {
    fn upload(&mut self, bytes: &[u8]) -> Result<u64> {
        let memory = DeviceMemory::holding(self.context, "a trial", bytes, &self.stream)?;
        let address = memory.address();
        self.held.push(memory);
        Ok(address)
    }

    fn run(&mut self, launches: &[Launch]) -> Result<()> {
        for launch in launches {
            let function = match self.functions.get(&launch.kernel) {
                Some(function) => function.clone(),
                None => {
                    let function = Arc::new(Function::new(self.context, launch.kernel.build()?)?);
                    self.functions.insert(launch.kernel.clone(), function.clone());
                    function
                }
            };
            let encoded = EncodedLaunch::new(function, launch)?;
            // SAFETY: all memory that the launch uses is held here, as large as its problem says, until the stream was
            // waited for.
            unsafe { encoded.queue(&self.stream) }?;
        }
        self.stream.synchronize()
    }

    fn download(&mut self, address: u64, bytes: &mut [u8]) -> Result<()> {
        let held = self.held.iter().find(|memory| memory.address() == address);
        held.map_or(Ok(()), |memory| memory.get(0, bytes, &self.stream))
    }
}

/// Computes one trial in a machine's memory, which is free again afterwards.
fn attempt(machine: &mut OnDevice, attempts: &mut Attempts, trial: &Trial) -> Result<Option<String>> {
    let found = attempts.attempt(machine, trial);
    machine.held.clear();
    found
}

/// Answers for a device's ways, one per line of standard input: what a child process does until nobody asks any more.
pub(crate) fn serve_device(
    context: &'static Context,
    (family, facts): (&'static dyn Family, &Facts),
    answers: impl Write,
) -> io::Result<()> {
    let mut attempts = Attempts::new(family, facts.clone());
    let trials = all(family, facts);
    let machine = trials.and_then(|trials| Ok((trials, OnDevice::new(context)?)));
    let ready = machine.map_err(|error| error.to_string());
    serve(asked(LIMIT), answers, ready, |machine, trial| match attempt(machine, &mut attempts, trial) {
        Ok(None) => Ok(()),
        Ok(Some(wrong)) => Err(wrong),
        Err(error) => Err(error.to_string()),
    })
}

/// What becomes of a device's ways: as it is kept, or tried now. The error says that the device cannot be used, and
/// why.
pub(crate) fn of_device(context: &'static Context, kernels: (&'static dyn Family, &Facts)) -> Result<Tried, Absent> {
    let kept = kept::read(&kept::Key::of(context.info(), kernels.0.name()));
    // What was tried in some process's midst is tried again as soon as there is a process for it.
    let stands = |tried: &Tried| tried.place == Place::Apart || Children::start(context.ordinal(), LIMIT).is_err();
    match kept.filter(stands) {
        Some(tried) => usable(tried),
        None => tried_now(context, kernels, LIMIT, |_, _| ()),
    }
}

/// The same, tried now and kept: every way that is tried is told of before and after.
///
/// Where no way is right and none took long, the reason may be one that is soon mended (no compiler, no memory), and
/// finding it again is cheap: that is not kept.
pub(crate) fn tried_now(
    context: &'static Context,
    (family, facts): (&'static dyn Family, &Facts),
    limit: Duration,
    mut told: impl FnMut(&Trial, Option<&Result<(), String>>),
) -> Result<Tried, Absent> {
    let trials = all(family, facts).map_err(refused)?;
    let mut counted = Counted { ways: 0, right: 0, told: &mut told };
    let begun = Instant::now();
    let (place, left_out) = match Children::start(context.ordinal(), limit) {
        Ok(mut children) => {
            let mut hung = Vec::new();
            let attempt = |trial: &Trial| {
                let features = trial.way.features_only();
                // What hangs with one size is not waited for with another.
                if hung.contains(&features) {
                    return Err("not tried, since it did not end with another size".to_owned());
                }
                if begun.elapsed() > limit * ALL_LIMITS {
                    return Err(format!("not tried, since those before took {} seconds", begun.elapsed().as_secs()));
                }
                let found = counted.attempt(trial, |trial| children.attempt(&trial.way));
                hung.extend(found.as_ref().err().filter(|reason| **reason == late(limit)).map(|_| features));
                found
            };
            (Place::Apart, left_out(&trials, attempt))
        }
        Err(why) => (Place::Here, here(context, (family, facts), (limit, &why), &trials, &mut counted)?),
    };
    let tried = Tried { ways: counted.ways, right: counted.right, place, left_out };
    let key = kept::Key::of(context.info(), family.name());
    let took_long = tried.left_out.iter().any(|left_out| left_out.reason == late(limit));
    if tried.right > 0 || took_long {
        kept::write(&key, &tried)
    } else {
        kept::forget(&key)
    }
    usable(tried)
}

fn refused(error: Error) -> Absent {
    Absent { reason: error.to_string(), remedy: REMEDY.to_owned() }
}

const REMEDY: &str = "use a CPU backend, or another family's kernels (HAMMERHEAD_FAMILY); `hammerhead first-contact` \
    tries all again and writes a file that says more, which we would like to see";

/// A device of which every way failed is none.
fn usable(tried: Tried) -> Result<Tried, Absent> {
    if tried.right > 0 {
        return Ok(tried);
    }
    let first = tried.left_out.first().map_or_else(String::new, LeftOut::to_string);
    let reason = format!("{} ways were tried and none computed right; {first}", tried.ways);
    Err(Absent { reason, remedy: REMEDY.to_owned() })
}

/// Tries ways in this process, in a thread that is left behind if it does not come back. After an error of the driver's
/// nothing works any more, and the device is given up.
fn here(
    context: &'static Context,
    (family, facts): (&'static dyn Family, &Facts),
    (limit, why): (Duration, &str),
    trials: &[Trial],
    counted: &mut Counted<'_>,
) -> Result<Vec<LeftOut>, Absent> {
    let (ask, questions) = mpsc::channel::<Trial>();
    let (answer, answers) = mpsc::channel();
    let mut attempts = Attempts::new(family, facts.clone());
    std::thread::spawn(move || {
        let mut machine = OnDevice::new(context);
        for trial in questions {
            let found = match &mut machine {
                Ok(machine) => attempt(machine, &mut attempts, &trial).map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if answer.send(found).is_err() {
                return;
            }
        }
    });
    let mut broken = None;
    let left_out = left_out(trials, |trial| {
        if trial.way.has(Feature::Pair) || trial.way.has(Feature::Multicast) {
            return Err(format!("not tried, since a fault would end this process's use of the GPU, and {why}"));
        }
        if broken.is_some() {
            return Err("not tried".to_owned());
        }
        counted.attempt(trial, |trial| {
            let found = match ask.send(trial.clone()) {
                Ok(()) => answers.recv_timeout(limit).map_err(|_| late(limit)),
                Err(_) => Err("the thread that tries ways is gone".to_owned()),
            };
            match found {
                Ok(Ok(None)) => Ok(()),
                Ok(Ok(Some(wrong))) => Err(wrong),
                Ok(Err(error)) | Err(error) => Err(broken.insert(format!("{}: {error}", trial.way)).clone()),
            }
        })
    });
    match broken {
        None => Ok(left_out),
        Some(what) => Err(Absent {
            reason: format!("{what}. It was tried in this process, since {why}"),
            remedy: format!(
                "start anew with {} naming the command hammerhead: then it is tried elsewhere, and left out",
                child::TRIAL_VARIABLE
            ),
        }),
    }
}
