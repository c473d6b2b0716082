//! Everything that can go wrong with an operation, each with what was found and what to do about it.

use crate::{Config, Shape};

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a crate that stands beside this one.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why an operation was refused or could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes of a matrix or a file are not what they should be.
    #[error(transparent)]
    Format(#[from] format::Error),

    /// A problem needs something to compute.
    #[error("the problem has no groups; give at least one (a group may have no tokens)")]
    NoGroups,

    /// A weight matrix needs rows.
    #[error("group {group} has no columns (n = 0); a weight matrix needs at least one row")]
    NoColumns {
        /// The group.
        group: usize,
    },

    /// NVFP4 stores K in blocks of 16.
    #[error("group {group} has k = {k}; k must be a positive multiple of 16, pad both operands with zeros")]
    K {
        /// The group.
        group: usize,
        /// Its k.
        k: usize,
    },

    /// The sizes cannot be addressed.
    #[error("group {group} ({shape}) brings the problem beyond what memory can address; split it")]
    TooLarge {
        /// The group at which the total overflowed.
        group: usize,
        /// Its sizes.
        shape: Shape,
    },

    /// A gate's parameter makes no sense.
    #[error("the {gate} gate's {name} is {value}; it must be {rule}")]
    GateParameter {
        /// The gate's name.
        gate: &'static str,
        /// The parameter's name.
        name: &'static str,
        /// What was given.
        value: f64,
        /// What it must be.
        rule: &'static str,
    },

    /// Gate and up are not of one shape.
    #[error("the up matrix (b2) is [{}, {}] but the gate matrix (b1) is [{}, {}]; they must be alike", up.0, up.1, gate.0, gate.1)]
    GateAndUp {
        /// Rows and k of the gate matrix.
        gate: (usize, usize),
        /// Rows and k of the up matrix.
        up: (usize, usize),
    },

    /// Scales of one row of an FP8 matrix that are too far apart.
    #[error(
        "row {row} of an FP8 matrix has scales that span {span} powers of two, and {most} can be computed with; expand this matrix"
    )]
    Fp8Spread {
        /// The row.
        row: usize,
        /// The powers of two between its least and its largest scale.
        span: i32,
        /// How many there may be.
        most: i32,
    },

    /// A model that adds more than this operation does.
    #[error("{name} adds biases to its sums, and this operation has none; compute this layer elsewhere")]
    Bias {
        /// The gated pair.
        name: String,
    },

    /// Adapters of a layer whose intermediate is NVFP4.
    #[error(
        "adapters add to numbers that an NVFP4 intermediate does not keep; take 'tokens' or 'f32' between the products"
    )]
    AdaptedIntermediate,

    /// Two operands of one group do not fit together.
    #[error("group {group}: {what} is {found} but {expected} was expected; check which tensors belong together")]
    Mismatch {
        /// The group.
        group: usize,
        /// What was compared.
        what: &'static str,
        /// What was got.
        found: String,
        /// What was needed.
        expected: String,
    },

    /// A value that no sum of its row survives, where one was looked for.
    #[error("group {group}: the activation at row {row}, column {column} is {value}; activations must be finite")]
    NotFinite {
        /// The group.
        group: usize,
        /// Its row.
        row: usize,
        /// Its column.
        column: usize,
        /// The value.
        value: f32,
    },

    /// An input scale that does not belong to its weights.
    #[error("the input scale has {length} numbers for weights of k = {k}; it has one per column of the tokens")]
    InputScaleLength {
        /// How many there are.
        length: usize,
        /// The weights' k.
        k: usize,
    },

    /// An input scale that no token survives.
    #[error("the input scale's number for column {column} is {value}; they must be finite")]
    InputScaleValue {
        /// The column.
        column: usize,
        /// The number.
        value: f32,
    },

    /// Biases for another number of matrices.
    #[error("there are {found} biases for {expected} weight matrices; give one per matrix, or none")]
    BiasCount {
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },

    /// A bias that does not belong to its matrix.
    #[error("the bias of {matrix} has {length} numbers for a matrix of {n} rows; it has one per row")]
    BiasLength {
        /// The matrix.
        matrix: &'static str,
        /// How many there are.
        length: usize,
        /// The matrix's rows.
        n: usize,
    },

    /// A bias that no sum survives.
    #[error("the bias of {matrix} is {value} in column {column}; biases must be finite")]
    BiasValue {
        /// The matrix.
        matrix: &'static str,
        /// The column.
        column: usize,
        /// The number.
        value: f32,
    },

    /// Parts of an MLP, or of a layer of experts, that do not fit together.
    #[error("{what} has {found}; expected is {expected}: check which tensors belong together")]
    Mlp {
        /// Which part.
        what: &'static str,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },

    /// More experts per token than there are, or none.
    #[error("top-k is {top_k} of {experts} experts; it must be at least 1 and at most the number of experts")]
    TopK {
        /// Experts per token.
        top_k: usize,
        /// Experts that there are.
        experts: usize,
    },

    /// A tensor of a router's that has another length.
    #[error("{tensor} has {found} numbers, but {expected} were expected; check its shape and the number of experts")]
    RoutingLength {
        /// The tensor.
        tensor: &'static str,
        /// How many there are.
        found: usize,
        /// How many there should be, and why.
        expected: String,
    },

    /// A number of a router's that is not one.
    #[error("{tensor}: {value} at row {row}, column {column}; it must be finite")]
    RoutingValue {
        /// The tensor.
        tensor: &'static str,
        /// The row.
        row: usize,
        /// The column.
        column: usize,
        /// The number.
        value: f32,
    },

    /// Groups of experts that cannot be.
    #[error(
        "{count} groups of {experts} experts, of which {best} may be chosen from, for a top-k of {top_k}: groups must divide the experts, and those chosen from must hold top-k of them"
    )]
    RoutingGroups {
        /// Groups that there are.
        count: usize,
        /// Groups that may be chosen from.
        best: usize,
        /// Experts that there are.
        experts: usize,
        /// Experts per token.
        top_k: usize,
    },

    /// Logits for a layer whose experts they do not tell.
    #[error(
        "a table chooses this layer's experts by the token's number, and logits only weigh them; give ids, and the weights that the routing makes of logits for these"
    )]
    RoutingTable,

    /// Something that a routing has no use for.
    #[error(
        "{option} is given for the routing '{routing}', which has no use for it; leave it out, or route by 'sigmoid'"
    )]
    RoutingOption {
        /// What was given.
        option: &'static str,
        /// The routing's name.
        routing: String,
    },

    /// Tokens and experts for another number of tokens.
    #[error("there are {tokens} tokens, and experts for {routed}; give ids and weights, or logits, of as many rows")]
    RoutedTokens {
        /// Tokens.
        tokens: usize,
        /// Rows of the routing.
        routed: usize,
    },

    /// Results that do not depend on the batch, from a backend that cannot promise it.
    #[error(
        "backend '{backend}' cannot compute batch-invariant layers; force a CPU backend, as with HAMMERHEAD_BACKEND=avx2"
    )]
    BatchInvariant {
        /// The backend.
        backend: &'static str,
    },

    /// A file that no packed layer can be had from.
    #[error("{path:?}: {problem}; {remedy}")]
    LayerFile {
        /// The file.
        path: std::path::PathBuf,
        /// What was found.
        problem: String,
        /// What to do.
        remedy: &'static str,
    },

    /// Tokens that cannot be multiplied column by column.
    #[error(
        "group {group}: its tokens are NVFP4, and its weights want them multiplied with an input scale before they are quantised; give dense tokens (f16, bf16, f32), or quantise the products and load the weights without the input scale"
    )]
    QuantizedTokens {
        /// The group.
        group: usize,
    },

    /// FP8 tokens where there are none.
    #[error("precision fp8: {reason}")]
    Fp8Tokens {
        /// Why not, and what to do.
        reason: String,
    },

    /// MXFP4 weights whose codes times scales are no f16, with tokens that are such.
    #[error(
        "{tokens} tokens are multiplied as f16 or less, and these MXFP4 weights have scales over more powers of two than f16 holds (25): give bf16 or f32 tokens, exactly, with intermediate=tokens or f32"
    )]
    WideScales {
        /// The tokens' type.
        tokens: String,
    },

    /// FP8 weights in anything but a plain product of exact tokens.
    #[error(
        "weights in {scaling} are for plain products (gate 'none') of tokens that are not rounded, one layer at a time"
    )]
    Fp8Weights {
        /// The weights' kind.
        scaling: format::Scaling,
    },

    /// An NVFP4 intermediate before weights that want it multiplied first.
    #[error(
        "expert {expert}: its down projection has an input scale, and an nvfp4 intermediate is not multiplied with one before it is quantised; take intermediate=tokens or f32, or load the weights without the input scale"
    )]
    ScaledIntermediate {
        /// The expert.
        expert: usize,
    },

    /// A name that is not in the list.
    #[error("unknown {what} '{name}'; known: {known}")]
    UnknownName {
        /// What kind of name.
        what: &'static str,
        /// The name given.
        name: String,
        /// The names that would do.
        known: String,
    },

    /// A backend that cannot run here.
    #[error("backend '{backend}' is not available: {reason}; {remedy}")]
    Unavailable {
        /// The backend.
        backend: &'static str,
        /// Why.
        reason: String,
        /// What to do.
        remedy: String,
    },

    /// A configuration that a backend cannot run for this problem.
    #[error("backend '{backend}' refuses {config}: {reason}")]
    Illegal {
        /// The backend.
        backend: &'static str,
        /// The configuration.
        config: Box<Config>,
        /// Why, and what would be legal.
        reason: String,
    },

    /// A configuration written so that it cannot be read.
    #[error("cannot read '{entry}' of a configuration: {reason}")]
    ConfigSyntax {
        /// The part that could not be read.
        entry: String,
        /// Why, and what would be read.
        reason: String,
    },

    /// Weights laid out for something else.
    #[error("these weights were prepacked for {found}, but backend '{backend}' needs {expected}; prepack them again")]
    Layout {
        /// The backend.
        backend: &'static str,
        /// The layout that came.
        found: &'static str,
        /// The layout it reads.
        expected: &'static str,
    },

    /// A call that its caller wanted to end.
    #[error("the call was interrupted; what it has written of its results is not to be used")]
    Interrupted,

    /// Memory could not be had.
    #[error("cannot allocate {bytes} bytes for {what}: {source}; free memory or split the problem")]
    Memory {
        /// How much.
        bytes: usize,
        /// For what.
        what: &'static str,
        /// The system's word.
        source: std::io::Error,
    },

    /// A thread count that makes no sense.
    #[error("cannot use {threads} threads: {reason}")]
    Threads {
        /// What was asked.
        threads: usize,
        /// Why not.
        reason: String,
    },

    /// The tuning cache could not be written.
    #[error("cannot write the tuning cache {}: {source}; name another folder with HAMMERHEAD_TUNING, or `off`", path.display())]
    Tuning {
        /// The file or folder.
        path: std::path::PathBuf,
        /// The system's word.
        source: std::io::Error,
    },

    /// A kernel that cannot be built, or that the hardware would refuse.
    #[error(transparent)]
    Kernel(Cause),

    /// The CUDA driver refused a call, or the device failed.
    #[error(
        "the CUDA driver's {call} failed: {name} ({text}); free device memory or split the problem if it is that, else see whether nvidia-smi still lists the GPU"
    )]
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's name for what went wrong.
        name: String,
        /// The driver's words.
        text: String,
    },

    /// Memory of the host that cannot be held in its place.
    #[error(
        "{bytes} bytes of the host's memory cannot be pinned for {what}; raise the limit of locked memory (ulimit -l), free some, or give calls fewer tokens"
    )]
    Pinned {
        /// Bytes that were asked for.
        bytes: usize,
        /// What for.
        what: &'static str,
    },

    /// Experts on the host whose rows could not be computed when a device asked for them.
    #[error(
        "the host could not compute the rows of its experts in an earlier call, whose results are NaN where they needed them: {reason}"
    )]
    Away {
        /// What went wrong.
        reason: String,
    },

    /// A device's memory could not be had.
    #[error(
        "device {device} has {free} of {total} bytes free and {bytes} are needed for {what}; free memory of the device, or split the problem"
    )]
    DeviceMemory {
        /// How much.
        bytes: usize,
        /// For what.
        what: &'static str,
        /// The device.
        device: usize,
        /// Bytes that are free.
        free: usize,
        /// Bytes that there are.
        total: usize,
    },

    /// An address at which an operand cannot be.
    #[error("group {group}: the address of {what}, {address:#x}, {reason}; {remedy}")]
    Pointer {
        /// The group.
        group: usize,
        /// Which operand.
        what: &'static str,
        /// The address.
        address: u64,
        /// What is wrong with it.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },

    /// A stream of another device or context.
    #[error(
        "stream {handle:#x} does not belong to the primary context of device {device}; open the queue on the stream's device, and make streams with CUDA's runtime or in that context"
    )]
    Stream {
        /// The stream.
        handle: u64,
        /// The device it was to be used on.
        device: usize,
    },

    /// Something that cannot be done while a graph is captured.
    #[error(
        "the stream is being captured in a graph, and {what}; compute once with the same shapes before the capture"
    )]
    Capture {
        /// What must be done.
        what: &'static str,
    },

    /// A call that was prepared and is so no longer.
    #[error("this call is no longer prepared: its layer is gone, or other calls took its place; prepare it again")]
    Forgotten,

    /// The CUDA driver's compiler refused a kernel.
    #[error("the CUDA driver cannot compile kernel {kernel}: {name} ({text}); {remedy}. It says: {log}")]
    Jit {
        /// The kernel.
        kernel: String,
        /// The driver's name for what went wrong.
        name: String,
        /// The driver's words.
        text: String,
        /// What to do.
        remedy: &'static str,
        /// Its compiler's words.
        log: String,
    },

    /// A simulated kernel broke a rule of the machine.
    #[error(transparent)]
    Fault(Cause),

    /// A simulated kernel left part of its result unwritten.
    #[error("the kernels ended without writing byte {first} of the result; that is a fault in them, please report it")]
    Unwritten {
        /// The first byte.
        first: usize,
    },
}
