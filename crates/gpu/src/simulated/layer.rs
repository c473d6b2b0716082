//! Whole layers in the simulator: the launches that `cuda` queues for the same call, in a memory that is made anew for
//! each.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use format::{Dense, Values};
use half::{bf16, f16};

use op::{
    Activation, Adapters, Choose, Error, HostCall, LayerOperands, LayerSpec, LoadedLayer, MlpWeights, Result, Split,
    Team,
};
use sim::{Gpu, Rules, Schedule};

use super::{MULTIPROCESSORS, NAME, Simulated, simulated_launches};
use crate::away::{check_resident, experts_by_number, numbers_of, slots_for, table_of};
use crate::experts::adapters::PackedAdapters;
use crate::experts::call::{Brought, Choice, Exchange, LayerCall, LayerWeights, Placement};
use crate::experts::kernels::LayerKernels;
use crate::experts::layer::{self, LayerSite};
use crate::experts::lots::Lots;
use crate::experts::order::{Turn, turns};
use crate::experts::packed::{Numbers, PackedExpert};
use crate::experts::shape::LayerShape;
use crate::family::ExpertKernel;
use crate::host::check_operands;
use crate::launches::dense_bytes;
use crate::pack::CHUNK_DEPTH;
use crate::phases::tokens::Tokens;
use crate::products::ProductShape;

/// Steps of one block over 64 of K that a call may take.
const MOST_STEPS: usize = 4096;
/// Experts that are brought over at a time: few, so that layers as small as these have several lots.
const MOST_BROUGHT: usize = 3;

/// A layer as it is packed, with the expert of every token if there is one.
#[derive(Debug)]
pub(super) struct SimulatedLayer {
    on: Simulated,
    own: Packed,
    shared: Option<Packed>,
    /// Who says how calls are computed.
    choose: Arc<dyn Choose>,
    away: Option<Away>,
}

/// A layer's experts of which the host computes those that are not here, or from so many rows on the device all, with
/// weights that it brings over.
#[derive(Debug)]
struct Away {
    experts: u32,
    split: Split,
    store: std::result::Result<Option<Store>, String>,
}

/// All experts in the host's memory as the device takes them, and the numbers of slots and all of them.
#[derive(Debug)]
struct Store {
    lots: Lots,
    from: usize,
    packed: Packed,
}

impl Away {
    fn new((on, team): (&Simulated, &Team), spec: &LayerSpec<'_>, split: &Split, shape: &LayerShape) -> Result<Self> {
        let mlps = spec.weights.experts();
        let experts = mlps.len() as u32;
        let matrices = shape.matrix_bytes(on.family);
        let most_bytes = MOST_BROUGHT * matrices[..matrices.len() - 1].iter().sum::<usize>();
        let lots = |from| Ok((Lots::of(shape, on.family, experts, most_bytes)?, from));
        let lots = split.stream_from.map(lots).transpose();
        let store = |lots: Option<(Lots, usize)>| {
            lots.map(|(lots, from)| {
                let numbered = experts_by_number(&lots, slots_for(&split.resident), experts);
                let packed = Packed::new((on, team), spec, (mlps, &numbered), None)?;
                Ok::<_, Error>(Store { lots, from, packed })
            })
            .transpose()
        };
        let store = match lots {
            Ok(lots) => Ok(store(lots)?),
            Err(reason) => Err(reason),
        };
        Ok(Away { experts, split: split.clone(), store })
    }

    /// What a call with so many rows brings over, if it does.
    fn brings(&self, rows: usize) -> Option<&Store> {
        self.store.as_ref().ok()?.as_ref().filter(|store| rows >= store.from)
    }
}

/// Some experts as the kernels take them.
#[derive(Debug)]
struct Packed {
    shape: LayerShape,
    matrices: Vec<u8>,
    numbers: Numbers,
}

impl Packed {
    fn new(
        (on, team): (&Simulated, &Team),
        spec: &LayerSpec<'_>,
        (mlps, slots): (&[MlpWeights<'_>], &[u32]),
        gate: Option<&[f32]>,
    ) -> Result<Self> {
        let (experts, gated) = (slots.len() as u32, gate.is_some());
        let shape = LayerShape::of(mlps, spec.weights.gate(), spec.intermediate);
        let scaling = on.family.scaling(shape.scaling);
        let shape = LayerShape { experts, scaling, invariant: spec.batch_invariant, gated, ..shape };
        let shape = shape.in_precision(spec.precision);
        let (mut matrices, mut numbers) = (Vec::new(), Numbers::default());
        let mut known: HashMap<u32, PackedExpert> = HashMap::new();
        for &expert in slots {
            let packed = match known.entry(expert) {
                Entry::Occupied(packed) => packed.into_mut(),
                Entry::Vacant(place) => {
                    let packed = PackedExpert::new((on.family, team), &shape, &mlps[expert as usize])?;
                    place.insert(gate.map_or(packed.clone(), |vector| packed.with_gate(vector)))
                }
            };
            matrices.extend(packed.matrices());
            numbers.add(packed);
        }
        numbers.check(&shape)?;
        Ok(Packed { shape, matrices, numbers })
    }

    /// Puts them into the simulated memory.
    fn placed(&self, gpu: &mut Gpu) -> Result<LayerWeights> {
        let matrices = gpu.upload("matrices", &self.matrices).address;
        self.numbers.placed(matrices, |values| Ok(gpu.upload("numbers", bytemuck::cast_slice(values)).address))
    }
}

impl SimulatedLayer {
    pub(super) fn new(on: Simulated, spec: &LayerSpec<'_>, choose: Arc<dyn Choose>, team: &Team) -> Result<Self> {
        let mlps = spec.weights.experts();
        let all: Vec<u32> = (0..mlps.len() as u32).collect();
        let slots = spec.split.map_or(&all[..], |split| slots_for(&split.resident));
        check_resident(slots, all.len() as u32)?;
        let own = Packed::new((&on, team), spec, (mlps, slots), None)?;
        let of_all = spec
            .weights
            .shared()
            .map(|shared| Packed::new((&on, team), spec, (std::slice::from_ref(shared.mlp()), &[0]), shared.gate()));
        let away = spec.split.map(|split| Away::new((&on, team), spec, split, &own.shape)).transpose()?;
        Ok(SimulatedLayer { on, own, shared: of_all.transpose()?, choose, away })
    }

    /// How a call's products are computed: those of the layer, or of its shared expert.
    fn kernels(&self, shape: &LayerShape, tokens: u32) -> Result<LayerKernels> {
        self.kernels_as(shape, shape, tokens)
    }

    /// How a part of a layer is computed in a call of the whole.
    fn kernels_as(&self, whole: &LayerShape, part: &LayerShape, tokens: u32) -> Result<LayerKernels> {
        let config = self.choose.choose(&whole.problem(tokens)?)?;
        LayerKernels::new(self.on.family, part, &config, &self.on.facts())
            .map_err(|reason| self.on.illegal(&config, reason))
    }
}

impl Store {
    /// Puts the weights of all experts into memory that is not a slot's, and the numbers of slots and all in place of
    /// the slots'.
    fn placed(&self, gpu: &mut Gpu, weights: &mut LayerWeights) -> Result<Brought> {
        let first = self.lots.first() as usize * self.lots.bytes.iter().sum::<usize>();
        let matrices = gpu.upload("all experts, on the host", &self.packed.matrices[first..]).address;
        *weights = self.packed.numbers.placed(weights.matrices, |values| {
            Ok::<_, Error>(gpu.upload("numbers", bytemuck::cast_slice(values)).address)
        })?;
        Ok(Brought { lots: self.lots, matrices })
    }
}

/// Tokens as the host finds them, of the shape and type of others.
fn received(like: &Dense<'_>, bytes: &[u8]) -> Result<Dense<'static>> {
    let bytes = &bytes[..dense_bytes(like).len()];
    let halves = || bytemuck::pod_collect_to_vec::<u8, u16>(bytes).into_iter();
    let values: Values<'static> = match like.values() {
        Values::F16(_) => halves().map(f16::from_bits).collect::<Vec<_>>().into(),
        Values::BF16(_) => halves().map(bf16::from_bits).collect::<Vec<_>>().into(),
        Values::F32(_) => bytemuck::pod_collect_to_vec::<u8, f32>(bytes).into(),
    };
    Ok(Dense::new(like.rows(), like.k(), values, 1.0)?)
}

/// Launches in an order in which a device may come to them: those beside the others as early as they may begin, or as
/// late. What can never begin is left out.
fn arrivals(turns: &[Turn], late: bool) -> Vec<usize> {
    let mut lines =
        [late, !late].map(|first| turns.iter().filter(|turn| turn.beside != first).collect::<VecDeque<_>>());
    let (mut done, mut order) = (vec![false; turns.len()], Vec::new());
    loop {
        let ready = |line: &VecDeque<&Turn>| line.front().is_some_and(|turn| turn.after.is_none_or(|it| done[it]));
        let Some(turn) = lines.iter_mut().find(|line| ready(line)).and_then(VecDeque::pop_front) else { return order };
        done[turn.launch] = true;
        order.push(turn.launch);
    }
}

/// Steps of both products, where each expert has so many rows.
fn steps(shape: &LayerShape, kernels: &LayerKernels, rows: &[usize]) -> usize {
    let of = |product: ProductShape, kernel: &dyn ExpertKernel| {
        let [tokens, columns] = kernel.tile().map(|side| side as usize);
        let token_tiles: usize = rows.iter().map(|rows| rows.div_ceil(tokens)).sum();
        let parts = Tokens::of_product(&product).parts() as usize * product.gate.matrices();
        token_tiles * (product.n as usize).div_ceil(columns) * (product.k as usize).div_ceil(CHUNK_DEPTH) * parts
    };
    of(shape.gate_up(), &*kernels.gate_up) + of(shape.down(), &*kernels.down)
}

impl LoadedLayer for SimulatedLayer {
    fn bytes(&self) -> usize {
        self.own.matrices.len() + self.shared.as_ref().map_or(0, |shared| shared.matrices.len())
    }

    fn resident(&self) -> Option<Vec<u32>> {
        self.away.as_ref().map(|away| away.split.resident.clone())
    }

    fn streams_from(&self) -> std::result::Result<Option<usize>, String> {
        let Some(away) = &self.away else { return Ok(None) };
        away.store.as_ref().map(|store| store.as_ref().map(|store| store.from)).map_err(String::clone)
    }

    fn run(&self, operands: LayerOperands<'_>) -> Result<()> {
        let LayerOperands { tokens, ids, weights, top, on_input, adapted, .. } = operands;
        check_operands(&operands, self.own.shape.hidden as usize)?;
        if tokens.rows() == 0 {
            return Ok(());
        }
        let activation = Activation::of_values(tokens.values());
        let (top, output) = (top as u32, operands.target.element());
        if adapted.is_some() && self.away.is_some() {
            let (what, found) = ("the layer of the adapters", "experts in two places".to_owned());
            return Err(Error::Mismatch { group: 0, what, found, expected: "all of them on one device".to_owned() });
        }
        let all = adapted.map(|adapted| &**adapted.adapters());
        let [adapters, shared_adapters] = [all, all.and_then(Adapters::shared)]
            .map(|all| all.map(|all| PackedAdapters::new(all, self.own.shape.gate)).transpose());
        let (adapters, shared_adapters) = (adapters?, shared_adapters?);
        let [adapted_shape, shared_shape] =
            [&adapters, &shared_adapters].map(|adapters| adapters.as_ref().map(|adapters| adapters.shape));
        let shape = LayerShape { top, on_input, activation, output, adapted: adapted_shape, ..self.own.shape };
        shape.check()?;
        let shared =
            self.shared.as_ref().map(|shared| LayerShape { activation, adapted: shared_shape, ..shared.shape });
        let count = tokens.rows() as u32;
        let store = self.away.as_ref().and_then(|away| away.brings(ids.len()));
        let kernels = match (&self.away, store) {
            (Some(away), Some(Store { lots, .. })) => {
                let [whole, lot] = [away.experts, lots.each].map(|experts| LayerShape { experts, ..shape });
                self.kernels_as(&whole, &lot, count)?
            }
            _ => self.kernels(&shape, count)?,
        };
        let shared_kernels = shared.as_ref().map(|shape| self.kernels(shape, count)).transpose()?;
        let mut rows = vec![0; store.map_or(shape.experts, |store| store.lots.numbers()) as usize];
        let slots = self.away.as_ref().map(|away| match store {
            Some(store) => numbers_of(&store.lots, away.experts, &away.split.resident),
            None => table_of(away.experts, &away.split.resident),
        });
        let slot = |&id: &u32| slots.as_ref().map_or(Some(id), |slots| slots.get(id as usize).copied());
        let here = ids.iter().filter_map(slot);
        here.for_each(|slot| rows.get_mut(slot as usize).into_iter().for_each(|rows| *rows += 1));
        let mut steps_of_all = steps(&shape, &kernels, &rows);
        if let Some((shape, kernels)) = shared.as_ref().zip(shared_kernels.as_ref()) {
            steps_of_all += steps(shape, kernels, &[tokens.rows()]);
        }
        if steps_of_all > MOST_STEPS {
            let reason =
                format!("the layer takes {steps_of_all} steps of a tile over 64 of K, and {MOST_STEPS} is the most");
            let remedy = "compute fewer tokens or a smaller layer there, or use another backend".to_owned();
            return Err(Error::Unavailable { backend: NAME, reason, remedy });
        }
        let mut gpu = Gpu::new(self.on.limits()).with_rules(Rules::Letter);
        let mut own_weights = self.own.placed(&mut gpu)?;
        let brought = store.map(|store| store.placed(&mut gpu, &mut own_weights)).transpose()?;
        let mut shared_weights = self.shared.as_ref().map(|shared| shared.placed(&mut gpu)).transpose()?;
        let both = [(Some(&mut own_weights), &adapters), (shared_weights.as_mut(), &shared_adapters)];
        for (weights, adapters) in both.into_iter().filter_map(|(weights, adapters)| weights.zip(adapters.as_ref())) {
            weights.adapters = adapters.placed(|bytes| Ok::<_, Error>(gpu.upload("adapters", bytes).address))?;
        }
        let inputs: [(&str, &[u8]); 4] = [
            ("tokens", dense_bytes(tokens)),
            ("ids", bytemuck::cast_slice(ids)),
            ("weights", bytemuck::cast_slice(weights)),
            ("the tokens' adapters", bytemuck::cast_slice(adapted.map_or(&[][..], |adapted| adapted.ids()))),
        ];
        let [x, ids_at, weights_at, adapters] = inputs.map(|(name, bytes)| {
            let buffer = gpu.upload(name, bytes);
            gpu.await_predecessor(buffer);
            buffer.address
        });
        let out = gpu.alloc("results", operands.target.len() * output.bytes());
        // Full of NaN: tiles read rows behind their expert's last, which nobody may have written, and that must not
        // show.
        let bytes = layer::whole_workspace_bytes(&shape, store.map(|store| &store.lots), shared.as_ref(), count);
        let workspace = gpu.upload("workspace", &vec![0xFF; bytes]);
        let places = store.map(|store| gpu.upload("brought over", &vec![0xFF; store.lots.place_bytes()]));
        let exchange = Exchange::of(&shape, count);
        let sending = self.away.as_ref().filter(|_| store.is_none());
        let exchanged = sending.map(|_| gpu.upload("exchanged with the host", &vec![0xFF; exchange.bytes]));
        let placement = slots.map(|slots| {
            let asked = vec![0u32; slots.len()];
            let experts = slots.len() as u32;
            let table = [("slots", slots), ("asked", asked)];
            let table = table.map(|(name, words)| gpu.upload(name, bytemuck::cast_slice(&words)).address);
            Placement { experts, table, brought }
        });
        let choice = Choice::Given { ids: ids_at, wide: false, weights: weights_at };
        let call = LayerCall { tokens: count, x, choice, addend: None, adapters, placement, out: out.address };
        let of_all = shared.as_ref().zip(shared_kernels.as_ref()).zip(shared_weights.as_ref());
        let of_all = of_all.map(|((shape, kernels), weights)| (shape, kernels, weights));
        let (workspace, there) = (workspace.address, exchanged.map_or(0, |exchanged| exchanged.address));
        let places = places.map_or(0, |places| places.address);
        let site = LayerSite { workspace, brought: places, exchange: there, multiprocessors: MULTIPROCESSORS };
        let launches = layer::whole_launches((&shape, &kernels, &own_weights), of_all, &call, site);
        let encoded = simulated_launches(&launches.all)?;
        let sequence: Vec<_> = encoded.iter().map(|(kernel, launch)| (kernel, launch)).collect();
        let before_host = if sending.is_some() { sequence.len() - 1 } else { 0 };
        gpu.run_sequence(&sequence[..before_host], self.on.schedule).map_err(|fault| Error::Fault(fault))?;
        if let (Some(away), Some(exchanged), Some(part)) = (sending, exchanged, launches.host) {
            let send = simulated_launches(std::slice::from_ref(&part.send))?;
            let send: Vec<_> = send.iter().map(|(kernel, launch)| (kernel, launch)).collect();
            gpu.run_sequence(&send, self.on.schedule).map_err(|fault| Error::Fault(fault))?;
            let bytes = gpu.download(exchanged).map_err(|first| Error::Unwritten { first })?;
            let hosts: &[u32] = bytemuck::cast_slice(&bytes[exchange.ids..][..4 * ids.len()]);
            let (hosts, mut rows) = (hosts.to_vec(), vec![f32::NAN; ids.len() * shape.hidden as usize]);
            let sent: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes[exchange.weights..][..4 * ids.len()]);
            let tokens = received(tokens, &bytes[exchange.tokens..])?;
            let (top, weights) = (operands.top, on_input.then_some(&sent[..]));
            away.split.host.compute(HostCall { tokens: &tokens, ids: &hosts, weights, top, rows: &mut rows })?;
            gpu.write(exchanged, exchange.rows, bytemuck::cast_slice(&rows));
        }
        // Where weights are brought over, some launches wait for those before them to end.
        let turns = turns(sequence.len(), &launches.fetches);
        let order = arrivals(&turns, self.on.schedule == Schedule::Latest);
        let overlaps = |_: &usize, next: &usize| store.is_none() || launches.all[*next].overlapping;
        for together in order[before_host..].chunk_by(overlaps) {
            let together: Vec<_> = together.iter().map(|&launch| sequence[launch]).collect();
            gpu.run_sequence(&together, self.on.schedule).map_err(|fault| Error::Fault(fault))?;
        }
        let found = gpu.download(out).map_err(|first| Error::Unwritten { first })?;
        let mut target = operands.target;
        target.bytes_mut().copy_from_slice(found);
        Ok(())
    }
}
