//! GPU architectures, a folder each, and which of them a GPU is given. Adding one is adding its folder and its line in
//! [`ALL`].
//!
//! What they have in common stands beside them: what a configuration means for any kernels (`choice`), how a problem is
//! cut into launches (`cut`), the experts of a layer as the groups of a launch (`experts`), the sizes beyond which a
//! launch would count wrongly (`limits`), and what a launch should take from first principles (`streams`).

pub(crate) mod choice;
mod cut;
pub mod experts;
mod limits;
pub mod sm100;
pub mod sm120;
pub mod sm80;
pub mod sm90;
mod streams;

use std::fmt;

use op::Problem;

use crate::driver::Absent;
use crate::family::Family;

/// Every family, the most capable first.
pub const ALL: [&dyn Family; 4] = [&sm100::Sm100, &sm120::Sm120, &sm90::Sm90, &sm80::Sm80];

/// The environment variable that names the family to be used.
pub const FAMILY_VARIABLE: &str = "HAMMERHEAD_FAMILY";

/// The oldest GPUs that there are kernels for.
pub const OLDEST: (i32, i32) = (8, 0);

/// The oldest driver that reads any of them, by the CUDA version that it supports.
pub const OLDEST_DRIVER: i32 = 12010;

/// Compute capabilities on which the kernels of a family have been measured, or at least checked against the reference.
const MEASURED: [(&str, (i32, i32)); 2] = [("sm90", (9, 0)), ("sm80", (9, 0))];

/// The kernels that a GPU is given, and why.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The kernels.
    pub family: &'static dyn Family,
    /// Who chose them.
    pub reason: Reason,
    /// Whether they have been seen to compute right on GPUs of this kind. If not, that is tried before the first use.
    pub measured: bool,
}

/// Why a family was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is named by [`FAMILY_VARIABLE`].
    Asked,
    /// It is made for the GPU's architecture.
    Made,
    /// No other family is for the GPU, and its kernels run on every later one.
    Later,
    /// The driver does not read those that are made for the GPU.
    OldDriver,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.reason {
            Reason::Asked => "as HAMMERHEAD_FAMILY asks",
            Reason::Made => "made for this architecture",
            Reason::Later => "which run on every GPU since Ampere",
            Reason::OldDriver => {
                "since the driver is too old for those that are made for this architecture (575 or newer reads \
                 Blackwell's, 580 Hopper's)"
            }
        };
        let measured =
            if self.measured { "" } else { "; not measured on such a GPU, so tried against the reference first" };
        write!(f, "kernels of family {}, {why}{measured}", self.family.name())
    }
}

/// The family that computes a problem on GPUs of another: that one, or `sm80`, whose kernels run on all.
pub(crate) fn computing(family: &'static dyn Family, problem: &Problem) -> &'static dyn Family {
    if family.computes(problem) { family } else { &sm80::Sm80 }
}

/// The family for GPUs of a compute capability with a driver: the one that is asked for, if one is, else the most
/// capable that both support. Or why there is none, and what to do.
pub fn choose(capability: (i32, i32), driver: i32, asked: Option<&str>) -> Result<Choice, Absent> {
    let (family, reason) = match asked.filter(|name| !name.is_empty()) {
        Some(name) => (named(capability, driver, name)?, Reason::Asked),
        None => best(capability, driver)?,
    };
    Ok(Choice { family, reason, measured: MEASURED.contains(&(family.name(), capability)) })
}

fn named((major, minor): (i32, i32), driver: i32, name: &str) -> Result<&'static dyn Family, Absent> {
    let refused = |reason: String| Absent { reason, remedy: format!("leave {FAMILY_VARIABLE} out") };
    let names = ALL.map(Family::name).join(", ");
    let family = ALL.into_iter().find(|family| family.name() == name);
    let family = family.ok_or_else(|| refused(format!("{FAMILY_VARIABLE} names {name:?}, and there are {names}")))?;
    if !family.supports((major, minor)) {
        let reason = format!("{FAMILY_VARIABLE} asks for {name}, which is not for compute capability {major}.{minor}");
        return Err(refused(reason));
    }
    if driver < family.oldest_driver() {
        let Absent { reason, remedy } = too_old(driver, family.oldest_driver());
        return Err(Absent { reason: format!("{FAMILY_VARIABLE} asks for {name}; {reason}"), remedy });
    }
    Ok(family)
}

fn best(capability: (i32, i32), driver: i32) -> Result<(&'static dyn Family, Reason), Absent> {
    let (major, minor) = capability;
    let mut supporting = ALL.into_iter().filter(|family| family.supports(capability)).peekable();
    let Some(made) = supporting.peek().map(|family| family.name()) else {
        let (oldest, minor_oldest) = OLDEST;
        return Err(Absent {
            reason: format!(
                "compute capability {major}.{minor}, and the kernels need {oldest}.{minor_oldest} at least"
            ),
            remedy: "use a GPU since Ampere (A100, RTX 30, or later), or a CPU backend".to_owned(),
        });
    };
    let family = supporting.find(|family| driver >= family.oldest_driver());
    let family = family.ok_or_else(|| too_old(driver, OLDEST_DRIVER))?;
    let reason = match family.name() {
        name if name != made => Reason::OldDriver,
        sm80::NAME if major > OLDEST.0 => Reason::Later,
        _ => Reason::Made,
    };
    Ok((family, reason))
}

/// A driver that does not read the kernels, in words.
fn too_old(driver: i32, needed: i32) -> Absent {
    let version = |cuda: i32| format!("{}.{}", cuda / 1000, cuda % 1000 / 10);
    // The first driver of each CUDA version that kernels are printed for.
    let first = [(12010, 530), (12090, 575), (13000, 580)];
    let first = first.into_iter().find(|(cuda, _)| *cuda >= needed).map_or(580, |(_, driver)| driver);
    Absent {
        reason: format!("the driver supports CUDA {} and the kernels need {}", version(driver), version(needed)),
        remedy: format!("update NVIDIA's driver to {first} or newer, or use a CPU backend"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: i32 = 13000;

    fn chosen(capability: (i32, i32), asked: Option<&str>) -> (&'static str, Reason, bool) {
        let Choice { family, reason, measured } = choose(capability, DRIVER, asked).unwrap();
        (family.name(), reason, measured)
    }

    fn refused(capability: (i32, i32), driver: i32, asked: Option<&str>) -> String {
        let Absent { reason, remedy } = choose(capability, driver, asked).unwrap_err();
        format!("{reason}; {remedy}")
    }

    #[test]
    fn every_gpu_since_ampere_gets_kernels_and_those_made_for_it_if_there_are_some() {
        assert_eq!(chosen((9, 0), None), ("sm90", Reason::Made, true));
        for capability in [(8, 0), (8, 6), (8, 9)] {
            assert_eq!(chosen(capability, None), ("sm80", Reason::Made, false));
        }
        for capability in [(12, 0), (12, 1)] {
            assert_eq!(chosen(capability, None), ("sm120", Reason::Made, false));
        }
        for capability in [(10, 0), (10, 3)] {
            assert_eq!(chosen(capability, None), ("sm100", Reason::Made, false));
        }
        for capability in [(10, 1), (13, 7)] {
            assert_eq!(chosen(capability, None), ("sm80", Reason::Later, false));
        }
        assert_eq!(chosen((9, 0), Some("")), ("sm90", Reason::Made, true));
    }

    #[test]
    fn a_family_can_be_asked_for_where_it_runs() {
        assert_eq!(chosen((9, 0), Some("sm80")), ("sm80", Reason::Asked, true));
        let unsuited = refused((8, 9), DRIVER, Some("sm90"));
        assert!(unsuited.contains("sm90") && unsuited.contains("8.9") && unsuited.contains("leave"), "{unsuited}");
        let unknown = refused((9, 0), DRIVER, Some("sm70"));
        assert!(unknown.contains("sm70") && unknown.contains("sm100, sm120, sm90, sm80"), "{unknown}");
    }

    #[test]
    fn a_gpu_that_is_too_old_gets_a_sentence() {
        let refused = refused((7, 5), DRIVER, None);
        assert!(refused.contains("7.5") && refused.contains("8.0") && refused.contains("since Ampere"), "{refused}");
    }

    #[test]
    fn a_driver_that_is_too_old_for_the_best_kernels_gets_others_and_at_last_a_sentence() {
        let Choice { family, reason, measured } = choose((9, 0), 12040, None).unwrap();
        assert_eq!((family.name(), reason, measured), ("sm80", Reason::OldDriver, true));
        for (capability, asked) in [((9, 0), None), ((8, 9), None), ((8, 9), Some("sm80"))] {
            let refused = refused(capability, 11080, asked);
            assert!(refused.contains("CUDA 11.8"), "{refused}");
            assert!(refused.contains("12.1; update NVIDIA's driver to 530"), "{refused}");
        }
        for (capability, asked, sentence) in [
            ((9, 0), "sm90", "CUDA 12.4 and the kernels need 13.0; update NVIDIA's driver to 580"),
            ((10, 0), "sm100", "CUDA 12.4 and the kernels need 12.9; update NVIDIA's driver to 575"),
        ] {
            let refused = refused(capability, 12040, Some(asked));
            assert!(refused.contains(sentence), "{refused}");
        }
    }

    #[test]
    fn a_choice_says_what_was_chosen_and_whether_it_was_ever_tried() {
        let text = choose((13, 7), DRIVER, None).unwrap().to_string();
        assert!(text.contains("sm80") && text.contains("since Ampere") && text.contains("not measured"), "{text}");
        assert!(!choose((9, 0), DRIVER, None).unwrap().to_string().contains("not measured"));
    }
}
