//! The gate's arithmetic as instructions, in the simulator, over sums that no matrix product makes on demand: zeros of
//! both signs, subnormal numbers, the ends of f32's range, infinities and NaN, in the gate value and in the up value.

use hammerhead::Gate;

use gpu::phases::gates::{self, Function};
use gpu::phases::table::{self, Record};
use gpu::{KernelSpec, join};
use sim::{Arg, Gpu, Limits, Schedule};

const MAGNITUDES: [f32; 11] = [0.0, 1e-41, 1e-30, 0.7, 7.5, 90.0, 1.6e13, 3e30, 2.5e38, f32::INFINITY, f32::NAN];
/// What the gate may be off by, in units of 2⁻²⁴ and as an absolute number: the sigmoid's end at −87, before the up
/// value.
const RELATIVE: f64 = 600.0;
const ABSOLUTE: f64 = 2.1e-36;
/// What SiLU states of itself in the same units: eight roundings, and one of the product with the up value.
const SILU: f64 = 9.0;

/// What the kernel makes of pairs of sums.
fn joined(gate: Gate, pairs: &[[f32; 2]]) -> Vec<f32> {
    let config = join::JoinSpec {
        function: Function::of(gate),
        output: hammerhead::Output::F32,
        groups: 1,
        parts: 1,
        target: ptx::Target::Sm90a,
        biased: false,
    };
    let mut gpu = Gpu::new(Limits::h200());
    let planes = [0, 1].map(|side| {
        let bytes: Vec<u8> = pairs.iter().flat_map(|pair| pair[side].to_le_bytes()).collect();
        gpu.upload("sums", &bytes)
    });
    let out = gpu.alloc("result", 4 * pairs.len());
    [planes[0], planes[1], out].iter().for_each(|buffer| gpu.await_predecessor(*buffer));
    let (m, n) = (1, pairs.len() as u32);
    let addresses = [planes[0].address, planes[1].address, out.address];
    let record =
        Record { first_tile: 0, token_tiles: 1, tile_tokens: m, m, n, k: 0, addresses, factors: [[1.0; 2]; 2] };
    let blocks = config.blocks(pairs.len());
    let args = vec![Arg::Words(table::words(&[record], 1)), Arg::U32(blocks), Arg::F32(gates::clamp(gate))];
    let launch = sim::Invocation { grid: [blocks, 1, 1], args };
    gpu.run(&KernelSpec::from(config).build().unwrap(), &launch, Schedule::Earliest).unwrap();
    let bytes = gpu.download(out).unwrap();
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

#[test]
fn gates_are_right_at_the_ends_of_the_range_and_pass_nan_on() {
    let values: Vec<f32> = MAGNITUDES.into_iter().flat_map(|x| [x, -x]).collect();
    let pairs: Vec<[f32; 2]> = values.iter().flat_map(|&g| values.iter().map(move |&u| [g, u])).collect();
    for gate in Gate::JOINING.into_iter().chain([Gate::GptOss { alpha: 0.5, beta: -0.25, limit: 20.0 }]) {
        for ([g, u], found) in pairs.iter().zip(joined(gate, &pairs)) {
            let exact = gate.apply(f64::from(*g), f64::from(*u));
            let what = format!("{gate} of {g} and {u} is {found}, should be {exact}");
            let spoilt = !g.is_finite() || !u.is_finite();
            if spoilt && !exact.is_finite() {
                assert!(!found.is_finite(), "{what}");
            } else if exact.abs() > f64::from(f32::MAX) {
                assert_eq!(f64::from(found), f64::INFINITY.copysign(exact), "{what}");
            } else {
                let up = f64::from(*u).abs().min(1e300) + 1.0;
                let allowed = RELATIVE * 2f64.powi(-24) * exact.abs() + ABSOLUTE * up + 2f64.powi(-149);
                assert!((f64::from(found) - exact).abs() <= allowed, "{what}");
            }
        }
    }
}

#[test]
fn silu_is_as_exact_as_it_states_wherever_its_exponential_is_a_number() {
    // Off the grid of what is exact in few bits. A rounding of the exponential's argument moves the result by as many
    // as the argument is.
    let values = (-8700..=8800).map(|step: i16| f32::from(step) * 0.009_973);
    let pairs: Vec<[f32; 2]> = values.map(|value| [value, 1.25]).collect();
    for gate in [Gate::Silu, Gate::SiluLimited { limit: 10.0 }] {
        for ([g, u], found) in pairs.iter().zip(joined(gate, &pairs)) {
            let exact = gate.apply(f64::from(*g), f64::from(*u));
            let allowed = SILU * 2f64.powi(-24) * exact.abs() + ABSOLUTE;
            assert!((f64::from(found) - exact).abs() <= allowed, "{gate} of {g} and {u} is {found}, should be {exact}");
        }
    }
}
