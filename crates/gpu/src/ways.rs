//! Ways: which features of a GPU a plan leans on.
//!
//! A GPU that no kernel was measured on may have some of them wrong, or we may: pairs of blocks, copies that reach
//! several blocks, blocks that take one tile after another. A [`Way`] is the set of such features that the kernels of a
//! configuration use. It follows from problem and configuration alone ([`crate::plan::way`]), so that whatever the
//! planner can choose has a way, and a trial can be made of every one ([`crate::trial`]).
//!
//! A way that fails takes with it whatever leans on the same and more ([`LeftOut::covers`]), and nothing else.

use std::fmt;

use op::{Activation, Config, Epilogue, Precision, Problem, Schedule, Strategy};

/// Something that the kernels of a configuration lean on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Feature {
    /// Tensor cores take codes and scales as they are.
    Codes,
    /// Tensor cores take numbers of 16 bits.
    SixteenBits,
    /// Single precision, as three parts of 16 bits.
    ThreeParts,
    /// A kernel before the products makes numbers of 16 bits of codes.
    Expanded,
    /// Tokens are columns of multiplications, and weights rows.
    Swapped,
    /// Tokens are rows of multiplications.
    Upright,
    /// Two blocks multiply together.
    Pair,
    /// One copy of tokens reaches two pairs.
    Multicast,
    /// One product, and not gate and up.
    OneMatrix,
    /// Sums of each matrix go through memory, and a last kernel joins them.
    TwoPass,
    /// Gate over all of k, then up.
    Sequential,
    /// One tile is finished, or dequantised, while another is multiplied.
    PingPong,
    /// Gate's last products come before up's.
    GateAhead,
    /// Blocks take one tile after another.
    Persistent,
    /// Two blocks share k.
    SplitK,
    /// Results are gathered in shared memory before they are written.
    Staged,
    /// A whole layer of experts: sort, gate and up, what is between, down, sum.
    Layer,
    /// What is between a layer's products is quantised to NVFP4.
    QuantisedBetween,
    /// What is between a layer's products is single precision.
    FloatBetween,
    /// Tokens and weights are rounded to e4m3.
    EightBits,
}

impl Feature {
    /// Every feature with its name, in the order in which a way names them.
    const NAMED: [(Feature, &'static str); 20] = [
        (Feature::Codes, "NVFP4 tokens"),
        (Feature::SixteenBits, "16-bit tokens"),
        (Feature::ThreeParts, "f32 tokens"),
        (Feature::Expanded, "expanded"),
        (Feature::Swapped, "swapped"),
        (Feature::Upright, "upright"),
        (Feature::Pair, "pair"),
        (Feature::Multicast, "multicast"),
        (Feature::OneMatrix, "one matrix"),
        (Feature::TwoPass, "two-pass"),
        (Feature::Sequential, "sequential"),
        (Feature::PingPong, "ping-pong"),
        (Feature::GateAhead, "gate ahead"),
        (Feature::Persistent, "persistent"),
        (Feature::SplitK, "split-k"),
        (Feature::Staged, "staged"),
        (Feature::Layer, "whole layer"),
        (Feature::QuantisedBetween, "NVFP4 between"),
        (Feature::FloatBetween, "f32 between"),
        (Feature::EightBits, "fp8 tokens"),
    ];

    const fn bit(self) -> u32 {
        1 << self as u8
    }
}

/// Features that one plan leans on, and two sizes of it that a GPU may mind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Way {
    features: u32,
    /// Columns of its multiplications, where hardware might take some and not others: a bit for each eight.
    widths: u32,
    /// More groups than kernels had room for in their arguments before CUDA 12.1.
    many_groups: bool,
}

/// A kind of tokens, and a width or, without one, many groups.
pub(crate) type SizeKey = (u32, Option<u32>);

/// Groups of a launch whose table of arguments is no longer than 4 KB.
const FEW_GROUPS: usize = 32;

impl Way {
    /// The way of a configuration whose products are computed one launch after another, as far as every family has it.
    pub(crate) fn of_products(problem: &Problem, config: &Config, takes_codes: bool) -> Self {
        let with_tokens = problem.groups().iter().filter(|shape| shape.m > 0).count();
        let tokens = match problem.precision() {
            Precision::Exact => Way::of_tokens(problem.activation(), takes_codes),
            Precision::Fp8 => Way::default().with(Feature::EightBits),
        };
        let way = Way { many_groups: with_tokens > FEW_GROUPS, ..tokens };
        let two = problem.matrices() == 2;
        let ordered = match config.strategy {
            Strategy::TwoPass if two => &[Feature::OneMatrix, Feature::TwoPass][..],
            Strategy::PingPong if two => &[Feature::PingPong],
            Strategy::Sequential if two => &[Feature::Sequential],
            Strategy::PingPong => &[Feature::OneMatrix, Feature::PingPong],
            _ if !two => &[Feature::OneMatrix],
            _ => &[],
        };
        ordered.iter().fold(way, |way, feature| way.with(*feature)).scheduled(config)
    }

    /// The way of tokens of a type to the tensor cores.
    pub(crate) fn of_tokens(activation: Activation, takes_codes: bool) -> Self {
        let way = Way::default();
        match activation {
            Activation::NvFp4 if takes_codes => way.with(Feature::Codes),
            Activation::NvFp4 => way.with(Feature::SixteenBits).with(Feature::Expanded),
            Activation::F16 | Activation::BF16 => way.with(Feature::SixteenBits),
            Activation::F32 => way.with(Feature::ThreeParts),
        }
    }

    /// The same with what a configuration says of tiles and results.
    pub(crate) fn scheduled(self, config: &Config) -> Self {
        let way = match config.schedule {
            Schedule::PerTile => self,
            Schedule::Persistent => self.with(Feature::Persistent),
            Schedule::SplitK => self.with(Feature::SplitK),
        };
        way.with_if(Feature::Staged, config.epilogue == Epilogue::Staged)
    }

    /// The same with a feature.
    pub fn with(self, feature: Feature) -> Self {
        Way { features: self.features | feature.bit(), ..self }
    }

    /// The same with a feature, if something is so.
    pub fn with_if(self, feature: Feature, so: bool) -> Self {
        if so { self.with(feature) } else { self }
    }

    /// The same with multiplications of so many columns, at most 256, a multiple of eight.
    pub fn with_width(self, columns: u32) -> Self {
        Way { widths: self.widths | 1 << (columns / 8).saturating_sub(1).min(31), ..self }
    }

    /// What two plans lean on that run one after the other.
    pub fn and(self, other: Way) -> Self {
        let (features, widths) = (self.features | other.features, self.widths | other.widths);
        Way { features, widths, many_groups: self.many_groups || other.many_groups }
    }

    /// Whether it leans on a feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.features & feature.bit() != 0
    }

    /// Its features.
    fn named(&self) -> impl Iterator<Item = &'static str> {
        Feature::NAMED.into_iter().filter(|(feature, _)| self.has(*feature)).map(|(_, name)| name)
    }

    /// Its features alone, whatever the sizes.
    pub(crate) fn features_only(&self) -> Self {
        Way { features: self.features, ..Way::default() }
    }

    /// Each of its sizes with each kind of tokens that it has: what of a size is tried apart from other features.
    pub(crate) fn size_keys(&self) -> Vec<SizeKey> {
        let tokens = [Feature::Codes, Feature::SixteenBits, Feature::ThreeParts, Feature::EightBits].into_iter();
        let tokens: Vec<u32> = tokens.filter(|tokens| self.has(*tokens)).map(Feature::bit).collect();
        let sizes = widths(self.widths).map(Some).chain(self.many_groups.then_some(None));
        sizes.flat_map(|size| tokens.iter().map(move |tokens| (*tokens, size))).collect()
    }

    /// How much it leans on: of two ways of which one is part of the other, that one has less.
    pub(crate) fn weight(&self) -> u32 {
        self.features.count_ones() + self.widths.count_ones() + u32::from(self.many_groups)
    }

    /// Whether all of it is part of another.
    fn is_part_of(&self, other: &Way) -> bool {
        self.features & !other.features == 0
            && self.widths & !other.widths == 0
            && (!self.many_groups || other.many_groups)
    }
}

/// The numbers of columns that a mask has.
fn widths(mask: u32) -> impl Iterator<Item = u32> {
    (0..32).filter(move |bit| mask >> bit & 1 == 1).map(|bit| 8 * (bit + 1))
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.named().map(str::to_owned).collect();
        parts.extend(widths(self.widths).map(|width| format!("{width} wide")));
        parts.extend(self.many_groups.then(|| "many groups".to_owned()));
        f.pad(&parts.join(", "))
    }
}

impl std::str::FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(", ").try_fold(Way::default(), |way, part| {
            let feature = Feature::NAMED.into_iter().find(|(_, name)| *name == part);
            let width = part.strip_suffix(" wide").and_then(|width| width.parse().ok());
            match (feature, width, part) {
                (Some((feature, _)), ..) => Ok(way.with(feature)),
                (None, Some(width), _) => Ok(way.with_width(width)),
                (None, None, "many groups") => Ok(Way { many_groups: true, ..way }),
                _ => Err(format!("no way has {part:?}")),
            }
        })
    }
}

/// A way that a GPU does not go, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// What failed: it, and all that leans on the same and more, is left out of plans.
    pub way: Way,
    /// What happened.
    pub reason: String,
}

impl LeftOut {
    /// Whether a plan of some way leans on it.
    pub fn covers(&self, way: &Way) -> bool {
        self.way.is_part_of(way)
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.way, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(text: &str) -> Way {
        text.parse().expect("a way")
    }

    #[test]
    fn a_way_is_read_back_from_its_words() {
        for text in
            ["NVFP4 tokens, upright, pair, persistent", "16-bit tokens, swapped, 80 wide", "f32 tokens, many groups"]
        {
            assert_eq!(way(text).to_string(), text);
        }
        assert_eq!(way("pair, NVFP4 tokens"), way("NVFP4 tokens, pair"));
        assert!("pears".parse::<Way>().is_err());
        let all = Feature::NAMED.iter().fold(Way::default(), |way, (feature, _)| way.with(*feature));
        assert_eq!((all.to_string().parse(), all.weight()), (Ok(all), 20));
    }

    #[test]
    fn what_fails_takes_with_it_what_leans_on_the_same_and_more() {
        let left_out = LeftOut { way: way("NVFP4 tokens, pair"), reason: String::new() };
        assert!(left_out.covers(&way("NVFP4 tokens, pair, persistent, 80 wide")));
        assert!(!left_out.covers(&way("NVFP4 tokens, persistent")) && !left_out.covers(&way("16-bit tokens, pair")));
        let left_out = LeftOut { way: way("NVFP4 tokens, 80 wide"), reason: String::new() };
        assert!(left_out.covers(&way("NVFP4 tokens, split-k, 80 wide, many groups")));
        assert!(!left_out.covers(&way("NVFP4 tokens, 96 wide")) && !left_out.covers(&way("NVFP4 tokens")));
    }
}
