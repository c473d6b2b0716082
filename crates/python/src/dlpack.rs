//! Arrays of other libraries, borrowed through DLPack.
//!
//! DLPack is how array libraries lend each other memory: an object's `__dlpack__` returns a capsule that points to a
//! small C structure (where the elements lie, their type, shape and strides, and whom to call when they are no longer
//! needed). numpy and torch both speak it, on CPUs and GPUs, and it needs nothing beyond Python's stable ABI.
//! Everything that a capsule says is checked here before anybody reads through its pointers; what is left to trust is
//! that the pointers themselves are good.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use half::{bf16, f16};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::error::{Error, Result};

/// The major version that is understood here. Structures of another one may differ beyond their first fields.
const MAJOR: u32 = 1;
/// Set in the flags of memory that must not be written.
const READ_ONLY: u64 = 1;
/// The stream that stands for a consumer who minds the order himself.
const NO_SYNCHRONISATION: i64 = -1;
/// DLPack's number of the kind of device that is the processor.
const CPU: i32 = 1;
const UNVERSIONED: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
/// The names by which a consumer marks a capsule whose contents it has taken over.
const USED_UNVERSIONED: &CStr = c"used_dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

#[repr(C)]
struct Device {
    kind: i32,
    index: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    element: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Half precision.
    F16,
    /// bfloat16.
    BF16,
    /// Single precision.
    F32,
    /// Bytes: packed codes, or e4m3 scales.
    U8,
    /// Two bytes, which is how numpy passes bfloat16 on.
    U16,
    /// Experts' numbers, as engines hand them over.
    I32,
    /// Experts' numbers, as indices of tensors are.
    I64,
}

impl Element {
    /// Bytes of one element, which is also their alignment.
    fn bytes(self) -> usize {
        match self {
            Element::U8 => 1,
            Element::F16 | Element::BF16 | Element::U16 => 2,
            Element::F32 | Element::I32 => 4,
            Element::I64 => 8,
        }
    }

    /// The name that numpy and torch use.
    pub fn name(self) -> &'static str {
        match self {
            Element::F16 => "float16",
            Element::BF16 => "bfloat16",
            Element::F32 => "float32",
            Element::U8 => "uint8",
            Element::U16 => "uint16",
            Element::I32 => "int32",
            Element::I64 => "int64",
        }
    }

    fn of(element: &DataType) -> Option<Self> {
        match (element.code, element.bits, element.lanes) {
            (0, 32, 1) => Some(Element::I32),
            (0, 64, 1) => Some(Element::I64),
            (1, 8, 1) => Some(Element::U8),
            (1, 16, 1) => Some(Element::U16),
            (2, 16, 1) => Some(Element::F16),
            (2, 32, 1) => Some(Element::F32),
            (4, 16, 1) => Some(Element::BF16),
            _ => None,
        }
    }
}

/// A structure that was taken out of its capsule, and must be given back.
enum Lent {
    Plain(NonNull<Managed>),
    Versioned(NonNull<ManagedVersioned>),
}

impl Lent {
    /// Takes over what a capsule holds; the capsule is marked as used.
    fn take(capsule: &Bound<'_, PyCapsule>, what: &str) -> Result<Self> {
        let (lent, used) = if let Ok(pointer) = capsule.pointer_checked(Some(VERSIONED)) {
            (Lent::Versioned(pointer.cast()), USED_VERSIONED)
        } else if let Ok(pointer) = capsule.pointer_checked(Some(UNVERSIONED)) {
            (Lent::Plain(pointer.cast()), USED_UNVERSIONED)
        } else {
            return Err(Error::value(what, "its DLPack capsule is of an unknown kind, or was used before"));
        };
        // SAFETY: the capsule is alive, and the name is static.
        match unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } {
            0 => Ok(lent),
            _ => {
                // Whoever made the capsule still owns its contents.
                std::mem::forget(lent);
                Err(PyErr::fetch(capsule.py()).into())
            }
        }
    }

    /// The tensor, if its version is understood.
    fn tensor(&self, what: &str) -> Result<&Tensor> {
        match self {
            // SAFETY: a capsule of this name points to such a structure, and it is ours until it is given back.
            Lent::Plain(managed) => Ok(&unsafe { managed.as_ref() }.tensor),
            Lent::Versioned(managed) => {
                // SAFETY: a capsule of this name points to a structure whose fields up to `flags` are the same in every
                // version, and it is ours until it is given back.
                let managed = unsafe { managed.as_ref() };
                if managed.major != MAJOR {
                    let found = format!("it comes in version {}.{} of DLPack", managed.major, managed.minor);
                    return Err(Error::value(what, format!("{found}, and version {MAJOR} is understood")));
                }
                Ok(&managed.tensor)
            }
        }
    }

    /// Whether the owner forbids writing. The old structure cannot say so; libraries that use it refuse to lend such
    /// memory.
    fn read_only(&self) -> bool {
        match self {
            Lent::Plain(_) => false,
            // SAFETY: as in `tensor`.
            Lent::Versioned(managed) => unsafe { managed.as_ref() }.flags & READ_ONLY != 0,
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: the structure is given back once, here, and nobody looks at it afterwards.
        unsafe {
            match self {
                Lent::Plain(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
                Lent::Versioned(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
        }
    }
}

/// Where an array's elements lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory that the processor reads.
    Host,
    /// In the memory of the CUDA device of this number.
    Cuda(i32),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Host => f.write_str("the CPU"),
            Place::Cuda(index) => write!(f, "CUDA device {index}"),
        }
    }
}

impl Place {
    fn of(device: &Device, what: &str) -> Result<Self> {
        match device.kind {
            // Pinned memory is the processor's as well.
            CPU | 3 => Ok(Place::Host),
            2 => Ok(Place::Cuda(device.index)),
            other => Err(Error::value(what, format!("it lies on a device of DLPack kind {other}; move it to the CPU"))),
        }
    }
}

/// A borrowed array: row-major, without gaps, aligned, and small enough to address.
pub struct Array {
    what: String,
    data: *mut u8,
    elements: usize,
    shape: Vec<usize>,
    element: Element,
    place: Place,
    read_only: bool,
    /// Dropped last: it owns the memory.
    _lent: Lent,
}

impl Array {
    /// Borrows an array from the object that owns it. `what` names it in complaints. An array on a GPU that will be
    /// used `in_order`, in its owner's own current stream, needs no synchronisation; else its owner sees to it.
    pub fn borrow(object: &Bound<'_, PyAny>, what: impl Into<String>, in_order: bool) -> Result<Self> {
        let what = what.into();
        let capsule = export(object, in_order).map_err(|error| describe(object.py(), error, &what))?;
        let capsule = capsule
            .cast_into::<PyCapsule>()
            .map_err(|_| Error::kind(&what, "its __dlpack__ returned something other than a capsule"))?;
        let lent = Lent::take(&capsule, &what)?;
        let tensor = lent.tensor(&what)?;
        let element = Element::of(&tensor.element).ok_or_else(|| {
            let DataType { code, bits, lanes } = tensor.element;
            Error::kind(&what, format!("its elements are of DLPack type {code} with {bits} bits and {lanes} lanes"))
        })?;
        let place = Place::of(&tensor.device, &what)?;
        let shape = shape_of(tensor, &what)?;
        check_strides(tensor, &shape, &what)?;
        let elements = shape.iter().try_fold(1usize, |all, &side| all.checked_mul(side));
        let elements = elements
            .filter(|&count| count.checked_mul(element.bytes()).is_some_and(|bytes| isize::try_from(bytes).is_ok()))
            .ok_or_else(|| Error::value(&what, format!("its shape {shape:?} is larger than memory")))?;
        let data = first_element(tensor, elements, element, &what)?;
        let read_only = lent.read_only();
        Ok(Self { what, data, elements, shape, element, place, read_only, _lent: lent })
    }

    /// The name under which it was given.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Its elements.
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Where it lies.
    pub fn place(&self) -> Place {
        self.place
    }

    /// The address of its first element, in the memory of wherever it lies.
    pub fn address(&self) -> u64 {
        self.data.addr() as u64
    }

    /// The bytes it takes, as addresses. Empty if there are no elements.
    pub fn addresses(&self) -> std::ops::Range<usize> {
        let start = self.data.addr();
        start..start + self.elements * self.element.bytes()
    }

    /// Rows and columns.
    pub fn matrix_shape(&self) -> Result<(usize, usize)> {
        match self.shape[..] {
            [rows, columns] => Ok((rows, columns)),
            _ => Err(Error::value(
                &self.what,
                format!("it has shape {:?}, where [rows, columns] is expected", self.shape),
            )),
        }
    }

    /// Its elements as bytes.
    pub fn bytes(&self) -> Result<&[u8]> {
        self.expect_host()?;
        self.expect_bytes()?;
        Ok(self.slice())
    }

    /// Refuses elements that are not bytes.
    pub fn expect_bytes(&self) -> Result<()> {
        match self.element {
            Element::U8 => Ok(()),
            other => {
                Err(Error::kind(&self.what, format!("its elements are {}, where uint8 is expected", other.name())))
            }
        }
    }

    /// Its elements as numbers of the type that its owner calls them.
    pub fn values(&self, owner_says: &str) -> Result<hammerhead::format::Values<'_>> {
        self.expect_host()?;
        Ok(match self.number(owner_says)? {
            hammerhead::Output::F16 => self.slice::<f16>().into(),
            hammerhead::Output::BF16 => self.slice::<bf16>().into(),
            hammerhead::Output::F32 => self.slice::<f32>().into(),
        })
    }

    /// Its elements as experts' numbers.
    pub fn ids(&self) -> Result<hammerhead::Ids<'_>> {
        self.expect_host()?;
        Ok(if self.wide_ids()? { hammerhead::Ids::I64(self.slice()) } else { hammerhead::Ids::I32(self.slice()) })
    }

    /// Whether its elements, experts' numbers, have 64 bits, and not 32.
    pub fn wide_ids(&self) -> Result<bool> {
        match self.element {
            Element::I32 => Ok(false),
            Element::I64 => Ok(true),
            other => {
                let found = format!("its elements are {}, where int32 or int64 is expected", other.name());
                Err(Error::kind(&self.what, found))
            }
        }
    }

    /// Refuses another number of elements.
    pub fn expect_len(&self, elements: usize) -> Result<()> {
        if self.elements == elements {
            return Ok(());
        }
        let found = format!("it has {} elements, where {elements} are needed", self.elements);
        Err(Error::value(&self.what, found))
    }

    /// Its elements in single precision.
    pub fn singles(&self) -> Result<&[f32]> {
        self.expect_host()?;
        self.number("float32")?;
        Ok(self.slice())
    }

    /// Its memory as a place for results.
    pub fn target(&mut self, owner_says: &str) -> Result<hammerhead::Target<'_>> {
        self.expect_host()?;
        self.expect_writable()?;
        Ok(match self.number(owner_says)? {
            hammerhead::Output::F16 => hammerhead::Target::F16(self.slice_mut()),
            hammerhead::Output::BF16 => hammerhead::Target::BF16(self.slice_mut()),
            hammerhead::Output::F32 => hammerhead::Target::F32(self.slice_mut()),
        })
    }

    /// Its memory as a place for bytes.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.expect_writable()?;
        self.bytes()?;
        Ok(self.slice_mut())
    }

    /// The type of its numbers. numpy has no bfloat16 of its own and lends such arrays as uint16.
    pub fn number(&self, owner_says: &str) -> Result<hammerhead::Output> {
        match (self.element, owner_says) {
            (Element::F16, "float16") => Ok(hammerhead::Output::F16),
            (Element::BF16 | Element::U16, "bfloat16") => Ok(hammerhead::Output::BF16),
            (Element::F32, "float32") => Ok(hammerhead::Output::F32),
            (found, _) => {
                let found = found.name();
                Err(Error::kind(&self.what, format!("its elements are {found}, but it was announced as {owner_says}")))
            }
        }
    }

    fn expect_host(&self) -> Result<()> {
        match self.place {
            Place::Host => Ok(()),
            elsewhere => {
                Err(Error::value(&self.what, format!("it lies on {elsewhere}, where the CPU's memory is expected")))
            }
        }
    }

    /// Refuses memory whose owner forbids writing.
    pub fn expect_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::value(&self.what, "it is read-only, and results are written to it"));
        }
        Ok(())
    }

    /// The elements as what `element` says they are: every caller has matched on it.
    fn slice<T: Copy>(&self) -> &[T] {
        debug_assert_eq!(size_of::<T>(), self.element.bytes());
        // SAFETY: `borrow` found the pointer aligned and not null and the length within an address space, on the host
        // (`expect_host`); the owner lends that many elements until `_lent` is dropped, and any bits are a value of T.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.elements) }
    }

    fn slice_mut<T: Copy>(&mut self) -> &mut [T] {
        debug_assert_eq!(size_of::<T>(), self.element.bytes());
        // SAFETY: as in `slice`; the owner lets it be written (`expect_writable`), and the caller has seen to it that
        // no other array of the call shares these addresses.
        unsafe { std::slice::from_raw_parts_mut(self.data.cast(), self.elements) }
    }
}

/// Asks an object for its capsule: in the versioned form if it knows that, else in the old one. A capsule is taken as
/// it is.
fn export<'py>(object: &Bound<'py, PyAny>, in_order: bool) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if object.is_instance_of::<PyCapsule>() {
        return Ok(object.clone());
    }
    let options = PyDict::new(py);
    // Who lies on the CPU knows no streams, and may say so by an error.
    if in_order && !lies_on_the_cpu(object) {
        options.set_item("stream", NO_SYNCHRONISATION)?;
    }
    let versioned = options.copy()?;
    versioned.set_item("max_version", (MAJOR, 0))?;
    match object.call_method("__dlpack__", (), Some(&versioned)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method("__dlpack__", (), Some(&options)),
        outcome => outcome,
    }
}

fn lies_on_the_cpu(object: &Bound<'_, PyAny>) -> bool {
    let device = object.call_method0("__dlpack_device__").and_then(|device| device.extract::<(i32, i32)>());
    device.is_ok_and(|(kind, _)| kind == CPU)
}

/// Says which array its owner refused to lend.
fn describe(py: Python<'_>, error: PyErr, what: &str) -> Error {
    if error.is_instance_of::<pyo3::exceptions::PyAttributeError>(py) {
        return Error::kind(what, "it does not speak DLPack; give a numpy array or a torch tensor");
    }
    if error.is_instance_of::<pyo3::exceptions::PyException>(py) {
        return Error::value(what, format!("its owner does not lend it: {}", error.value(py)));
    }
    error.into()
}

fn shape_of(tensor: &Tensor, what: &str) -> Result<Vec<usize>> {
    let wrong = |found: String| Error::value(what, found);
    let dimensions = usize::try_from(tensor.dimensions)
        .ok()
        .filter(|&count| count <= 8)
        .ok_or_else(|| wrong(format!("it has {} dimensions", tensor.dimensions)))?;
    if dimensions == 0 {
        return Ok(Vec::new());
    }
    let shape = NonNull::new(tensor.shape.cast_mut()).ok_or_else(|| wrong("its shape is missing".to_owned()))?;
    // SAFETY: an array of as many dimensions has as many sides.
    let sides = unsafe { std::slice::from_raw_parts(shape.as_ptr(), dimensions) };
    sides.iter().map(|&side| usize::try_from(side).map_err(|_| wrong(format!("its shape is {sides:?}")))).collect()
}

/// Refuses elements that do not follow each other row by row. Strides of sides of length 1 say nothing.
fn check_strides(tensor: &Tensor, shape: &[usize], what: &str) -> Result<()> {
    if tensor.strides.is_null() || shape.contains(&0) {
        return Ok(());
    }
    // SAFETY: strides that are there are as many as there are sides.
    let strides = unsafe { std::slice::from_raw_parts(tensor.strides, shape.len()) };
    let mut expected = Some(1i64);
    for (&side, &stride) in shape.iter().zip(strides).rev() {
        if side != 1 && Some(stride) != expected {
            let found = format!("its strides are {strides:?} for the shape {shape:?}");
            return Err(Error::value(what, format!("{found}; it must be row-major without gaps")));
        }
        expected = expected.and_then(|so_far| so_far.checked_mul(i64::try_from(side).ok()?));
    }
    Ok(())
}

/// The address of the first element; where there is none, one that may stand for an empty slice.
fn first_element(tensor: &Tensor, elements: usize, element: Element, what: &str) -> Result<*mut u8> {
    if elements == 0 {
        return Ok(NonNull::<u64>::dangling().as_ptr().cast());
    }
    let wrong = |found: &str| Error::value(what, found);
    let offset = usize::try_from(tensor.byte_offset).map_err(|_| wrong("its byte offset is larger than memory"))?;
    let address =
        tensor.data.addr().checked_add(offset).ok_or_else(|| wrong("its byte offset is larger than memory"))?;
    if tensor.data.is_null() {
        return Err(wrong("it has elements but no memory"));
    }
    let bytes = elements * element.bytes();
    if address.checked_add(bytes).is_none() {
        return Err(wrong("it ends beyond the end of memory"));
    }
    if !address.is_multiple_of(element.bytes()) {
        return Err(wrong("its elements are not aligned; copy it first"));
    }
    Ok(tensor.data.with_addr(address).cast())
}
