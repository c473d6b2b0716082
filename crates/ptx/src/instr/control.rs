//! Flow of control, register budgets, and ordering between grids.

/// A place in a kernel's body that branches can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label(pub u32);

/// Which way `setmaxnreg` changes a warp's register budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegisterChange {
    /// Take registers from the block's pool, waiting until there are enough.
    Increase,
    /// Give registers to the pool.
    Decrease,
}

/// Flow of control and of resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Marks a place. Does nothing.
    Label(Label),
    /// Goes to a label.
    Branch {
        /// Where to.
        target: Label,
        /// The program promises that all active lanes agree (`bra.uni`).
        uniform: bool,
    },
    /// Ends the thread.
    Exit,
    /// Reports a failure of the kernel to the host.
    Trap,
    /// Sets the warp's register budget per thread. Every warp of a warpgroup executes the same one.
    SetMaxRegisters {
        /// Up or down.
        change: RegisterChange,
        /// A multiple of 8 in 24..=256.
        count: u32,
    },
    /// Waits until the grids this one depends on have finished and their writes are visible.
    GridDependencyWait,
    /// Allows dependent grids to be launched.
    LaunchDependents,
}

/// An instruction of a text that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Its opcode with all modifiers.
    pub opcode: String,
    /// All of it, as it is written.
    pub text: String,
    /// What would have been understood in its place, where that can be said.
    pub wanted: Option<String>,
}
