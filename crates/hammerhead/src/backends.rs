//! The registry: the only place that knows every backend.

use std::sync::OnceLock;

use op::{Backend, Error, Result};

/// What all backends of the processor are called together, where one of them may be asked for.
pub const PROCESSOR: &str = "cpu";

/// Every backend, best first: the CPU's, the GPU, and where the simulator is built in, that; it is never a sensible
/// choice and stays last.
pub fn all() -> &'static [&'static dyn Backend] {
    static ALL: OnceLock<Vec<&'static dyn Backend>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = cpu::backends().to_vec();
        all.push(&gpu::Cuda::FIRST);
        #[cfg(feature = "sim")]
        all.push(&gpu::Simulated::DEFAULT);
        all
    })
}

/// Whether a backend is ever the right choice where nobody asks for it by name: the simulator is not.
pub(crate) fn is_sensible(backend: &dyn Backend) -> bool {
    #[cfg(feature = "sim")]
    if backend.base_name() == gpu::simulated::NAME {
        return false;
    }
    let _ = backend;
    true
}

/// The backend of that name, whether or not it can run here. `cuda:1` is the second GPU, and so on; `sim:sm80` is the
/// simulator with the kernels of that family; `foretold:b200` is a GPU that need not be there, and computes nothing.
pub fn by_name(name: &str) -> Result<&'static dyn Backend> {
    let listed = all().iter().copied().find(|b| b.name() == name);
    let foretold = || gpu::Foretold::by_name(name).map(|foretold| foretold as &'static dyn Backend);
    let device = || gpu::Cuda::by_name(name).map(|cuda| cuda as &'static dyn Backend).or_else(foretold);
    #[cfg(feature = "sim")]
    let device = || device().or_else(|| gpu::Simulated::by_name(name).map(|sim| sim as &'static dyn Backend));
    listed.or_else(device).ok_or_else(|| Error::UnknownName {
        what: "backend",
        name: name.to_owned(),
        known: all().iter().map(|b| b.name()).chain([PROCESSOR, "auto"]).collect::<Vec<_>>().join(", "),
    })
}

/// The backends that can run here and read the weights of this one: what a plan chooses among, for a layer that is
/// packed so, when nobody forces one of them. Other devices of its kind are not among them, since weights lie in the
/// memory of one device.
pub fn sharing(backend: &'static dyn Backend) -> Vec<&'static dyn Backend> {
    let listed = all().iter().copied().filter(|b| b.layout() == backend.layout());
    let one_device = listed.map(|b| if b.base_name() == backend.base_name() { backend } else { b });
    one_device.filter(|b| b.available().is_ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_reads_the_same_weights_shares_them() {
        let names = |name: &str| -> Vec<&str> { sharing(by_name(name).unwrap()).iter().map(|b| b.name()).collect() };
        let here = |b: &&&'static dyn Backend| b.available().is_ok();
        let cpus: Vec<&str> = cpu::backends().iter().filter(here).map(|b| b.name()).collect();
        assert_eq!(names("scalar"), cpus);
        assert!(!names("cuda:1").contains(&"cuda"), "another device's memory is not this one's");
    }
}
