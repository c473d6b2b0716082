//! What the lanes of a warp do together, and matrices moved between registers and shared memory.

use ptx::instr::{ReduceOp, ShuffleMode, VoteMode};
use ptx::{Addr, Builder, Global, LaunchBounds as Shape, Reg, Shared, SpecialRegister, Target, U32};
use sim::{Gpu, Invocation, Limits, Schedule};

/// Runs one warp whose lanes each compute `COUNT` words, and gives back the words of every lane.
fn compute<const COUNT: usize>(body: impl Fn(&mut Builder, Reg<U32>) -> [Reg<U32>; COUNT]) -> Vec<[u32; COUNT]> {
    let mut k = Builder::new("lanes", Target::Sm90a, Shape { threads: 32, cluster: None, min_blocks: None });
    let out = k.pointer("out");
    let lane = k.special(SpecialRegister::LaneId);
    let words = body(&mut k, lane);
    let at = k.mul_wide_add(lane, 4 * COUNT as u32, out);
    for (i, word) in words.into_iter().enumerate() {
        k.store(Addr::<Global>::of(at).plus(4 * i as i32), word);
    }
    let mut gpu = Gpu::new(Limits::h200());
    let out = gpu.alloc("out", 32 * 4 * COUNT);
    let launch = Invocation { grid: [1, 1, 1], args: vec![out.into()] };
    let kernel = k.finish().expect("the kernel is well formed");
    gpu.run(&kernel, &launch, Schedule::Latest).unwrap_or_else(|fault| panic!("{fault}"));
    let bytes = gpu.download(out).expect("every lane wrote");
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    (0..32).map(|lane| std::array::from_fn(|i| word(4 * (lane * COUNT + i)))).collect()
}

#[test]
fn shuffles_read_the_lane_they_name_and_stay_within_the_warp() {
    let found = compute(|k, lane| {
        let value = k.mul(lane, 10);
        [
            k.shuffle(ShuffleMode::Butterfly, value, 3),
            k.shuffle(ShuffleMode::Up, value, 2),
            k.shuffle(ShuffleMode::Down, value, 5),
            k.shuffle(ShuffleMode::Index, value, 7),
        ]
    });
    for (lane, words) in (0u32..).zip(found) {
        let up = lane.checked_sub(2).unwrap_or(lane);
        let down = if lane + 5 < 32 { lane + 5 } else { lane };
        assert_eq!(words, [lane ^ 3, up, down, 7].map(|from| from * 10));
    }
}

#[test]
fn votes_ballots_elections_and_reductions_agree() {
    let found = compute(|k, lane| {
        let few = k.lt(lane, 5);
        let (all, any) = (k.vote(VoteMode::All, few), k.vote(VoteMode::Any, few));
        let elected = k.elect();
        let [all, any, elected] = [all, any, elected].map(|pred| k.select(pred, 1, 0));
        [all, any, k.ballot(few), elected, k.reduce(ReduceOp::Add, lane), k.reduce(ReduceOp::Max, lane)]
    });
    // By the letter any lane may be elected; in practice it is the first.
    for (lane, words) in found.into_iter().enumerate() {
        assert_eq!(words, [0, 1, 0b11111, u32::from(lane == 0), 496, 31]);
    }
}

#[test]
fn lanes_that_parted_meet_again() {
    let found = compute(|k, lane| {
        let odd = k.and(lane, 1);
        let is_odd = k.eq(odd, 1);
        let word = k.variable(0u32);
        k.if_else(is_odd, |k| k.set(word, 7), |k| k.set(word, 9));
        let rounds = k.and(lane, 3);
        k.repeat(rounds, |k, _| {
            let more = k.add(word, 100);
            k.set(word, more);
        });
        [word, k.active_mask()]
    });
    for (lane, [word, mask]) in (0u32..).zip(found) {
        assert_eq!((word, mask), ((if lane % 2 == 1 { 7 } else { 9 }) + 100 * (lane % 4), u32::MAX));
    }
}

#[test]
fn matrices_stored_by_columns_are_loaded_by_rows() {
    let found = compute(|k, lane| {
        let tiles = k.shared("tiles", 512, 128);
        let base = k.shared_address(tiles);
        let row = Addr::<Shared>::of(k.mul_add(lane, 16, base));
        // Lane l of matrix i holds row l/4, columns 2(l%4) and the next: element = 256 i + 8 row + column.
        let first = k.shl(lane, 1);
        let pairs: [Reg<U32>; 4] = std::array::from_fn(|i| {
            let low = k.add(first, 256 * i as u32);
            let high = k.add(low, 1);
            let high = k.shl(high, 16);
            k.or(low, high)
        });
        k.store_matrix(row, &pairs, true);
        k.sync_warp();
        k.load_matrix::<4>(row, false)
    });
    for (lane, words) in (0u32..).zip(found) {
        let (row, column) = (lane / 4, 2 * (lane % 4));
        let element = |i: u32, row: u32, column: u32| 256 * i + 8 * row + column;
        let expected = [0, 1, 2, 3].map(|i| element(i, column, row) | element(i, column + 1, row) << 16);
        assert_eq!(words, expected, "lane {lane}");
    }
}

/// Every lane sends a row of its own on its way and waits for it to be read, so lanes come to the warp's barrier one by
/// one; what they sent arrives even where all blocks have ended before.
#[test]
fn lanes_that_wait_for_stores_of_their_own_meet_again_and_the_stores_arrive() {
    const BLOCKS: u32 = 3;
    let mut k = Builder::new("rows", Target::Sm90a, Shape { threads: 32, cluster: None, min_blocks: None });
    let out = k.pointer("out");
    let rows = k.shared("rows", 32 * 16, 16);
    let (lane, block) = (k.special(SpecialRegister::LaneId), k.special(SpecialRegister::CtaidX));
    let row = k.mul_add(block, 32, lane);
    let base = k.shared_address(rows);
    let from = k.mul_add(lane, 16, base);
    k.store_vector(Addr::<Shared>::of(from), [row; 4]);
    k.fence_async_shared();
    let to = k.mul_wide_add(row, 16, out);
    k.bulk_store(Addr::of(to), Addr::of(from), 16, None);
    k.bulk_commit();
    k.bulk_wait_read(0);
    k.sync_warp();
    let kernel = k.finish().expect("the kernel is well formed");
    for schedule in Schedule::several(6) {
        let mut gpu = Gpu::new(Limits::h200());
        let out = gpu.alloc("out", (BLOCKS * 32 * 16) as usize);
        let launch = Invocation { grid: [BLOCKS, 1, 1], args: vec![out.into()] };
        gpu.run(&kernel, &launch, schedule).unwrap_or_else(|fault| panic!("{fault}"));
        let bytes = gpu.download(out).expect("every row arrived");
        let words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        assert!(words.enumerate().all(|(at, word)| word as usize == at / 4), "{schedule}");
    }
}
