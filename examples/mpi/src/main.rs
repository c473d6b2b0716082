//! A layer of experts spread over the processes of an MPI program; README.md says how to run it.
//!
//! [`Spread`] is what a program would take over. `main` gives every process tokens of its own, and compares the results
//! with those of the whole layer in one process, bit by bit.

use std::error::Error;
use std::path::PathBuf;

use hammerhead::feed_forward::{expert_weights, router};
use hammerhead::format::checkpoint::Checkpoint;
use hammerhead::format::{Dense, Values};
use hammerhead::{Engine, ExpertWeights, Experts, Ids, LayerOptions, MlpWeights, Output, Routed};
use mpi::collective::SystemOperation;
use mpi::datatype::{Equivalence, Partition, PartitionMut};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The experts of this process, and who has the others.
struct Spread<'a> {
    world: &'a SimpleCommunicator,
    engine: &'a Engine,
    own: Option<Experts>,
    /// The first expert of every process, and how many there are.
    starts: Vec<usize>,
    width: usize,
}

impl<'a> Spread<'a> {
    /// Packs this process's share of the experts: as even as can be, the first processes one more.
    fn new(world: &'a SimpleCommunicator, engine: &'a Engine, weights: &ExpertWeights<'_>) -> Result<Self> {
        let (experts, ranks) = (weights.experts(), world.size() as usize);
        let starts: Vec<usize> =
            (0..=ranks).map(|rank| experts.len() / ranks * rank + rank.min(experts.len() % ranks)).collect();
        let own = &experts[starts[world.rank() as usize]..starts[world.rank() as usize + 1]];
        let own = match own.is_empty() {
            true => None,
            false => {
                let own = own.iter().map(MlpWeights::as_borrowed).collect();
                Some(Experts::new(engine, &ExpertWeights::new(own, weights.gate())?, options())?)
            }
        };
        Ok(Self { world, engine, own, starts, width: experts[0].widths()[2] })
    }

    fn owner(&self, expert: u32) -> usize {
        self.starts.partition_point(|&start| start <= expert as usize) - 1
    }

    /// Computes this process's tokens; all processes call it together.
    fn call(&self, tokens: &[f32], k: usize, routed: &Routed) -> Result<Vec<f32>> {
        let ranks = self.world.size() as usize;
        // Every expert of every token, in the order of processes: which token, which weight, which expert.
        let mut asked: Vec<(usize, f32, u32)> = Vec::new();
        for token in 0..routed.tokens() {
            asked.extend(routed.of(token).map(|(expert, weight)| (token, weight, expert as u32)));
        }
        let mut order: Vec<usize> = (0..asked.len()).collect();
        order.sort_by_key(|&place| self.owner(asked[place].2));

        let mut send = vec![0i32; ranks];
        order.iter().for_each(|&place| send[self.owner(asked[place].2)] += 1);
        let mut receive = vec![0i32; ranks];
        self.world.all_to_all_into(&send[..], &mut receive[..]);

        let rows: Vec<f32> = order.iter().flat_map(|&place| &tokens[asked[place].0 * k..][..k]).copied().collect();
        let ids: Vec<i32> = order.iter().map(|&place| asked[place].2 as i32).collect();
        let (rows, ids) = (self.exchange(&rows, &send, &receive, k)?, self.exchange(&ids, &send, &receive, 1)?);
        let results = self.exchange(&self.compute(&rows, k, &ids)?, &receive, &send, self.width)?;

        // In the order in which one process adds them.
        let mut place_of = vec![0; order.len()];
        order.iter().enumerate().for_each(|(row, &place)| place_of[place] = row);
        let mut out = vec![0f32; routed.tokens() * self.width];
        for (place, &(token, weight, _)) in asked.iter().enumerate() {
            let result = &results[place_of[place] * self.width..][..self.width];
            out[token * self.width..][..self.width].iter_mut().zip(result).for_each(|(sum, y)| *sum += weight * y);
        }
        Ok(out)
    }

    /// What was asked of this process: each row by its expert, unweighted.
    fn compute(&self, rows: &[f32], k: usize, ids: &[i32]) -> Result<Vec<f32>> {
        let Some(own) = &self.own else { return Ok(Vec::new()) };
        let start = self.starts[self.world.rank() as usize] as i32;
        let local: Vec<i32> = ids.iter().map(|id| id - start).collect();
        let routed = Routed::given(Ids::I32(&local), &vec![1.0; ids.len()], ids.len(), own.count())?;
        numbers(own.run(self.engine, &Dense::new(ids.len(), k, rows, 1.0)?, &routed, Output::F32)?)
    }

    /// Sends rows to every process and receives those that are for this one.
    fn exchange<T: Equivalence + Clone + Default>(
        &self,
        values: &[T],
        send: &[i32],
        receive: &[i32],
        width: usize,
    ) -> Result<Vec<T>> {
        let (sent, came) = (counted(send, width)?, counted(receive, width)?);
        let mut room = vec![T::default(); came.0.iter().sum::<i32>() as usize];
        let sent = Partition::new(values, &sent.0[..], &sent.1[..]);
        self.world.all_to_all_varcount_into(&sent, &mut PartitionMut::new(&mut room[..], &came.0[..], &came.1[..]));
        Ok(room)
    }
}

/// How many numbers so many rows have, and where they begin: 32 bits, as MPI counts.
fn counted(rows: &[i32], width: usize) -> Result<(Vec<i32>, Vec<i32>)> {
    let mut starts = vec![0i32];
    for &rows in rows {
        let end =
            i32::try_from(width).ok().and_then(|width| rows.checked_mul(width)?.checked_add(starts[starts.len() - 1]));
        starts.push(end.ok_or("more than 2³¹ numbers to exchange at once: call with fewer tokens")?);
    }
    let counts = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    starts.pop();
    Ok((counts, starts))
}

/// A token's bits may not depend on who else is computed beside it.
fn options() -> LayerOptions {
    LayerOptions { batch_invariant: true, ..LayerOptions::default() }
}

fn numbers(results: Dense<'static>) -> Result<Vec<f32>> {
    match results.values() {
        Values::F32(values) => Ok(values.to_vec()),
        _ => Err("results were asked for in f32".into()),
    }
}

fn main() -> Result<()> {
    let universe = mpi::initialize().ok_or("MPI does not start")?;
    let world = universe.world();
    let mut arguments = std::env::args().skip(1);
    let small = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../crates/python/tests/data/modelopt_qwen3_moe");
    let model = Checkpoint::open(arguments.next().map_or_else(small, PathBuf::from))?;
    let read = model.feed_forward(arguments.next().map_or(Ok(0), |layer| layer.parse())?)?;
    let router = router(&read)?.ok_or("the layer has no router, or one whose rule is not known")?;
    let weights = expert_weights(read, None)?;

    let engine = Engine::auto()?;
    let spread = Spread::new(&world, &engine, &weights)?;

    // Every process has other tokens and another number of them; the last has none.
    let (rank, k) = (world.rank() as usize, weights.experts()[0].widths()[0]);
    let count = if world.rank() + 1 == world.size() && world.size() > 1 { 0 } else { 5 + 3 * rank };
    let some = |count: usize, seed: f32| (0..count).map(|i| (i as f32 * 0.37 + seed).sin()).collect::<Vec<f32>>();
    let tokens = some(count * k, rank as f32);
    let routed = router.route(&some(count * router.experts(), 0.5 + rank as f32), count)?;
    let ours = spread.call(&tokens, k, &routed)?;

    // The whole layer, here.
    let experts = weights.experts().iter().map(MlpWeights::as_borrowed).collect();
    let whole = Experts::new(&engine, &ExpertWeights::new(experts, weights.gate())?, options())?;
    let expected = numbers(whole.run(&engine, &Dense::new(count, k, tokens, 1.0)?, &routed, Output::F32)?)?;
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
    let differ = i32::from(bits(&ours) != bits(&expected));

    let (mut different, mut computed) = (0, 0);
    world.all_reduce_into(&differ, &mut different, SystemOperation::sum());
    world.all_reduce_into(&(count as i32), &mut computed, SystemOperation::sum());
    if rank == 0 {
        let (processes, experts) = (world.size(), whole.count());
        println!(
            "{computed} tokens, {experts} experts on {processes} processes: {different} processes got other bits than one alone"
        );
    }
    if different > 0 { Err("processes and one alone disagree".into()) } else { Ok(()) }
}
