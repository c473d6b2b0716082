//! How to compute a problem, and nothing that changes the result beyond rounding.

use std::fmt;

use crate::Own;

/// The order in which the two products of a dual GEMM are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Strategy {
    /// Two whole GEMMs, then the gate over their results.
    TwoPass,
    /// A tile's gate product over all of K, then its up product, then the gate.
    Sequential,
    /// Both products at every step of K: the tokens are read once.
    Interleaved,
    /// As interleaved, with the next panel's dequantisation between the products of this one.
    PingPong,
}

impl Strategy {
    /// Every strategy, simplest first.
    pub const ALL: [Strategy; 4] = [Strategy::TwoPass, Strategy::Sequential, Strategy::Interleaved, Strategy::PingPong];
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Strategy::TwoPass => "two-pass",
            Strategy::Sequential => "sequential",
            Strategy::Interleaved => "interleaved",
            Strategy::PingPong => "ping-pong",
        })
    }
}

/// The part of C that one worker computes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tile {
    /// Rows of C.
    pub tokens: usize,
    /// Columns of C (of each of the two products).
    pub columns: usize,
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.tokens, self.columns)
    }
}

/// How finished values get to C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Epilogue {
    /// Each piece is written as soon as it is finished.
    Direct,
    /// Pieces are gathered in fast memory first and written as longer runs.
    Staged,
}

impl Epilogue {
    /// Every epilogue, simplest first.
    pub const ALL: [Epilogue; 2] = [Epilogue::Direct, Epilogue::Staged];
}

impl fmt::Display for Epilogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Epilogue::Direct => "direct",
            Epilogue::Staged => "staged",
        })
    }
}

/// Who computes which tile, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Schedule {
    /// A worker for each tile: a block of its own on a GPU; on a CPU, the next thread that is free.
    PerTile,
    /// As many workers as the machine has room for, each with its share of the tiles, settled beforehand.
    Persistent,
    /// Two workers a tile, each with half of K.
    SplitK,
}

impl Schedule {
    /// Every schedule, simplest first.
    pub const ALL: [Schedule; 3] = [Schedule::PerTile, Schedule::Persistent, Schedule::SplitK];
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Schedule::PerTile => "tile",
            Schedule::Persistent => "persistent",
            Schedule::SplitK => "split-k",
        })
    }
}

/// How to compute: complete, and legal for a problem once a backend's `check` has said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Config {
    /// The order of the two products.
    pub strategy: Strategy,
    /// The part of C computed at a time.
    pub tile: Tile,
    /// How much of K is dequantised at a time.
    pub depth: usize,
    /// How many such dequantised panels are held.
    pub stages: usize,
    /// How finished values get to C.
    pub epilogue: Epilogue,
    /// Who computes which tile.
    pub schedule: Schedule,
    /// What only the backend that computes understands.
    pub own: Own,
}

impl fmt::Display for Config {
    /// What a request reads back as this configuration.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { strategy, tile, depth, stages, epilogue, schedule, own } = self;
        let own: String = own.iter().map(|(key, value)| format!(",{key}={value}")).collect();
        f.pad(&format!(
            "strategy={strategy},tile={tile},depth={depth},stages={stages},epilogue={epilogue},schedule={schedule}{own}"
        ))
    }
}
