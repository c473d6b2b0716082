//! Low-rank adapters in a device's memory, padded with zeros to one rank: A `[adapters, experts, matrices, rank, k]`
//! and B's columns `[adapters, experts, matrices, rank, n]`, of gate and up, and of down.

use format::{Dense, Values};
use op::{Adapters, Error, Gate, LowRank, Output, Projection, Result};

/// What ranks are rounded up to.
pub(super) const RANKS: u32 = 8;

/// The adapters of a layer on a device: how many, the rank that they are padded to, and the type of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdaptedShape {
    /// Adapters.
    pub adapters: u32,
    /// Their rank, a multiple of eight.
    pub rank: u32,
    /// The type of A and B.
    pub numbers: Output,
}

/// Where a layer's adapters are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AdapterPlaces {
    /// A of gate and up, and of down.
    pub a: [u64; 2],
    /// B's columns, of the same.
    pub b: [u64; 2],
    /// What each adapter's results are multiplied with.
    pub scalings: u64,
}

/// Adapters as the kernels take them.
#[derive(Debug)]
pub struct PackedAdapters {
    /// What they are.
    pub shape: AdaptedShape,
    /// A of gate and up, A of down, B of the same, scalings: each as bytes.
    arrays: [Vec<u8>; 5],
}

impl PackedAdapters {
    /// Pads adapters to one rank, in the type that all of them have, or f32.
    pub fn new(adapters: &Adapters, gate: Gate) -> Result<Self> {
        let (all, experts, [k, inner, out]) = (adapters.len(), adapters.experts(), adapters.widths());
        if all == 0 || all * experts > (1 << 24) {
            let expected = format!("1 to {} for {experts} experts", (1 << 24) / experts.max(1));
            return Err(Error::Mismatch { group: 0, what: "the number of adapters", found: all.to_string(), expected });
        }
        let rank = (adapters.rank() as u32).next_multiple_of(RANKS).max(RANKS);
        let numbers = numbers_of(adapters);
        let outer = [Projection::Gate, Projection::Up];
        let products: [(&[Projection], [usize; 2]); 2] =
            [(&outer[..gate.matrices()], [k, inner]), (&[Projection::Down], [inner, out])];
        let [gate_up, down] = products.map(|(projections, [k, n])| {
            let side = |width: usize, rows: fn(&LowRank) -> &Dense<'static>| {
                let mut bytes = Vec::with_capacity(all * experts * projections.len() * rank as usize * width);
                for (adapter, expert) in (0..all).flat_map(|adapter| (0..experts).map(move |expert| (adapter, expert)))
                {
                    for &projection in projections {
                        let pair = adapters.pair(adapter, expert, projection).map(|(pair, _)| rows(pair));
                        extend(&mut bytes, pair, [rank as usize, width], numbers);
                    }
                }
                bytes
            };
            [side(k, LowRank::a), side(n, LowRank::b_columns)]
        });
        let scalings: Vec<f32> = adapters.each().iter().map(|adapter| adapter.scaling).collect();
        let [(a_up, b_up), (a_down, b_down)] = [gate_up, down].map(|[a, b]| (a, b));
        let arrays = [a_up, a_down, b_up, b_down, bytemuck::cast_slice(&scalings).to_vec()];
        Ok(Self { shape: AdaptedShape { adapters: all as u32, rank, numbers }, arrays })
    }

    /// Where everything is, once `place` has put the arrays somewhere.
    pub fn placed<E>(&self, place: impl FnMut(&[u8]) -> Result<u64, E>) -> Result<AdapterPlaces, E> {
        let places = self.arrays.iter().map(|bytes| &bytes[..]).map(place).collect::<Result<Vec<u64>, E>>()?;
        let [a_up, a_down, b_up, b_down, scalings] = std::array::from_fn(|index| places[index]);
        Ok(AdapterPlaces { a: [a_up, a_down], b: [b_up, b_down], scalings })
    }
}

/// The type that all of the adapters' numbers have, or f32.
fn numbers_of(adapters: &Adapters) -> Output {
    let pairs = || adapters.each().iter().flat_map(|adapter| adapter.experts.iter().flatten().flatten());
    let all = |is: fn(&Values<'_>) -> bool| {
        pairs().all(|pair| [pair.a(), pair.b_columns()].iter().all(|matrix| is(matrix.values())))
    };
    if all(|values| matches!(values, Values::BF16(_))) {
        Output::BF16
    } else if all(|values| matches!(values, Values::F16(_))) {
        Output::F16
    } else {
        Output::F32
    }
}

/// Appends the rows of a matrix, or zeros, `[rank, width]` of a type.
fn extend(bytes: &mut Vec<u8>, matrix: Option<&Dense<'_>>, [rank, width]: [usize; 2], numbers: Output) {
    let end = bytes.len() + rank * width * numbers.bytes();
    if let Some(matrix) = matrix {
        match (matrix.values(), numbers) {
            (Values::BF16(values), Output::BF16) => bytes.extend_from_slice(bytemuck::cast_slice(values)),
            (Values::F16(values), Output::F16) => bytes.extend_from_slice(bytemuck::cast_slice(values)),
            _ => {
                let mut row = vec![0f32; width];
                for rank in 0..matrix.rows() {
                    matrix.row(rank, &mut row);
                    bytes.extend_from_slice(bytemuck::cast_slice(&row));
                }
            }
        }
    }
    bytes.resize(end, 0);
}
