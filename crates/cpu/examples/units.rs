//! How fast one thread's vector units are: f32 multiply-adds of 8 and of 16 lanes, and `vdpbf16ps`, which multiplies
//! pairs of bf16 numbers and adds them to 16 f32 sums.
//!
//!     cargo run --release -p hammerhead-cpu --example units
//!
//! Whether dense tokens should be multiplied as bf16 is decided by the last figure: it would have to be well above the
//! one before it. All are timed in turn; medians and bests, in GFLOP/s.

#[cfg(target_arch = "x86_64")]
fn main() {
    const TURNS: usize = 41;
    for (unit, run, has) in units::ALL {
        if !has() {
            println!("{unit}: this processor has it not");
        } else {
            run(); // Clocks settle.
        }
    }
    let mut rates = units::ALL.map(|_| Vec::new());
    for _ in 0..TURNS {
        for ((_, run, _), rates) in units::ALL.iter().zip(&mut rates).filter(|((_, _, has), _)| has()) {
            let clock = std::time::Instant::now();
            let operations = run();
            rates.push(operations / clock.elapsed().as_secs_f64() / 1e9);
        }
    }
    for ((unit, ..), mut rates) in units::ALL.iter().zip(rates).filter(|(_, rates)| !rates.is_empty()) {
        rates.sort_by(f64::total_cmp);
        println!("{unit}: {:.0} (best {:.0})", rates[TURNS / 2], rates[TURNS - 1]);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("these are units of x86-64");
}

#[cfg(target_arch = "x86_64")]
mod units {
    use std::arch::asm;

    /// A name, what keeps the unit busy and returns the operations done, and whether this processor has it.
    type Unit = (&'static str, fn() -> f64, fn() -> bool);

    pub const ALL: [Unit; 3] = [
        ("f32 multiply-add, 8 lanes", multiply_add_256, || is_x86_feature_detected!("fma")),
        ("f32 multiply-add, 16 lanes", multiply_add_512, || is_x86_feature_detected!("avx512f")),
        ("vdpbf16ps, 16 sums of pairs", bf16_512, || is_x86_feature_detected!("avx512bf16")),
    ];

    const ROUNDS: u64 = 200_000;
    /// Independent sums: more than the units' latency asks for.
    const SUMS: f64 = 12.0;

    /// A loop of one instruction on twelve sums, all zero: the units take as long for any number that is not subnormal.
    macro_rules! busy {
        ($name:ident, $instruction:literal, $vector:literal, $operations:literal) => {
            fn $name() -> f64 {
                // SAFETY: called only where the processor has the instruction; it changes registers alone.
                unsafe {
                    asm!(
                        "vzeroall",
                        "2:",
                        concat!($instruction, " ", $vector, "0, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "1, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "2, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "3, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "4, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "5, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "6, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "7, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "8, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "9, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "10, ", $vector, "14, ", $vector, "15"),
                        concat!($instruction, " ", $vector, "11, ", $vector, "14, ", $vector, "15"),
                        "dec {rounds}",
                        "jnz 2b",
                        "vzeroupper",
                        rounds = inout(reg) ROUNDS => _,
                        out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _,
                        out("xmm6") _, out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                        out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                        options(nomem, nostack),
                    )
                }
                ROUNDS as f64 * SUMS * $operations
            }
        };
    }

    busy!(multiply_add_256, "vfmadd231ps", "ymm", 16.0);
    busy!(multiply_add_512, "vfmadd231ps", "zmm", 32.0);
    busy!(bf16_512, "vdpbf16ps", "zmm", 64.0);
}
