//! Packed layers in files, so that a model whose weights were packed once starts in the time that reading them takes;
//! and the same as bytes, for whoever sends them to another process.
//!
//! ```text
//! magic, version, length and checksum of the description │ description (JSON) │ 0… │ part │ 0… │ part │ …
//! ```
//!
//! The description says what the layer is and where its parts lie, each with a checksum: codes and scales as the CPU's
//! layout has them, which are mapped and not copied, and vectors of f32, which are. A file is refused with its remedy
//! if it is of another version, cut off, or damaged anywhere: all of it is read once when it is opened, on all threads.
//! It is written beside its place and moved there when it is whole. **It must not be changed while it is open.** Bytes
//! are copied when they are read. A [`Layer`]'s bytes are of the same form, with a magic number and a description of
//! their own.

use std::borrow::Cow;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;

use cpu::saved::{self, MappedFile, Part, StoredPart};
use format::{GlobalScale, Scaling};
use op::routing::Groups;
use op::{Error, Gate, Result, Router, Team};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::LayerOptions;
use super::stack::Stack;
use crate::scaling::InputScales;
use crate::{Engine, Layer};

/// Whole feed-forward layers.
const MAGIC: [u8; 8] = *b"HMRHLAYR";
/// The weights of every group of a product.
const WEIGHTS_MAGIC: [u8; 8] = *b"HMRHWGTS";
/// What errors call bytes that are not in a file.
pub(super) const BYTES: &str = "bytes of a packed layer";
/// The version of the layout. A change of the packed form or of the description is another version.
const VERSION: u64 = 3;
/// Magic, version, length of the description and its checksum.
const HEAD: usize = 32;
/// What parts begin at multiples of: pages, so that they lie as memory of our own does.
const ALIGNMENT: usize = 4096;
const AGAIN: &str = "write it again from the model";

/// What a file holds beside experts' or an MLP's stack.
pub(super) struct Opened {
    pub(super) stack: Stack,
    pub(super) shared: Option<(Stack, Option<Box<[f32]>>)>,
    pub(super) router: Option<Router>,
}

/// What is written.
pub(super) struct Written<'a> {
    pub(super) stack: &'a Stack,
    pub(super) shared: Option<(&'a Stack, Option<&'a [f32]>)>,
    pub(super) router: Option<&'a Router>,
}

#[derive(Serialize, Deserialize)]
struct Description {
    layout: String,
    gate: String,
    experts: Vec<StoredMlp>,
    shared: Option<StoredShared>,
    router: Option<StoredRouter>,
    parts: Vec<Span>,
}

/// The groups of a [`Layer`].
#[derive(Serialize, Deserialize)]
struct WeightsDescription {
    layout: String,
    gate: String,
    groups: Vec<StoredGroup>,
    checkpoint_bytes: usize,
    parts: Vec<Span>,
}

#[derive(Serialize, Deserialize)]
struct StoredGroup {
    matrices: Vec<StoredMatrix>,
    input_scale: Option<Number>,
}

/// A part of the file, from where parts begin.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Span {
    offset: usize,
    bytes: usize,
    checksum: u64,
}

/// The number of a part.
type Number = usize;

#[derive(Serialize, Deserialize)]
struct StoredMlp {
    up: Vec<StoredMatrix>,
    down: StoredMatrix,
    up_scale: Option<Number>,
    down_scale: Option<Number>,
    intermediate_scale: StoredGlobal,
}

#[derive(Serialize, Deserialize)]
struct StoredShared {
    mlp: StoredMlp,
    gate: Option<Number>,
}

#[derive(Serialize, Deserialize)]
struct StoredMatrix {
    n: usize,
    k: usize,
    scaling: StoredScaling,
    global: StoredGlobal,
    codes: Number,
    bias: Option<Number>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StoredScaling {
    NvFp4,
    MxFp4,
    WideMxFp4,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StoredGlobal {
    Multiplies(f32),
    Divides(f32),
}

#[derive(Serialize, Deserialize)]
struct StoredRouter {
    scoring: String,
    experts: usize,
    top_k: usize,
    correction: Vec<f32>,
    groups: Option<[usize; 2]>,
    scaling: f32,
    table: bool,
}

impl TryFrom<Scaling> for StoredScaling {
    type Error = Error;

    fn try_from(scaling: Scaling) -> Result<Self> {
        match scaling {
            Scaling::NvFp4 => Ok(StoredScaling::NvFp4),
            Scaling::MxFp4 => Ok(StoredScaling::MxFp4),
            Scaling::WideMxFp4 => Ok(StoredScaling::WideMxFp4),
            // The matrices of experts are never these.
            Scaling::Fp8 | Scaling::MxFp8 | Scaling::Fp8By64 | Scaling::Fp8By32 => Err(Error::Fp8Weights { scaling }),
        }
    }
}

impl From<StoredScaling> for Scaling {
    fn from(scaling: StoredScaling) -> Self {
        match scaling {
            StoredScaling::NvFp4 => Scaling::NvFp4,
            StoredScaling::MxFp4 => Scaling::MxFp4,
            StoredScaling::WideMxFp4 => Scaling::WideMxFp4,
        }
    }
}

impl From<GlobalScale> for StoredGlobal {
    fn from(scale: GlobalScale) -> Self {
        match scale {
            GlobalScale::Multiplies(factor) => StoredGlobal::Multiplies(factor),
            GlobalScale::Divides(divisor) => StoredGlobal::Divides(divisor),
        }
    }
}

impl From<StoredGlobal> for GlobalScale {
    fn from(scale: StoredGlobal) -> Self {
        match scale {
            StoredGlobal::Multiplies(factor) => GlobalScale::Multiplies(factor),
            StoredGlobal::Divides(divisor) => GlobalScale::Divides(divisor),
        }
    }
}

/// Writes a layer.
pub(super) fn write(path: &Path, written: &Written<'_>, team: &Team) -> Result<()> {
    let (parts, description) = described(written, team)?;
    let failed = |cause: io::Error| format::Error::Write { path: path.to_path_buf(), cause };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".packed").tempfile_in(folder).map_err(failed)?;
    let mut out = io::BufWriter::with_capacity(1 << 20, file.as_file_mut());
    parts.write(MAGIC, &description, &mut out).map_err(failed)?;
    drop(out);
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// What a file of the layer would hold.
pub(super) fn to_bytes(written: &Written<'_>, team: &Team) -> Result<Vec<u8>> {
    let (parts, description) = described(written, team)?;
    parts.bytes(MAGIC, &description)
}

fn described<'a>(written: &Written<'a>, team: &Team) -> Result<(Parts<'a>, Description)> {
    let mut parts = Parts::default();
    let experts = parts.stack(written.stack)?;
    let mut shared = None;
    if let Some((stack, gate)) = written.shared {
        let mlp = parts.stack(stack)?.remove(0);
        shared = Some(StoredShared { mlp, gate: gate.map(|gate| parts.numbers(gate)) });
    }
    let router = written.router.map(|router| StoredRouter {
        scoring: router.scoring().to_string(),
        experts: router.experts(),
        top_k: router.top_k(),
        correction: router.correction().to_vec(),
        groups: router.groups().map(|groups| [groups.count, groups.best]),
        scaling: router.scaling(),
        table: router.has_table(),
    });
    let (layout, gate) = (cpu::LAYOUT.to_owned(), written.stack.layers().0.gate().to_string());
    let spans = parts.spans(team);
    Ok((parts, Description { layout, gate, experts, shared, router, parts: spans }))
}

impl Layer {
    /// The packed weights as bytes, of which [`Layer::from_bytes`] makes the layer again, here or in another process.
    /// Only weights of the CPU's layout can be.
    pub fn to_bytes(&self, engine: &Engine) -> Result<Vec<u8>> {
        let mut parts = Parts::default();
        let stored = matrices(self)?.into_iter().enumerate().map(|(group, matrices)| {
            let matrices = matrices.iter().map(|matrix| parts.matrix(matrix)).collect::<Result<_>>()?;
            Ok(StoredGroup { matrices, input_scale: self.input_scale(group).map(|scale| parts.numbers(scale)) })
        });
        let groups = stored.collect::<Result<_>>()?;
        let (layout, gate) = (cpu::LAYOUT.to_owned(), self.gate().to_string());
        let (checkpoint_bytes, spans) = (self.checkpoint_bytes(), parts.spans(engine.team()));
        let description = WeightsDescription { layout, gate, groups, checkpoint_bytes, parts: spans };
        parts.bytes(WEIGHTS_MAGIC, &description)
    }

    /// The layer that [`Layer::to_bytes`] made bytes of. They are copied, and checked as a whole.
    pub fn from_bytes(engine: &Engine, bytes: &[u8]) -> Result<Self> {
        let file = copied(bytes)?;
        let refuse = refusal(Path::new(BYTES));
        let (description, start) = describe::<WeightsDescription>(WEIGHTS_MAGIC, &file).map_err(&refuse)?;
        let reader = Reader { engine, file: &file, start, parts: &description.parts };
        reader.check(&description.layout).map_err(&refuse)?;
        let gate: Gate = description.gate.parse()?;
        gate.check()?;
        let groups = description.groups.iter().map(|group| (&group.matrices[..], group.input_scale));
        let layer = reader.product(groups, gate).ok_or_else(|| refuse(unfit()))?;
        Ok(layer.with_checkpoint_bytes(description.checkpoint_bytes))
    }
}

/// The matrices of every group of a layer, as they are written.
fn matrices(layer: &Layer) -> Result<Vec<Vec<Part<'_>>>> {
    let found = layer.packed().layout();
    let refusal = Error::Layout { backend: "a file of packed weights", found, expected: cpu::LAYOUT };
    saved::parts(layer.packed().as_ref()).ok_or(refusal)
}

/// Bytes to be written, one after the other.
#[derive(Default)]
struct Parts<'a>(Vec<Cow<'a, [u8]>>);

impl<'a> Parts<'a> {
    fn add(&mut self, bytes: impl Into<Cow<'a, [u8]>>) -> Number {
        self.0.push(bytes.into());
        self.0.len() - 1
    }

    fn numbers(&mut self, numbers: &[f32]) -> Number {
        self.add(numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
    }

    fn matrix(&mut self, part: &Part<'a>) -> Result<StoredMatrix> {
        let codes = self.add(part.bytes);
        let bias = (!part.bias.is_empty()).then(|| self.numbers(part.bias));
        let (scaling, global) = (part.scaling.try_into()?, part.global.into());
        Ok(StoredMatrix { n: part.n, k: part.k, scaling, global, codes, bias })
    }

    /// Every MLP of a stack.
    fn stack(&mut self, stack: &'a Stack) -> Result<Vec<StoredMlp>> {
        let (up, down) = stack.layers();
        let mut mlps = Vec::with_capacity(stack.scales().len());
        for (index, (first, second)) in matrices(up)?.into_iter().zip(matrices(down)?).enumerate() {
            mlps.push(StoredMlp {
                up: first.iter().map(|part| self.matrix(part)).collect::<Result<_>>()?,
                down: self.matrix(&second[0])?,
                up_scale: up.input_scale(index).map(|scale| self.numbers(scale)),
                down_scale: down.input_scale(index).map(|scale| self.numbers(scale)),
                intermediate_scale: stack.scales()[index].into(),
            });
        }
        Ok(mlps)
    }

    /// Where each will lie, with its checksum.
    fn spans(&self, team: &Team) -> Vec<Span> {
        let checksums = checksums(&self.0, team);
        let mut end = 0usize;
        let span = |(bytes, checksum): (&Cow<'_, [u8]>, u64)| {
            let offset = end.next_multiple_of(ALIGNMENT);
            end = offset + bytes.len();
            Span { offset, bytes: bytes.len(), checksum }
        };
        self.0.iter().zip(checksums).map(span).collect()
    }

    /// All of it in memory.
    fn bytes(&self, magic: [u8; 8], description: &impl Serialize) -> Result<Vec<u8>> {
        // A page is left between parts at most, and the description is a small part of the rest.
        let bytes = self.0.iter().map(|part| part.len() + ALIGNMENT).sum();
        let failed = |source| Error::Memory { bytes, what: "a packed layer as bytes", source };
        let mut out = Vec::new();
        out.try_reserve(bytes).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
        self.write(magic, description, &mut out).map_err(failed)?;
        Ok(out)
    }

    fn write(&self, magic: [u8; 8], description: &impl Serialize, file: &mut impl Write) -> io::Result<()> {
        let description = &serde_json::to_vec(description)?[..];
        let length = description.len() as u64;
        for head in [u64::from_le_bytes(magic), VERSION, length, checksum(description)] {
            file.write_all(&head.to_le_bytes())?;
        }
        file.write_all(description)?;
        let mut at = HEAD + description.len();
        for bytes in &self.0 {
            file.write_all(&[0; ALIGNMENT][..at.next_multiple_of(ALIGNMENT) - at])?;
            file.write_all(bytes)?;
            at = bytes.len();
        }
        file.flush()
    }
}

/// Maps a layer's file back.
pub(super) fn open(engine: &Engine, path: &Path, options: LayerOptions) -> Result<Opened> {
    let file = MappedFile::open(path).map_err(|cause| format::Error::Read { path: path.to_path_buf(), cause })?;
    read(engine, &file, path, options)
}

/// A layer of what [`to_bytes`] made.
pub(super) fn from_bytes(engine: &Engine, bytes: &[u8], options: LayerOptions) -> Result<Opened> {
    read(engine, &copied(bytes)?, Path::new(BYTES), options)
}

fn copied(bytes: &[u8]) -> Result<MappedFile> {
    let memory = |source| Error::Memory { bytes: bytes.len(), what: "packed weights", source };
    MappedFile::copied(bytes).map_err(memory)
}

/// What is wrong with a file, and what to do.
type Problem = (String, &'static str);

fn refusal(path: &Path) -> impl Fn(Problem) -> Error {
    |(problem, remedy)| Error::LayerFile { path: path.to_path_buf(), problem, remedy }
}

fn unfit() -> Problem {
    ("its parts do not fit each other".to_owned(), AGAIN)
}

fn read(engine: &Engine, file: &MappedFile, path: &Path, options: LayerOptions) -> Result<Opened> {
    let refuse = refusal(path);
    let (description, start) = describe::<Description>(MAGIC, file).map_err(&refuse)?;
    let reader = Reader { engine, file, start, parts: &description.parts };
    reader.check(&description.layout).map_err(&refuse)?;
    let gate: Gate = description.gate.parse()?;
    gate.check()?;
    let unfit = || refuse(unfit());
    let stack = reader.stack(&description.experts, gate, options).ok_or_else(unfit)?;
    stack.check()?;
    let mut shared = None;
    if let Some(StoredShared { mlp, gate: vector }) = &description.shared {
        let own = reader.stack(std::slice::from_ref(mlp), gate, options).ok_or_else(unfit)?;
        own.check()?;
        let vector = vector.map(|number| reader.numbers(number).ok_or_else(unfit)).transpose()?;
        let [k, _, n] = stack.widths();
        let [own_k, _, own_n] = own.widths();
        if (own_k, own_n) != (k, n) || vector.as_ref().is_some_and(|vector| vector.len() != k) {
            return Err(unfit());
        }
        shared = Some((own, vector.map(Vec::into_boxed_slice)));
    }
    let router = description.router.map(router).transpose()?;
    if router.as_ref().is_some_and(|router| router.experts() != stack.scales().len()) {
        return Err(unfit());
    }
    Ok(Opened { stack, shared, router })
}

/// What a file says of itself, and where its parts begin; or what is wrong, and what to do.
fn describe<D: DeserializeOwned>(magic: [u8; 8], file: &[u8]) -> Result<(D, usize), Problem> {
    let word =
        |index: usize| file.get(8 * index..8 * index + 8).map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes));
    if word(0) != Some(u64::from_le_bytes(magic)) {
        return Err(("it is no file of a packed layer".to_owned(), "name one that a layer was saved to"));
    }
    let cut = || (format!("it ends after {} bytes, in its description", file.len()), AGAIN);
    let (Some(version), Some(length), Some(expected)) = (word(1), word(2), word(3)) else { return Err(cut()) };
    if version != VERSION {
        return Err((format!("it is of version {version}, and version {VERSION} is read here"), AGAIN));
    }
    let end = usize::try_from(length).ok().and_then(|length| length.checked_add(HEAD)).ok_or_else(cut)?;
    let text = file.get(HEAD..end).ok_or_else(cut)?;
    if checksum(text) != expected {
        return Err(("its description does not match its checksum: the file is damaged".to_owned(), AGAIN));
    }
    match serde_json::from_slice(text) {
        Ok(description) => Ok((description, end.next_multiple_of(ALIGNMENT))),
        Err(error) => Err((format!("its description cannot be read: {error}"), AGAIN)),
    }
}

fn router(stored: StoredRouter) -> Result<Router> {
    let StoredRouter { scoring, experts, top_k, correction, groups, scaling, table } = stored;
    let mut router = Router::new(scoring.parse()?, experts, top_k)?.with_scaling(scaling)?;
    if table {
        router = router.with_table();
    }
    if let Some([count, best]) = groups {
        router = router.with_groups(Groups { count, best })?;
    }
    if correction.is_empty() { Ok(router) } else { router.with_correction(correction) }
}

/// What parts are read with.
struct Reader<'a> {
    engine: &'a Engine,
    file: &'a MappedFile,
    start: usize,
    parts: &'a [Span],
}

impl Reader<'_> {
    /// Where a part lies, if it lies inside the file.
    fn range(&self, number: Number) -> Option<Range<usize>> {
        let Span { offset, bytes, .. } = *self.parts.get(number)?;
        let start = self.start.checked_add(offset)?;
        Some(start..start.checked_add(bytes)?).filter(|range| range.end <= self.file.len())
    }

    /// Whether all parts are there and whole, and packed as they are read here.
    fn check(&self, layout: &str) -> Result<(), Problem> {
        let ranges: Option<Vec<Range<usize>>> = (0..self.parts.len()).map(|number| self.range(number)).collect();
        let Some(ranges) = ranges else {
            let found = format!("it ends after {} bytes, before its last part does: it was cut off", self.file.len());
            return Err((found, AGAIN));
        };
        let parts: Vec<&[u8]> = ranges.into_iter().map(|range| &self.file[range]).collect();
        let found = checksums(&parts, self.engine.team());
        match found.iter().zip(self.parts).position(|(found, part)| *found != part.checksum) {
            Some(part) => {
                let found = format!("part {part} of {} does not match its checksum: the file is damaged", parts.len());
                Err((found, AGAIN))
            }
            None if layout != cpu::LAYOUT => Err((format!("its weights are packed as {layout:?}"), AGAIN)),
            None => Ok(()),
        }
    }

    fn numbers(&self, number: Number) -> Option<Vec<f32>> {
        let bytes = &self.file[self.range(number)?];
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        (bytes.len().is_multiple_of(4) && values.iter().all(|x| x.is_finite())).then_some(values)
    }

    fn matrix(&self, stored: &StoredMatrix) -> Option<StoredPart> {
        let bias = match stored.bias {
            Some(number) => self.numbers(number)?,
            None => Vec::new(),
        };
        let bytes = self.range(stored.codes)?;
        let (scaling, global) = (stored.scaling.into(), stored.global.into());
        Some(StoredPart { n: stored.n, k: stored.k, scaling, global, bytes, bias })
    }

    /// One product of every group.
    fn product<'s>(
        &self,
        groups: impl Iterator<Item = (&'s [StoredMatrix], Option<Number>)>,
        gate: Gate,
    ) -> Option<Layer> {
        let (mut stored, mut scales) = (Vec::new(), Vec::new());
        for (matrices, scale) in groups {
            let scale = match scale {
                Some(number) => Some(self.numbers(number)?.into_boxed_slice()),
                None => None,
            };
            let k = matrices.first()?.k;
            if matrices.len() != gate.matrices() || scale.as_ref().is_some_and(|scale| scale.len() != k) {
                return None;
            }
            stored.push(matrices.iter().map(|matrix| self.matrix(matrix)).collect::<Option<Vec<_>>>()?);
            scales.push(scale);
        }
        Some(Layer::from_packed(saved::packed(self.file, stored)?, gate, InputScales::from_groups(scales)))
    }

    /// The products of MLPs of one shape.
    fn stack(&self, mlps: &[StoredMlp], gate: Gate, options: LayerOptions) -> Option<Stack> {
        let first = mlps.first()?;
        let widths = [first.up.first()?.k, first.down.k, first.down.n];
        let [k, inner, n] = widths;
        let fits = |mlp: &StoredMlp| {
            mlp.up.iter().all(|matrix| (matrix.n, matrix.k) == (inner, k)) && (mlp.down.n, mlp.down.k) == (n, inner)
        };
        if !mlps.iter().all(fits) {
            return None;
        }
        let up = self.product(mlps.iter().map(|mlp| (&mlp.up[..], mlp.up_scale)), gate)?;
        let down = mlps.iter().map(|mlp| (std::slice::from_ref(&mlp.down), mlp.down_scale));
        let layers = (up, self.product(down, Gate::None)?);
        let scales: Vec<GlobalScale> = mlps.iter().map(|mlp| mlp.intermediate_scale.into()).collect();
        scales.iter().all(|scale| scale.is_usable() && scale.value() > 0.0).then_some(())?;
        Some(Stack::of(layers, scales, widths, options))
    }
}

/// The checksum of every part, on all threads.
fn checksums<B: AsRef<[u8]> + Sync>(parts: &[B], team: &Team) -> Vec<u64> {
    let queue = Mutex::new(parts.iter().enumerate());
    let done = Mutex::new(vec![0; parts.len()]);
    team.run(|| {
        while let Some((index, part)) = queue.lock().ok().and_then(|mut queue| queue.next()) {
            let found = checksum(part.as_ref());
            if let Ok(mut done) = done.lock() {
                done[index] = found;
            }
        }
    });
    done.into_inner().unwrap_or_default()
}

/// A checksum that a change of any one word of eight bytes always changes, and others but by chance. It is no defence
/// against who wants to deceive.
///
/// Four lanes take turns, so that their multiplications overlap; each step maps a lane's states one to one.
fn checksum(bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let step = |lane: u64, word: u64| (lane ^ word).wrapping_mul(ODD).rotate_left(29);
    let mut lanes = [1u64, 2, 3, 4];
    let (chunks, rest) = bytes.as_chunks::<32>();
    for chunk in chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *lane = step(*lane, u64::from_le_bytes(*word));
        }
    }
    let mut last = [0; 32];
    last[..rest.len()].copy_from_slice(rest);
    for (lane, word) in lanes.iter_mut().zip(last.as_chunks::<8>().0) {
        *lane = step(*lane, u64::from_le_bytes(*word));
    }
    lanes.into_iter().fold(step(bytes.len() as u64, 0), step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_notices_every_bit_and_the_length() {
        let bytes: Vec<u8> = (0..77u8).collect();
        let whole = checksum(&bytes);
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&changed), whole, "bit {bit}");
        }
        assert_ne!(checksum(&bytes[..76]), whole);
        assert_ne!(checksum(&[0; 3]), checksum(&[0; 4]));
    }
}
