//! The kernels that expand tokens, in the simulator: to the bit what the format says, whatever the numbers, the
//! lengths, the places in memory and the schedule, and never before the preceding kernel has ended.

use format::Matrix;
use gpu::expand::{Float, PARTS, TokenForm};
use gpu::expansion::{self, Segment};
use gpu::{Argument, Launch};
use half::{bf16, f16};
use ptx::Kernel;
use sim::mutate::mutants;
use sim::{Arg, Buffer, Gpu, Limits, Rules, Schedule, explore, explore_mutants};

fn simulated(launch: &Launch) -> sim::Invocation {
    let args = launch.arguments.iter().map(|argument| match argument {
        Argument::Pointer(address) => Arg::Pointer(*address),
        Argument::U32(value) => Arg::U32(*value),
        Argument::U64(value) => Arg::U64(*value),
        Argument::F32(value) => Arg::F32(*value),
        Argument::Map(map) => Arg::Map(map.clone()),
        Argument::Maps(maps) => Arg::Maps(maps.clone()),
        Argument::Words(words) => Arg::Words(words.clone()),
    });
    sim::Invocation { grid: launch.grid, args: args.collect() }
}

/// Groups of so many blocks, each in memory of its own: every finite scale in turn, with codes that differ.
struct Codes {
    gpu: Gpu,
    segments: Vec<Segment>,
    expected: Vec<(Buffer, Vec<u16>)>,
}

impl Codes {
    fn new(lengths: &[usize]) -> Self {
        let (mut gpu, mut segments, mut expected) =
            (Gpu::new(Limits::h200()).with_rules(Rules::Letter), Vec::new(), Vec::new());
        let finite: Vec<u8> = (0..=255u8).filter(|scale| scale & 0x7F != 0x7F).collect();
        for (group, &blocks) in lengths.iter().enumerate() {
            let scales: Vec<u8> = finite.iter().copied().cycle().skip(31 * group).take(blocks).collect();
            let codes: Vec<u8> = (0..blocks * 8).map(|i| (i * 37 + i / 8 + group) as u8).collect();
            let matrix = Matrix::new(blocks, 16, codes.clone(), scales.clone(), 1.0).unwrap();
            let mut row = [0f32; 16];
            let mut halves = Vec::new();
            for index in 0..blocks {
                matrix.unscaled_row(index, &mut row);
                halves.extend(row.iter().map(|&x| f16::from_f32(x).to_bits()));
            }
            let (codes, scales) = (gpu.upload("codes", &codes), gpu.upload("scales", &scales));
            let target = gpu.alloc("halves", blocks * 32);
            [codes, scales, target].iter().for_each(|buffer| gpu.await_predecessor(*buffer));
            segments.push(Segment {
                source: codes.address,
                scales: scales.address,
                target: target.address,
                plane: 0,
                factor: 1.0,
                k: 16,
                elements: blocks * 16,
            });
            expected.push((target, halves));
        }
        Codes { gpu, segments, expected }
    }

    fn verify(&self, gpu: &Gpu) -> Result<(), String> {
        for (group, (buffer, expected)) in self.expected.iter().enumerate() {
            let bytes = gpu.download(*buffer).map_err(|first| format!("group {group}: byte {first} not written"))?;
            let found = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
            if let Some(at) = found.zip(expected).position(|(found, expected)| found != *expected) {
                return Err(format!("group {group}: element {at} differs"));
            }
        }
        Ok(())
    }
}

#[test]
fn codes_with_every_finite_scale_become_halves_to_the_bit() {
    let codes = Codes::new(&[254 * 3 + 1]);
    let launches = expansion::launches(ptx::Target::Sm90a, TokenForm::NvFp4, &codes.segments);
    let [launch] = &launches[..] else { panic!("{launches:?}") };
    let prepare = || (codes.gpu.clone(), simulated(launch));
    let found = explore(&launch.kernel.build().unwrap(), &Schedule::several(4), prepare, |gpu| codes.verify(gpu));
    found.unwrap_or_else(|finding| panic!("{finding}"));
}

#[test]
fn groups_of_any_lengths_in_places_of_their_own_are_expanded_by_launches_of_eight() {
    let codes = Codes::new(&[1, 300, 2, 0, 17, 256, 255, 257, 3, 1, 40]);
    let launches = expansion::launches(ptx::Target::Sm90a, TokenForm::NvFp4, &codes.segments);
    assert_eq!(launches.len(), 2);
    let mut gpu = codes.gpu.clone();
    for launch in &launches {
        let kernel = launch.kernel.build().unwrap();
        gpu.run(&kernel, &simulated(launch), Schedule::Random(5)).unwrap_or_else(|fault| panic!("{fault}"));
    }
    codes.verify(&gpu).unwrap();
}

#[test]
fn floats_are_the_sum_of_their_three_parts_to_the_last_bit_that_bf16_has() {
    let mut values: Vec<f32> = (0..1000).map(|i| (i as f32 - 500.3).powi(3) * 1.234_567e-4).collect();
    values.extend([0.0, -0.0, 1.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1.0 + f32::EPSILON, -3.333_333_3e38]);
    values.extend((0..16).map(|i| f32::from_bits(0x0400_0001 + i * 0x0800_1235)));
    let elements = values.len();
    assert_eq!(elements % 16, 0);
    for factor in [1.0, 2f32.powi(-40)] {
        let mut gpu = Gpu::new(Limits::h200()).with_rules(Rules::Letter);
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let (source, target) = (gpu.upload("floats", &bytes), gpu.alloc("parts", PARTS * elements * 2));
        [source, target].iter().for_each(|buffer| gpu.await_predecessor(*buffer));
        let (plane, source, scales) = (2 * elements as u64, source.address, 0);
        let segment = Segment { source, scales, target: target.address, plane, factor, k: elements, elements };
        let [launch] = &expansion::launches(ptx::Target::Sm90a, TokenForm::Single, &[segment])[..] else {
            panic!("one run")
        };
        let kernel = launch.kernel.build().unwrap();
        gpu.run(&kernel, &simulated(launch), Schedule::Latest).unwrap_or_else(|fault| panic!("{fault}"));
        let parts = gpu.download(target).unwrap();
        let part = |index: usize| f64::from(bf16::from_le_bytes([parts[2 * index], parts[2 * index + 1]]));
        for (index, &x) in values.iter().enumerate() {
            let sum: f64 = (0..PARTS).map(|plane| part(plane * elements + index)).sum();
            let exact = f64::from(x * factor);
            // bf16's last bit; a float this large has no bits below it.
            let lost = if exact.abs() < 2f64.powi(24 - 133) { 2f64.powi(-133) } else { 0.0 };
            assert!((sum - exact).abs() <= lost, "{x} at {index} times {factor}: {sum}");
        }
    }
}

/// Groups of rows of numbers, each with a factor per column and in memory of its own.
struct Scaled {
    gpu: Gpu,
    segments: Vec<Segment>,
    /// Where each group's parts go, and the products as the host rounds them.
    expected: Vec<(Buffer, Vec<f32>)>,
}

impl Scaled {
    fn new(float: Float, groups: &[(usize, usize)]) -> Self {
        let (mut gpu, mut segments, mut expected) = (Gpu::new(Limits::h200()), Vec::new(), Vec::new());
        for (group, &(rows, k)) in groups.iter().enumerate() {
            let value = |i: usize| ((i * 7919 + group) % 10_007) as f32 * 1.234_567e-3 - 6.0;
            let factors: Vec<f32> = (0..k).map(|i| 0.3 + ((i * 31 + group) % 97) as f32 * 0.013_37).collect();
            let (bytes, values): (Vec<u8>, Vec<f32>) = match float {
                Float::F16 => {
                    let values: Vec<f16> = (0..rows * k).map(|i| f16::from_f32(value(i))).collect();
                    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                    (bytes, values.iter().map(|x| x.to_f32()).collect())
                }
                Float::BF16 => {
                    let values: Vec<bf16> = (0..rows * k).map(|i| bf16::from_f32(value(i))).collect();
                    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                    (bytes, values.iter().map(|x| x.to_f32()).collect())
                }
                Float::F32 => {
                    let values: Vec<f32> = (0..rows * k).map(value).collect();
                    (values.iter().flat_map(|x| x.to_le_bytes()).collect(), values)
                }
            };
            let factor_bytes: Vec<u8> = factors.iter().flat_map(|x| x.to_le_bytes()).collect();
            let (source, scales) = (gpu.upload("numbers", &bytes), gpu.upload("factors", &factor_bytes));
            let target = gpu.alloc("parts", PARTS * rows * k * 2);
            [source, target].iter().for_each(|buffer| gpu.await_predecessor(*buffer));
            segments.push(Segment {
                source: source.address,
                scales: scales.address,
                target: target.address,
                plane: (2 * rows * k) as u64,
                factor: 1.0,
                k,
                elements: rows * k,
            });
            expected.push((target, values.iter().enumerate().map(|(i, x)| x * factors[i % k]).collect()));
        }
        Scaled { gpu, segments, expected }
    }

    /// Whether every part is, to the bit, what is cut off the product on the host.
    fn verify(&self, gpu: &Gpu) -> Result<(), String> {
        for (group, (buffer, products)) in self.expected.iter().enumerate() {
            let bytes = gpu.download(*buffer).map_err(|first| format!("group {group}: byte {first} not written"))?;
            let mut rest = products.clone();
            for (part, plane) in bytes.chunks_exact(2 * products.len()).enumerate() {
                for (at, (found, rest)) in plane.chunks_exact(2).zip(&mut rest).enumerate() {
                    let leading = rest.to_bits() & 0xFFFF_0000;
                    if u32::from(u16::from_le_bytes([found[0], found[1]])) << 16 != leading {
                        return Err(format!("group {group}: part {part} of element {at} differs"));
                    }
                    *rest -= f32::from_bits(leading);
                }
            }
        }
        Ok(())
    }
}

#[test]
fn numbers_times_a_factor_per_column_are_split_as_the_host_rounds_them_to_the_bit() {
    // Rows of one block, rows that no power of two divides, and more units than a block of threads takes.
    for (groups, most) in [(&[(3, 16), (2, 48), (1, 16), (21, 208)][..], 1), (&[(37, 80)][..], 1)] {
        for float in [Float::F16, Float::BF16, Float::F32] {
            let scaled = Scaled::new(float, groups);
            let launches = expansion::launches(ptx::Target::Sm90a, TokenForm::Scaled(float), &scaled.segments);
            assert_eq!(launches.len(), most);
            let prepare = || (scaled.gpu.clone(), simulated(&launches[0]));
            let kernel = launches[0].kernel.build().unwrap();
            let found = explore(&kernel, &Schedule::several(2), prepare, |gpu| scaled.verify(gpu));
            found.unwrap_or_else(|finding| panic!("{float:?}: {finding}"));
        }
    }
}

#[test]
fn every_mutation_of_the_kernel_is_caught() {
    let codes = Codes::new(&[65, 3, 300]);
    let launches = expansion::launches(ptx::Target::Sm90a, TokenForm::NvFp4, &codes.segments);
    let [launch] = &launches[..] else { panic!("{launches:?}") };
    let schedules = [Schedule::Earliest, Schedule::Random(2)];
    let kernel = launch.kernel.build().unwrap();
    let broken = mutants(&kernel);
    let kernels: Vec<&Kernel> = broken.iter().map(|mutant| &mutant.kernel).collect();
    let prepare = || (codes.gpu.clone(), simulated(launch));
    let found = explore_mutants((&kernel, &kernels), &schedules, prepare, |gpu| codes.verify(gpu));
    for (mutant, found) in broken.iter().zip(found) {
        assert!(found.is_err(), "not caught: {}", mutant.name);
    }
    assert!(broken.len() >= 3, "{} mistakes tried", broken.len());
}
