//! The backends `foretold:b200` and its like: GPUs that are named and need not be there. Each has the configurations of
//! its family's kernels and says what they should cost by the family's model, and computes nothing: whatever is weighed
//! on one is a prediction.

use std::sync::{Arc, LazyLock};

use op::{
    Activation, Arithmetic, Backend, Config, Cost, Error, Operands, PackedWeights, Problem, Result, Setting, Team,
    Weights,
};

use crate::facts::Facts;
use crate::families;
use crate::family::Family;
use crate::plan;

/// What the backends' names begin with.
pub const PREFIX: &str = "foretold:";

/// A device that is not there, and the kernels that it would be given.
#[derive(Debug)]
pub struct Foretold {
    name: &'static str,
    facts: Facts,
    family: &'static dyn Family,
}

/// One per device that is known by name and that some family is for.
static ALL: LazyLock<Vec<Foretold>> = LazyLock::new(|| {
    let foretold = |name: &str| {
        let facts = Facts::named(name).ok()?;
        let family = families::choose(facts.capability, i32::MAX, None).ok()?.family;
        Some(Foretold { name: format!("{PREFIX}{name}").leak(), facts, family })
    };
    Facts::names().filter_map(foretold).collect()
});

impl Foretold {
    /// The names of all of these backends.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ALL.iter().map(|foretold| foretold.name)
    }

    /// A device by its backend's name, for example `foretold:b200`.
    pub fn by_name(name: &str) -> Option<&'static Foretold> {
        ALL.iter().find(|foretold| foretold.name == name)
    }

    /// The device.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whose kernels it would be given.
    pub fn family(&self) -> &'static dyn Family {
        self.family
    }

    fn illegal(&self, config: &Config) -> impl FnOnce(String) -> Error + use<> {
        let (backend, config) = (self.name, Box::new(*config));
        move |reason| Error::Illegal { backend, config, reason }
    }

    fn absent(&self) -> Error {
        Error::Unavailable {
            backend: self.name,
            reason: format!("a {} is foretold here, and computes nothing", self.facts.name),
            remedy: "compute with 'cuda' where there is one, or look at the kernels in the simulator ('sim:sm_100a')"
                .into(),
        }
    }
}

// SAFETY: it runs nothing.
unsafe impl Backend for Foretold {
    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        "what a GPU that is not there should take, by the model of its kernels; computes nothing"
    }

    fn layout(&self) -> &'static str {
        self.name
    }

    fn device_model(&self) -> &str {
        &self.facts.name
    }

    fn kernels(&self) -> &'static str {
        crate::KERNELS
    }

    fn available(&self) -> Result<()> {
        Ok(())
    }

    fn arithmetic(&self, activation: Activation) -> Arithmetic {
        self.family.arithmetic(activation)
    }

    fn settings(&self) -> &'static [Setting] {
        self.family.settings()
    }

    fn candidates(&self, problem: &Problem, _threads: usize) -> Vec<Config> {
        plan::candidates(self.family, problem, &self.facts)
    }

    fn legal(&self, problem: &Problem, config: &Config, _threads: usize) -> Result<()> {
        plan::legal(self.family, problem, config, &self.facts).map_err(self.illegal(config))
    }

    fn check(&self, problem: &Problem, config: &Config, _threads: usize) -> Result<Cost> {
        plan::cost(self.family, problem, config, &self.facts).map_err(self.illegal(config))
    }

    fn prepack(&self, _: &[Weights<'_>], _: &Team) -> Result<Arc<dyn PackedWeights>> {
        Err(self.absent())
    }

    unsafe fn run(&self, _: &Problem, _: &Config, _: Operands<'_, '_, '_>, _: &Team) -> Result<()> {
        Err(self.absent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use op::{Gate, Output, Shape};

    #[test]
    fn a_device_that_is_not_there_has_prices_and_computes_nothing() {
        let b200 = Foretold::by_name("foretold:b200").expect("a device by name");
        assert!(Foretold::by_name("foretold:v100").is_none());
        let problem = Problem::new(vec![Shape::new(256, 4096, 7168)], Gate::Silu, Activation::NvFp4, Output::F16);
        let problem = problem.expect("a problem");
        let config = b200.candidates(&problem, 1)[0];
        assert!(b200.check(&problem, &config, 1).expect("a price").seconds > 1e-6);
        let refused = b200.absent().to_string();
        assert!(refused.contains("foretold:b200") && refused.contains("computes nothing"), "{refused}");
    }
}
