//! Computes one small layer and compares a number that can be worked out by hand.

use hammerhead::format::{Dense, Matrix};
use hammerhead::{Engine, Gate, Output, Weights};

fn main() -> Result<(), hammerhead::Error> {
    // 8 rows of 16 ones (code 2) under scales of 1 (e4m3 0x38).
    let ones = || Matrix::new(8, 16, vec![0x22; 64], vec![0x38; 8], 1.0);
    let engine = Engine::auto()?;
    let layer = engine.load(&[Weights::gated(ones()?, ones()?)?], Gate::Silu)?;
    let tokens = Dense::new(1, 16, vec![0.25f32; 16], 1.0)?;
    let c = engine.run(&layer, &[tokens.into()], Output::F32)?;
    // Both sums are 4, and silu(4) · 4 is 15.7122.
    let mut row = [0f32; 8];
    c[0].row(0, &mut row);
    assert!(row.iter().all(|value| (value - 15.7122).abs() < 1e-3), "{row:?}");
    println!("{}: {row:?}", engine.backends()[0].name());
    Ok(())
}
