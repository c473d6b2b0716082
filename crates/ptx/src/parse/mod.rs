//! Kernels from text: anybody's PTX, as far as [`Kernel`] can say it.
//!
//! Two layers. The first makes a tree of the text by the grammar alone: functions, blocks with names of their own,
//! instructions as words and operands, each with its place. The second *lowers* one entry to a [`Kernel`]: names
//! become registers, labels and places in memory, and each instruction becomes a value by the table of its family,
//! the reverse of the one in `print`. What `print` writes is read back as it was.
//!
//! Texts come from strangers. One that is no PTX gets an [`Error::Text`] with line, column, what was found and what
//! was expected; an instruction that is not understood becomes an [`Unknown`](crate::instr::Unknown) with its line,
//! which can be carried about and not be executed. Nothing here panics, recurses without a limit, or takes more
//! memory than a small multiple of the text.
//!
//! ```
//! use ptx::parse::{Module, Shape};
//!
//! let text = "
//!     .version 8.0
//!     .target sm_80
//!     .address_size 64
//!     .visible .entry clear(.param .u64 to) .reqntid 32 {
//!         .reg .b64 %to;
//!         .reg .b32 %zero;
//!         ld.param.u64 %to, [to];
//!         mov.u32 %zero, 0;
//!         st.global.u32 [%to], %zero;
//!         ret;
//!     }";
//! let module = Module::read(text)?;
//! let kernel = module.kernel("clear", Shape::default())?;
//! assert_eq!((kernel.body.len(), kernel.launch.threads), (4, 32));
//! let torn = Module::read(".version 8.0 .entry clear( {").unwrap_err();
//! assert_eq!(torn.to_string(), "line 1, column 28: found `{`; expected a parameter, such as .param .b64 name");
//! # Ok::<(), ptx::Error>(())
//! ```

mod lexer;
mod lower;
mod reader;
mod syntax;

use crate::error::Error;
use crate::kernel::Kernel;

/// A module as it is written, ready to give its kernels.
#[derive(Debug)]
pub struct Module<'t> {
    text: &'t str,
    read: reader::Read<'t>,
}

/// How an entry will be launched: what a kernel is made for, and a text leaves open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Threads of a block along x, y and z; what `.reqntid` says if `None`.
    pub block: Option<[u32; 3]>,
    /// Blocks of a cluster along x, y and z; what `.reqnctapercluster` says if `None`.
    pub cluster: Option<[u32; 3]>,
    /// Bytes of shared memory behind the variables that the text declares.
    pub dynamic_shared: u32,
    /// Whether the launch is a cooperative one: all blocks run at the same time, and may wait for each other.
    pub cooperative: bool,
}

impl<'t> Module<'t> {
    /// Reads a text. Zeros at its end are left out: some compilers write theirs with the one that ends a C string.
    pub fn read(text: &'t str) -> Result<Self, Error> {
        let text = text.trim_end_matches('\0');
        Ok(Module { text, read: reader::read(text)? })
    }

    /// The names of its kernels.
    pub fn entries(&self) -> Vec<&'t str> {
        self.read.functions.iter().filter(|function| function.entry).map(|function| function.name.text).collect()
    }

    /// The name of its kernel, if there is one and no more.
    pub fn only_entry(&self) -> Result<&'t str, Error> {
        match self.entries()[..] {
            [only] => Ok(only),
            [] => Err(lexer::refuse(self.text, 0, "no kernel", "a text with an .entry")),
            ref entries => {
                let found = format!("the entries {}", entries.join(", "));
                Err(lexer::refuse(self.text, 0, &found, "the name of one of them, as `entry`"))
            }
        }
    }

    /// One of its kernels, for a launch.
    pub fn kernel(&self, entry: &str, shape: Shape) -> Result<Kernel, Error> {
        let found = self.read.functions.iter().find(|function| function.entry && function.name.text == entry);
        match found {
            Some(function) => lower::lower(self.text, &self.read, function, shape),
            None => {
                let wanted = match self.entries()[..] {
                    [] => "a text with an .entry".to_string(),
                    ref entries => format!("one of its entries: {}", entries.join(", ")),
                };
                Err(lexer::refuse(self.text, 0, entry, wanted))
            }
        }
    }
}
