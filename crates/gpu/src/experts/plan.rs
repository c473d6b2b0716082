//! Which configurations compute a whole layer on a device, and what each should cost: both products by the family's
//! model, and what is around them by its bytes. Rows are those of the problem, as chance spreads them over experts.

use op::{Activation, Choose, Config, Cost, Error, Intermediate, Precision, Problem, Result};

use super::kernels::{LayerKernels, as_gate_up, of_both};
use super::layer;
use super::shape::LayerShape;
use crate::facts::Facts;
use crate::families::choice::illegal;
use crate::family::{Family, Phase};
use crate::phases::tokens::Tokens;
use crate::products::ProductShape;
use crate::ways::{Feature, Way};

/// Seconds that each kernel around a layer's products takes, whatever its bytes.
const AROUND: f64 = 1.3e-6;
/// The share of memory's bandwidth that they get.
const AROUND_SHARE: f64 = 0.75;

/// The layer that a problem is, if it is one, or why there are no kernels for such.
pub(crate) fn layer_of(problem: &Problem) -> Option<Result<LayerShape, String>> {
    problem.whole()?;
    let Some(shape) = LayerShape::of_problem(problem) else {
        return Some(Err("a layer's results must be as wide as its tokens".to_owned()));
    };
    Some(shape.check().map(|()| shape).map_err(|error| error.to_string()))
}

fn tokens_of(problem: &Problem) -> u32 {
    problem.whole().map_or(0, |whole| u32::try_from(whole.tokens).unwrap_or(u32::MAX))
}

/// Every first product's configuration with each tile, and with it the second product's that costs least.
pub(crate) fn candidates(
    family: &'static dyn Family,
    shape: &LayerShape,
    problem: &Problem,
    facts: &Facts,
) -> Vec<Config> {
    let longest = problem.groups().iter().map(|shape| shape.m).max().unwrap_or(0);
    let tiles = family.expert_tiles(shape.precision);
    // A tile much larger than the longest expert's rows would only be cut, and one of an eighth of them costs the most.
    let sizes = tiles.iter().position(|&tile| tile as usize >= longest).map_or(tiles.len(), |last| last + 1);
    let first = tiles[..sizes - 1].iter().position(|&tile| 8 * tile as usize >= longest).unwrap_or(sizes - 1);
    tiles[first..sizes].iter().flat_map(|&tile| with_tile(family, shape, problem, tile, facts)).collect()
}

/// The same with tiles of so many tokens.
fn with_tile(
    family: &'static dyn Family,
    shape: &LayerShape,
    problem: &Problem,
    tile: u32,
    facts: &Facts,
) -> Vec<Config> {
    let down = shape.down();
    let price = |config: Config| {
        let cost = product_cost(family, &down, problem, &config, facts).ok()?;
        Some((cost.seconds, config))
    };
    let configs = family.expert_configs(&down, tile, facts).into_iter();
    let mut seconds: Vec<(f64, Config)> = configs.filter_map(price).collect();
    seconds.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let whole = |first: Config| {
        let goes = |second: &&Config| facts.goes(&way_of(family, shape, [&first, second])).is_ok();
        let second = seconds.iter().map(|(_, config)| config).find(goes)?;
        Some(of_both(&first, second))
    };
    family.expert_configs(&shape.gate_up(), tile, facts).into_iter().filter_map(whole).collect()
}

/// What a layer's configuration leans on, or why there is none such.
pub(crate) fn way(family: &dyn Family, shape: &LayerShape, config: &Config, facts: &Facts) -> Result<Way, String> {
    let second = LayerKernels::down_config(family, shape, config, facts)?;
    Ok(way_of(family, shape, [&as_gate_up(config), &second]))
}

/// What a layer leans on whose products have these configurations.
fn way_of(family: &dyn Family, shape: &LayerShape, [first, second]: [&Config; 2]) -> Way {
    let way = family.expert_way(&shape.gate_up(), first).and(family.expert_way(&shape.down(), second));
    let way = way.with(Feature::Layer);
    match shape.intermediate {
        Intermediate::NvFp4 => way.with(Feature::QuantisedBetween),
        _ => way.with_if(Feature::FloatBetween, Tokens::of_product(&shape.down()) == Tokens::of(Activation::F32)),
    }
}

/// What one product of a layer should cost, where its experts have a problem's rows.
fn product_cost(
    family: &dyn Family,
    product: &ProductShape,
    problem: &Problem,
    config: &Config,
    facts: &Facts,
) -> Result<Cost, String> {
    let rows = problem.groups().iter().map(|shape| shape.m);
    let problem = product.problem(rows).map_err(|error| error.to_string())?;
    family.expert_cost(product, &problem, config, facts)
}

/// What a configuration should cost, or why it is not legal.
pub(crate) fn cost(
    family: &'static dyn Family,
    shape: &LayerShape,
    problem: &Problem,
    config: &Config,
    facts: &Facts,
) -> Result<Cost, String> {
    let phases = phases(family, shape, problem, config, facts)?;
    let longest = phases.iter().max_by(|one, other| one.seconds.total_cmp(&other.seconds));
    Ok(Cost {
        seconds: phases.iter().map(|phase| phase.seconds).sum(),
        bound_by: longest.map_or("", |phase| phase.bound_by),
        copying: 0.0,
        scratch_bytes: layer::workspace_bytes(shape, None, tokens_of(problem)),
    })
}

/// What happens one after the other, and what bounds each; or why the configuration is not legal.
pub(crate) fn phases(
    family: &'static dyn Family,
    shape: &LayerShape,
    problem: &Problem,
    config: &Config,
    facts: &Facts,
) -> Result<Vec<Phase>, String> {
    let second = LayerKernels::down_config(family, shape, config, facts)?;
    let first = as_gate_up(config);
    family.expert_kernel(&shape.gate_up(), &first, facts)?;
    let product = |what, product: &ProductShape, config: &Config| {
        let Cost { seconds, bound_by, .. } = product_cost(family, product, problem, config, facts)?;
        Ok::<Phase, String>(Phase { what, seconds, bound_by })
    };
    let around = layer::around(shape, tokens_of(problem)).into_iter().map(|(what, bytes)| Phase {
        what,
        seconds: AROUND + bytes / (AROUND_SHARE * facts.bandwidth),
        bound_by: "device memory",
    });
    let mut phases: Vec<Phase> = around.collect();
    let before = if shape.precision == Precision::Fp8 { 2 } else { 1 };
    phases.insert(before, product("gate and up", &shape.gate_up(), &first)?);
    let last = phases.len() - 1;
    phases.insert(last, product("down", &shape.down(), &second)?);
    Ok(phases)
}

/// The kernels that should be the fastest for calls of a layer with so many tokens.
pub fn kernels(family: &'static dyn Family, shape: &LayerShape, tokens: u32, facts: &Facts) -> Result<LayerKernels> {
    fastest(family, shape, tokens, family.expert_tiles(shape.precision), facts)
}

/// Those with tiles of so many tokens, where every expert has as many rows.
pub fn kernels_with_tile(
    family: &'static dyn Family,
    shape: &LayerShape,
    tile: u32,
    facts: &Facts,
) -> Result<LayerKernels> {
    fastest(family, shape, (tile * shape.experts).div_ceil(shape.top), &[tile], facts)
}

/// The kernels that should be the fastest with tiles of any of these numbers of tokens.
fn fastest(
    family: &'static dyn Family,
    shape: &LayerShape,
    tokens: u32,
    tiles: &[u32],
    facts: &Facts,
) -> Result<LayerKernels> {
    let problem = shape.problem(tokens)?;
    let configs = tiles.iter().flat_map(|&tile| with_tile(family, shape, &problem, tile, facts)).collect();
    let price = |config: &Config| cost(family, shape, &problem, config, facts);
    let config = cheapest_of(configs, &problem, family.name(), price)?;
    LayerKernels::new(family, shape, &config, facts).map_err(illegal(&config))
}

/// The one of these that should be the fastest.
pub(crate) fn cheapest_of(
    configs: Vec<Config>,
    problem: &Problem,
    family: &str,
    cost: impl Fn(&Config) -> Result<Cost, String>,
) -> Result<Config> {
    let priced = configs.into_iter().filter_map(|config| Some((cost(&config).ok()?.seconds, config)));
    let best = priced.min_by(|(one, _), (other, _)| one.total_cmp(other));
    best.map(|(_, config)| config).ok_or_else(|| Error::UnknownName {
        what: "configuration for this problem",
        name: problem.to_string(),
        known: family.to_owned(),
    })
}

/// Takes what should be the fastest for a layer on a device.
#[derive(Clone, Debug)]
pub struct Cheapest {
    /// Whose kernels.
    pub family: &'static dyn Family,
    /// The device.
    pub facts: Facts,
}

impl Choose for Cheapest {
    fn choose(&self, problem: &Problem) -> Result<Config> {
        let shape = layer_of(problem).transpose();
        let refused = |reason| Error::Mismatch {
            group: 0,
            what: "the problem",
            found: problem.to_string(),
            expected: format!("a layer that there are kernels for ({reason})"),
        };
        let shape = shape.map_err(refused)?.ok_or_else(|| refused("it is none".to_owned()))?;
        let configs = candidates(self.family, &shape, problem, &self.facts);
        cheapest_of(configs, problem, self.family.name(), |config| {
            cost(self.family, &shape, problem, config, &self.facts)
        })
    }
}
