//! The sizes of one product. They stand apart from problems because errors name them.

use std::fmt;

/// The sizes of one group: `m` tokens against `n` columns (rows of each weight matrix), summed over `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Tokens: rows of A and of C. May be zero.
    pub m: usize,
    /// Columns of C: rows of each weight matrix.
    pub n: usize,
    /// The summed dimension, a multiple of 16.
    pub k: usize,
}

impl Shape {
    /// Shorthand for the three sizes in the customary order.
    pub const fn new(m: usize, n: usize, k: usize) -> Self {
        Self { m, n, k }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}×{}", self.m, self.n, self.k)
    }
}
