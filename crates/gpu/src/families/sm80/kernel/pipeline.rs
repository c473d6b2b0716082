//! The stages in shared memory, and the protocol by which they are filled and emptied.
//!
//! Every thread copies its pieces of a stage and closes a group for them, also where there are none, so that groups and
//! stages count alike. While stage s is multiplied, stage s + 1 is already read: so in the middle of s all threads wait
//! for their copies of s + 1 and meet at the block's barrier. That tells each of them two things: s + 1 is there, and
//! stage s − 1 has been read by all, so its place can be filled with stage s − 1 + `stages`, which is done piece by
//! piece between the multiplications that follow. Nothing else touches groups or that barrier while stages are in use.

use ptx::{Builder, Reg, SharedRegion, U32};

use super::WarpMultiplySpec;
use super::load::{Copies, Filling};
use op::Schedule;

/// The stages.
pub(super) struct Pipeline {
    config: WarpMultiplySpec,
    /// Stages one after another, each its units' tokens, then its units' weights. Afterwards whatever is left to be
    /// turned around.
    pub region: SharedRegion,
}

/// Where the main loop is.
pub(super) struct Turn {
    /// Address of the stage that is multiplied.
    pub here: Reg<U32>,
    /// Address of the one after it.
    pub next: Reg<U32>,
    /// Stages that have been asked for.
    asked: Reg<U32>,
    /// Address of the stage that is filled next.
    free: Reg<U32>,
}

impl Pipeline {
    pub fn declare(k: &mut Builder, config: WarpMultiplySpec) -> Self {
        Pipeline { config, region: k.shared("stages", config.region_bytes(), 128) }
    }

    /// Asks for as many stages as there are places but one, and waits for the first, which there is. Whoever may still
    /// read what lies there is waited for.
    pub fn start(&self, k: &mut Builder, copies: &Copies, stages: Reg<U32>) -> Turn {
        let first = k.shared_address(self.region);
        let turn =
            Turn { here: k.variable(first), next: k.register(), asked: k.variable(0u32), free: k.variable(first) };
        if self.config.passes() > 1 || self.config.schedule == Schedule::Persistent {
            k.sync_threads();
        }
        for stage in 0..self.config.stages - 1 {
            let filling = k.phase("copy", |k| {
                // There is a first stage.
                let exists = (stage > 0).then(|| k.lt(turn.asked, stages));
                copies.fill(k, turn.asked, turn.free, exists)
            });
            (0..copies.count()).for_each(|piece| k.phase("copy", |k| copies.copy(k, &filling, piece)));
            self.filled(k, &turn);
        }
        k.phase("wait", |k| {
            k.thread_wait(self.config.stages - 2);
            k.sync_threads();
        });
        self.follow(k, turn.here, turn.next);
        turn
    }

    /// In the middle of a stage: the next one is there, and the one before it may be filled anew.
    pub fn exchange(&self, k: &mut Builder, copies: &Copies, stages: Reg<U32>, turn: &Turn) -> Filling {
        k.phase("wait", |k| {
            k.thread_wait(self.config.stages - 3);
            k.sync_threads();
        });
        k.phase("copy", |k| {
            let more = k.lt(turn.asked, stages);
            copies.fill(k, turn.asked, turn.free, Some(more))
        })
    }

    /// All pieces of a stage have been asked for: closes their group.
    pub fn filled(&self, k: &mut Builder, turn: &Turn) {
        k.phase("copy", |k| {
            k.thread_commit();
            let asked = k.add(turn.asked, 1);
            k.set(turn.asked, asked);
            self.follow(k, turn.free, turn.free);
        });
    }

    /// Goes on to the next stage.
    pub fn advance(&self, k: &mut Builder, turn: &Turn) {
        k.set(turn.here, turn.next);
        self.follow(k, turn.here, turn.next);
    }

    /// The address of the stage after another.
    fn follow(&self, k: &mut Builder, from: Reg<U32>, to: Reg<U32>) {
        let first = k.shared_address(self.region);
        let end = k.add(first, self.config.stages * self.config.stage_bytes());
        let next = k.add(from, self.config.stage_bytes());
        let around = k.ge(next, end);
        let next = k.select(around, first, next);
        k.set(to, next);
    }
}
