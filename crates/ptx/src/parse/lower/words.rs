//! The words of an opcode, taken one by one: whatever is left over in the end was not understood.

use crate::print;
use crate::types::{DataType, Scope, Space};

/// The words behind an opcode's dots that nobody has taken yet.
pub(super) struct Words<'t> {
    left: Vec<&'t str>,
}

impl<'t> Words<'t> {
    pub(super) fn new(modifiers: &[&'t str]) -> Self {
        Words { left: modifiers.to_vec() }
    }

    /// Whether all were understood.
    pub(super) fn done(&self) -> bool {
        self.left.is_empty()
    }

    /// Whether a word is there.
    pub(super) fn has(&self, word: &str) -> bool {
        self.left.contains(&word)
    }

    /// Takes a word if it is there.
    pub(super) fn take(&mut self, word: &str) -> bool {
        match self.left.iter().position(|left| *left == word) {
            Some(at) => {
                self.left.remove(at);
                true
            }
            None => false,
        }
    }

    /// Takes the first word that a function understands.
    pub(super) fn find<T>(&mut self, understand: impl Fn(&'t str) -> Option<T>) -> Option<T> {
        let (at, found) = self.left.iter().enumerate().find_map(|(at, word)| Some((at, understand(word)?)))?;
        self.left.remove(at);
        Some(found)
    }

    /// Takes the first word of a table.
    pub(super) fn pick<T: Copy>(&mut self, table: &[(&str, T)]) -> Option<T> {
        self.find(|word| table.iter().find(|(name, _)| *name == word).map(|(_, value)| *value))
    }

    /// Takes the last word, if a function understands it.
    pub(super) fn last<T>(&mut self, understand: impl Fn(&'t str) -> Option<T>) -> Option<T> {
        let found = understand(self.left.last()?)?;
        self.left.pop();
        Some(found)
    }

    /// The type that arithmetic names last.
    pub(super) fn number(&mut self) -> Option<DataType> {
        self.last(number)
    }

    /// The type that moves name last, of which the width counts.
    pub(super) fn bits(&mut self) -> Option<DataType> {
        self.last(|word| untyped(word).or_else(|| number(word)))
    }

    /// The type that logic names last: bits, and no numbers.
    pub(super) fn untyped(&mut self) -> Option<DataType> {
        self.last(untyped)
    }

    /// A window of memory.
    pub(super) fn space(&mut self) -> Option<Space> {
        self.pick(&[
            ("global", Space::Global),
            ("shared", Space::Shared),
            ("shared::cta", Space::Shared),
            ("shared::cluster", Space::Cluster),
        ])
    }

    /// Who takes part.
    pub(super) fn scope(&mut self) -> Option<Scope> {
        let all = [Scope::Block, Scope::Cluster, Scope::Gpu, Scope::System];
        self.find(|word| all.into_iter().find(|scope| print::scope(*scope) == word))
    }
}

/// Bits by the word for them.
fn untyped(word: &str) -> Option<DataType> {
    match word {
        "b16" => Some(DataType::U16),
        "b32" => Some(DataType::U32),
        "b64" => Some(DataType::U64),
        _ => None,
    }
}

/// A type by its name.
fn number(word: &str) -> Option<DataType> {
    DataType::ALL.into_iter().find(|ty| print::suffix(*ty) == word)
}
