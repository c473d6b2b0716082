//! The kernels of data-centre Blackwell, read as an outsider would: only the printed PTX counts, and what the ISA says
//! of it.
//!
//! Of 200 problems that no other test has, every instruction descriptor and shared-memory descriptor is decoded field
//! by field, every column of tensor memory that scales begin at is shown to be a multiple of what silicon wants,
//! allocations are held to their sizes, and boxes of tensor maps to theirs. Nothing of the builder, the checker or the
//! simulator is asked: whoever wrote those may have misread the ISA in all three.

use std::collections::HashMap;

use hammerhead_gpu::facts::Facts;
use hammerhead_gpu::{Argument, Family, GroupOperands, families, plan};
use op::{Activation, Gate, Output, Problem, Shape};

/// A register's value is a multiple of 2 to this power, if it is 0.
const ZERO: u32 = 64;
/// Columns are allocated by 32.
const ALLOCATED: u32 = 5;

/// One entry's instructions: what defines each register, and the lines of tensor work.
#[derive(Default)]
struct Entry<'t> {
    defined: HashMap<&'t str, Vec<(&'t str, Vec<&'t str>)>>,
    tensor: Vec<(&'t str, Vec<&'t str>)>,
}

/// Splits an instruction into its name and its operands.
fn split(line: &str) -> Option<(&str, Vec<&str>)> {
    let line = line.trim().strip_suffix(';')?;
    let line = if line.starts_with('@') { line.split_once(' ')?.1 } else { line };
    let (name, rest) = line.split_once(' ')?;
    let rest = rest.replace(['{', '}', '[', ']'], "");
    // Operands are names and numbers, so that nothing inside of one has a comma.
    let operands =
        rest.split(", ").map(|operand| &line[line.find(operand.trim()).unwrap_or(0)..][..operand.trim().len()]);
    Some((name, operands.collect()))
}

impl<'t> Entry<'t> {
    fn read(text: &'t str) -> Self {
        let mut entry = Entry::default();
        for (name, operands) in text.lines().filter_map(split) {
            if name.starts_with("tcgen05.") {
                entry.tensor.push((name, operands));
            } else if let Some(first) = operands.first().filter(|first| first.starts_with('%')) {
                entry.defined.entry(first).or_default().push((name, operands));
            }
        }
        entry
    }

    /// The constant that a register always has.
    fn constant(&self, operand: &str) -> Option<u64> {
        if !operand.starts_with('%') {
            return number(operand);
        }
        match &self.defined.get(operand)?[..] {
            [(name, operands)] if name.starts_with("mov.") => self.constant(operands.get(1)?),
            _ => None,
        }
    }

    /// The power of two that a value is certainly a multiple of.
    fn power(&self, operand: &'t str, base: &str, known: &mut HashMap<&'t str, u32>) -> u32 {
        if !operand.starts_with('%') {
            let bytes = operand.strip_prefix("shared_memory").map(|rest| rest.trim_start_matches('+'));
            return number(bytes.filter(|rest| !rest.is_empty()).unwrap_or(operand)).map_or(0, powers);
        }
        if let Some(power) = known.get(operand) {
            return *power;
        }
        // A loop's own value changes nothing of what the others say.
        known.insert(operand, ZERO);
        let each = self.defined.get(operand).into_iter().flatten().map(|(name, operands)| {
            let mut of = |index: usize| operands.get(index).map_or(0, |operand| self.power(operand, base, known));
            match name.split('.').next().unwrap_or_default() {
                "mov" => of(1),
                "add" | "sub" | "or" | "xor" | "min" | "max" | "selp" => of(1).min(of(2)),
                "mul" => of(1) + of(2),
                "mad" => (of(1) + of(2)).min(of(3)),
                "and" => of(1).max(of(2)),
                "shl" => of(1) + operands.get(2).and_then(|by| number(by)).unwrap_or(0) as u32,
                "shr" => of(1).saturating_sub(operands.get(2).and_then(|by| number(by)).unwrap_or(64) as u32),
                "ld" if operands.get(1) == Some(&base) => ALLOCATED,
                _ => 0,
            }
        });
        let power = each.collect::<Vec<u32>>().into_iter().min().unwrap_or(0);
        known.insert(operand, power);
        power
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn powers(value: u64) -> u32 {
    if value == 0 { ZERO } else { value.trailing_zeros() }
}

fn bits(value: u64, from: u32, to: u32) -> u64 {
    value >> from & ((1 << (to - from)) - 1)
}

/// What the ISA's table of instruction descriptors says of one.
fn check_shape(shape: u64, pair: bool, scaled: bool) -> Result<(), String> {
    let (n, rows) = (8 * bits(shape, 17, 23), if pair { 256 } else { 128 });
    let m = if scaled { 128 * bits(shape, 27, 29) } else { 16 * bits(shape, 24, 29) };
    let zeros: &[(u32, u32)] = match scaled {
        // Sparsity; ids of scales; negation and transposition; ue4m3; the rest.
        true => &[(0, 7), (12, 17), (23, 27), (29, 32)],
        // Sparsity and saturation; negation and transposition; the rest.
        false => &[(0, 4), (6, 7), (13, 17), (23, 24), (29, 32)],
    };
    let formats = if scaled {
        (bits(shape, 7, 10), bits(shape, 10, 12)) == (1, 1)
    } else {
        bits(shape, 4, 6) == 1 && bits(shape, 7, 10) == bits(shape, 10, 13) && bits(shape, 7, 10) < 2
    };
    let step = if pair || !scaled { 16 } else { 8 };
    let sizes = m == rows && (step..=256).contains(&n) && n % step == 0;
    match formats && sizes && zeros.iter().all(|&(from, to)| bits(shape, from, to) == 0) {
        true => Ok(()),
        false => Err(format!("the instruction descriptor {shape:#x}: {m} rows, {n} columns")),
    }
}

/// What the ISA's table of shared-memory descriptors says of the upper half of one: of codes and numbers rows of 128
/// bytes, swizzled, eight of them 1024 bytes apart; of scales none of that, and 128 bytes.
fn check_descriptor(high: u64, scales: bool) -> Result<(), String> {
    let found = [bits(high, 0, 14), bits(high, 14, 17), bits(high, 29, 32), bits(high, 17, 29)];
    let expected = if scales { [8, 1, 0, 0] } else { [64, 1, 2, 0] };
    if found == expected { Ok(()) } else { Err(format!("the descriptor's upper half {high:#x}: {found:?}")) }
}

/// Whether a register is made of a descriptor's halves, and the upper one is right.
fn check_matrix(entry: &Entry<'_>, register: &str, scales: bool) -> Result<(), String> {
    let unknown = || format!("{register} is no descriptor");
    match entry.defined.get(register).map(|all| &all[..]) {
        Some([(name, operands)]) if name.starts_with("mov.b64") => {
            let high = operands.get(2).and_then(|high| entry.constant(high)).ok_or_else(unknown)?;
            check_descriptor(high, scales)
        }
        _ => Err(unknown()),
    }
}

/// The instruction descriptor of a multiplication: a constant, or one that grows by whole steps of columns.
fn shape_of(entry: &Entry<'_>, register: &str, step: u64) -> Result<u64, String> {
    if let Some(shape) = entry.constant(register) {
        return Ok(shape);
    }
    let grown = match entry.defined.get(register).map(|all| &all[..]) {
        Some([(name, operands)]) if name.starts_with("mad.lo") => {
            entry.constant(operands[2]).zip(entry.constant(operands[3]))
        }
        _ => None,
    };
    match grown {
        Some((by, shape)) if by == (step / 8) << 17 => Ok(shape),
        _ => Err(format!("the instruction descriptor {register} is neither a constant nor one and steps of {step}")),
    }
}

/// Reads a module of kernels, and says how many multiplications it has or what is wrong.
fn check(text: &str) -> Result<usize, String> {
    let mut multiplications = 0;
    for text in text.split(".visible .entry ").skip(1) {
        let entry = Entry::read(text);
        let allocated: Vec<_> = entry.tensor.iter().filter(|(name, _)| name.starts_with("tcgen05.alloc")).collect();
        let [(alloc, place)] = allocated[..] else {
            if entry.tensor.is_empty() {
                continue;
            }
            return Err(format!("{} allocations", allocated.len()));
        };
        let pair = alloc.contains("cta_group::2");
        let columns = number(place[1]).unwrap_or(0);
        if !columns.is_power_of_two() || !(32..=512).contains(&columns) {
            return Err(format!("{columns} columns are allocated"));
        }
        let base = place[0];
        let mut known = HashMap::new();
        for (name, operands) in &entry.tensor {
            if name.contains("cta_group") && name.contains("cta_group::2") != pair {
                return Err(format!("{name} in a kernel of another group"));
            }
            let mut aligned = |what: &str, operand: &'_ str, wanted: u32| {
                let operand = operands.iter().find(|known| **known == operand).copied().unwrap_or_default();
                let power = entry.power(operand, base, &mut known);
                let said = format!("{what} of {name} at {operand}, of which only 2^{power} is certain");
                if power >= wanted { Ok(()) } else { Err(said) }
            };
            if name.starts_with("tcgen05.dealloc") && number(operands[1]) != Some(columns) {
                return Err(format!("{} columns are given back of {columns}", operands[1]));
            }
            if name.starts_with("tcgen05.cp") {
                aligned("the columns", operands[0], 2)?;
                check_matrix(&entry, operands[1], true)?;
            }
            if name.starts_with("tcgen05.mma") {
                let scaled = name.contains("mxf4nvf4");
                let swapped = entry.constant(operands[3]).is_none();
                // Multiplications of eight columns exist for one block and codes only.
                let steps: &[u64] = if scaled && !pair { &[16, 8] } else { &[16] };
                let shape = steps.iter().find_map(|step| shape_of(&entry, operands[3], *step).ok());
                let shape = shape
                    .ok_or_else(|| format!("no instruction descriptor in {} (swapped: {swapped})", operands[3]))?;
                check_shape(shape, pair, scaled)?;
                check_matrix(&entry, operands[1], false)?;
                check_matrix(&entry, operands[2], false)?;
                if scaled {
                    aligned("the scales of A", operands[4], 2)?;
                    aligned("the scales of B", operands[5], 1)?;
                }
                multiplications += 1;
            }
        }
    }
    Ok(multiplications)
}

/// Numbers that are the same every time: xorshift.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// From 1 on, as often below a power of two as between it and the next.
    fn size(&mut self, most_bits: u64) -> usize {
        let bits = self.below(most_bits + 1);
        ((1 << bits) + self.below(1 << bits)) as usize
    }

    fn problem(&mut self) -> Problem {
        let (n, k) = (16 * self.size(9), 16 * self.size(9));
        let groups = if self.below(4) == 0 { 1 + self.below(6) } else { 1 };
        let groups = (0..groups).map(|_| Shape::new(self.size(11), n, k)).collect();
        let activation = match self.below(8) {
            0 => Activation::F16,
            1 => Activation::BF16,
            2 => Activation::F32,
            _ => Activation::NvFp4,
        };
        let (gate, output) = if self.below(3) == 0 { (Gate::None, Output::F32) } else { (Gate::Silu, Output::F16) };
        Problem::new(groups, gate, activation, output).expect("a problem")
    }
}

#[test]
fn two_hundred_unseen_kernels_are_what_the_isa_says() {
    let (family, facts): (&dyn Family, Facts) = (&families::sm100::Sm100, Facts::b200());
    let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
    let mut multiplications = 0;
    for _ in 0..200 {
        let problem = draw.problem();
        let configs = plan::candidates(&families::sm100::Sm100, &problem, &facts);
        let cheapest = plan::cheapest(&families::sm100::Sm100, &problem, &facts).expect("a way");
        let any = configs[draw.below(configs.len() as u64) as usize];
        for config in [cheapest, any] {
            let kernels = family.kernels(&problem, &config).expect("kernels");
            let text = ptx::module(family.target(), &kernels);
            multiplications +=
                check(&text).unwrap_or_else(|wrong| panic!("{problem} {}, {config}: {wrong}", problem.activation()));
            let operands = vec![GroupOperands::default(); problem.groups().len()];
            for launch in family.launches(&problem, &config, &operands, 0, 148).expect("launches") {
                for map in launch.arguments.iter().flat_map(|argument| match argument {
                    Argument::Map(map) => std::slice::from_ref(map),
                    Argument::Maps(maps) => &maps[..],
                    _ => &[],
                }) {
                    let boxed = map.tile.iter().all(|side| (1..=256).contains(side));
                    let strides = map.strides.iter().all(|stride| stride % 16 == 0 && *stride < 1 << 40);
                    assert!(boxed && strides && map.address % 16 == 0, "{problem}, {config}: {map:?}");
                }
            }
        }
    }
    assert!(multiplications > 2000, "{multiplications}");
}

#[test]
fn what_silicon_would_refuse_is_found_in_the_text() {
    let problem =
        |m| Problem::new(vec![Shape::new(m, 4096, 7168)], Gate::Silu, Activation::NvFp4, Output::F16).unwrap();
    let text = |m: usize, wish: &str| {
        let family = &families::sm100::Sm100;
        let config = wish.parse::<op::Request>().unwrap().complete().unwrap();
        ptx::module(family.target(), &family.kernels(&problem(m), &config).unwrap())
    };
    let upright = text(256, "strategy=interleaved,tile=256x64,depth=256,stages=4,epilogue=direct,schedule=tile");
    assert!(check(&upright).expect("it is right") > 0);
    for (from, to, words) in [
        // Columns of scales by quarters of a half block, an odd one among them; and of a block of three.
        (", 5;\n", ", 6;\n", "scales of B"),
        (", 48, ", ", 49, ", "only 2^0"),
        ("0x10100480", "0x10100490", "instruction descriptor"),
        ("0x10100480", "0x10120480", "instruction descriptor"),
        ("0x40004040", "0x40000040", "upper half"),
        ("16392", "16393", "upper half"),
        ("], 512;", "], 320;", "columns are allocated"),
        ("tcgen05.cp.cta_group::2", "tcgen05.cp.cta_group::1", "another group"),
    ] {
        let broken = upright.replace(from, to);
        assert_ne!(broken, upright, "{from}");
        let wrong = check(&broken).expect_err(from);
        assert!(wrong.contains(words), "{from}: {wrong}");
    }
}
