//! The operation that `hammerhead tank new-operation` writes: softmax over rows, the one of
//! `examples/operations/softmax`.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// One of its files.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// Its name in the folder.
    pub name: &'static str,
    contents: &'static str,
    /// Whether it is a program.
    pub runs: bool,
}

impl File {
    /// What is in it, for an operation of this name.
    pub fn text(&self, name: &str) -> String {
        let named = format!("\nname = {}\n", toml::Value::from(name));
        match self.name {
            super::DESCRIPTION => self.contents.replacen("\nname = \"softmax\"\n", &named, 1),
            _ => self.contents.to_owned(),
        }
    }
}

macro_rules! files {
    ($($name:literal $runs:literal),+ $(,)?) => {
        [$(File { name: $name, contents: include_str!(concat!("../../../../../examples/operations/softmax/", $name)), runs: $runs }),+]
    };
}

/// All of them.
pub const FILES: [File; 10] = files![
    "operation.toml" false,
    "operation.py" true,
    "tank.py" false,
    "contestant.py" true,
    "baseline.c" false,
    "float-exp.c" false,
    "float-exp.toml" false,
    "polynomial.c" false,
    "polynomial.toml" false,
    ".gitignore" false,
];

/// Makes a program of a file.
pub fn make_executable(path: &Path) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(0o755))
}
