//! Which kernels compute a layer's two products, and how a configuration of the layer says that.

use std::sync::Arc;

use op::{Config, Own, Result, Setting, Tile};

use super::shape::LayerShape;
use crate::facts::Facts;
use crate::family::{ExpertKernel, Family};
use crate::products::{UNDER, WARPS};

/// How the products are computed: a kernel for each, with tiles of as many tokens.
#[derive(Clone, Debug)]
pub struct LayerKernels {
    /// Whose kernels they are.
    pub family: &'static dyn Family,
    /// Gate and up.
    pub gate_up: Arc<dyn ExpertKernel>,
    /// Down.
    pub down: Arc<dyn ExpertKernel>,
    /// The most tokens that take two launches, where there are kernels for that: see [`crate::phases::direct`].
    pub direct: u32,
}

/// What [`LayerKernels::direct`] is, unless somebody compares. An expert that several tokens have is read for each of
/// them: with four tokens of DeepSeek-V3 that took longer than the launches, 206 us instead of 190 on an H200.
const MOST_DIRECT: u32 = 2;

/// The columns of the second product's tiles, what of k its stages hold, how many stages there are, and what is
/// [`UNDER`] and [`WARPS`] for it. What a configuration says beside is about the first product.
pub const DOWN: Setting = Setting::new("down", 0);
/// See [`DOWN`].
pub const DOWN_DEPTH: Setting = Setting::new("down-depth", 0);
/// See [`DOWN`].
pub const DOWN_STAGES: Setting = Setting::new("down-stages", 0);
/// See [`DOWN`].
pub const DOWN_UNDER: Setting = Setting::new("down-under", 0);
/// See [`DOWN`].
pub const DOWN_WARPS: Setting = Setting::new("down-warps", 0);

impl LayerKernels {
    /// The kernels that a configuration means for a layer on a device, or why there are none.
    pub fn new(
        family: &'static dyn Family,
        shape: &LayerShape,
        config: &Config,
        facts: &Facts,
    ) -> Result<Self, String> {
        let settings = [DOWN, DOWN_DEPTH, DOWN_STAGES, DOWN_UNDER, DOWN_WARPS, UNDER, WARPS];
        config.own.check(&format!("a layer on {}", family.name()), &settings)?;
        let first = as_gate_up(config);
        let gate_up = family.expert_kernel(&shape.gate_up(), &first, facts)?;
        let down = family.expert_kernel(&shape.down(), &Self::down_config(family, shape, config, facts)?, facts)?;
        Ok(LayerKernels { family, gate_up, down, direct: MOST_DIRECT })
    }

    /// The second product's configuration, as the layer's says, or why there is none such.
    pub(crate) fn down_config(
        family: &dyn Family,
        shape: &LayerShape,
        config: &Config,
        facts: &Facts,
    ) -> Result<Config, String> {
        let wanted = [DOWN, DOWN_DEPTH, DOWN_STAGES].map(|each| each.value(&config.own));
        let [under, warps] = [DOWN_UNDER, DOWN_WARPS].map(|each| each.value(&config.own));
        let own = Own::of([(UNDER, under), (WARPS, warps)]);
        let tile = config.tile.tokens;
        let known = family.expert_configs(&shape.down(), u32::try_from(tile).unwrap_or(u32::MAX), facts);
        let suits = |each: &&Config| {
            let sized = as_down(each).iter().zip(wanted).all(|((_, has), wanted)| [0, *has].contains(&wanted));
            sized && UNDER.value(&each.own) == under
        };
        if let Some(found) = known.iter().find(suits) {
            return Ok(Config { own, ..*found });
        }
        let [columns, depth, stages] = wanted.map(|size| size as usize);
        if columns * depth * stages > 0 {
            let any = known.first().unwrap_or(config);
            return Ok(Config { tile: Tile { columns, ..any.tile }, depth, stages, own, ..*any });
        }
        let known: Vec<String> = known.iter().map(written_down).collect();
        let known = known.join("; ");
        Err(format!("there is no such kernel for the second product; with {tile} tokens there are {known}"))
    }

    /// Tokens of a tile.
    pub fn tokens(&self) -> u32 {
        self.gate_up.tile()[0]
    }
}

/// The first product's configuration, as the layer's says.
pub(crate) fn as_gate_up(config: &Config) -> Config {
    Config { own: Own::of([UNDER, WARPS].map(|each| (each, each.value(&config.own)))), ..*config }
}

/// The second product's configuration as part of the layer's.
fn as_down(config: &Config) -> [(Setting, u32); 5] {
    let sizes = [(DOWN, config.tile.columns), (DOWN_DEPTH, config.depth), (DOWN_STAGES, config.stages)];
    let [columns, depth, stages] = sizes.map(|(setting, size)| (setting, size as u32));
    let [under, warps] = [(DOWN_UNDER, UNDER), (DOWN_WARPS, WARPS)].map(|(down, each)| (down, each.value(&config.own)));
    [columns, depth, stages, under, warps]
}

/// The configuration of a layer whose products have these.
pub fn of_both(first: &Config, second: &Config) -> Config {
    let [columns, depth, stages, down_under, down_warps] = as_down(second);
    let [under, warps] = [UNDER, WARPS].map(|each| (each, each.value(&first.own)));
    Config { own: Own::of([columns, depth, stages, down_under, down_warps, under, warps]), ..*first }
}

fn written_down(config: &Config) -> String {
    as_down(config).map(|(setting, value)| format!("{}={value}", setting.key())).join(",")
}
