//! The processor's part of a layer in two places: any expert's rows, when a device asks for them.

use std::sync::{Mutex, PoisonError};

use gpu::Family;
use gpu::experts::packed::PackedExpert;
use gpu::experts::shape::LayerShape;
use op::{Gate, HostCall, HostRows, Ids, MlpWeights, Result, Routed, Target};

use super::rows::each;
use super::stack::{Rows, Stack, element};
use super::{LayerOptions, Workspace};
use crate::Engine;

/// All experts of a layer as the processor computes them.
#[derive(Debug)]
pub(super) struct ProcessorExperts {
    engine: Engine,
    stack: Stack,
    /// What calls leave for the next one.
    kept: Mutex<Workspace>,
}

impl ProcessorExperts {
    /// Packs the experts for the processor, with an engine's threads.
    pub(super) fn new(engine: &Engine, experts: &[MlpWeights<'_>], gate: Gate, options: LayerOptions) -> Result<Self> {
        let engine = engine.processor()?;
        Ok(Self { stack: Stack::new(&engine, experts, gate, options)?, engine, kept: Mutex::default() })
    }

    /// An expert as a device's kernels take it, made from what was packed for the processor.
    pub(super) fn packed_for(&self, family: &dyn Family, shape: &LayerShape, expert: u32) -> Result<PackedExpert> {
        PackedExpert::new((family, self.engine.team()), shape, &self.expert(expert as usize)?)
    }

    /// An expert's weights, read back.
    fn expert(&self, expert: usize) -> Result<MlpWeights<'static>> {
        let (up, down) = self.stack.layers();
        let [up, down] = [up, down].map(|layer| {
            let weights = cpu::unpacked(layer.packed().as_ref(), expert)?;
            match layer.input_scale(expert) {
                Some(scale) => weights.with_input_scale(scale.to_vec()),
                None => Ok(weights),
            }
        });
        MlpWeights::new(up?, down?)?.with_intermediate_scale(self.stack.scales()[expert])
    }

    /// Bytes of the host's memory that the weights take.
    pub(super) fn packed_bytes(&self) -> usize {
        self.stack.packed_bytes()
    }
}

impl HostRows for ProcessorExperts {
    fn compute(&self, HostCall { tokens, ids, weights, rows, .. }: HostCall<'_>) -> Result<()> {
        let (team, experts) = (self.engine.team(), self.stack.scales().len());
        if ids.iter().all(|&id| id as usize >= experts) {
            return Ok(());
        }
        // Its threads wake while rows are sorted.
        team.wake();
        let ones = vec![1.0; ids.len()];
        // What is beyond all experts is nobody's, as a negative number is.
        let ids: Vec<i32> = ids.iter().map(|id| id.cast_signed()).collect();
        let routed = Routed::given(Ids::I32(&ids), weights.unwrap_or(&ones), tokens.rows(), experts)?;
        let routed = if weights.is_some() { routed.on_input() } else { routed };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Workspace { sorted, outputs, .. } = &mut *kept;
        sorted.sort(&routed, 0..tokens.rows(), experts);
        let width = self.stack.widths()[2];
        outputs.resize(sorted.len() * width, 0.0);
        let values = sorted.gather(tokens, &routed, team)?;
        let of = Rows { values: &values, offsets: sorted.offsets(), element: element(tokens), adapted: None };
        self.stack.run(&self.engine, &of, Target::F32(outputs))?;
        each(rows, (width, 1), team, |entry, row| {
            if let Some(place) = sorted.place(entry) {
                row.copy_from_slice(&outputs[place * width..][..width]);
            }
        });
        Ok(())
    }
}
