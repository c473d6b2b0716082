//! The fence where there is no Linux: a process group, and limits on the size of files. The record says what is
//! missing.

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::{Fence, Guard, Stillness};

/// A fence that is ready to be entered.
#[derive(Debug)]
pub(in crate::contestant) struct Enclosure {
    strict: bool,
}

/// Puts what there is around what a command will start.
pub(in crate::contestant) fn enclose(
    command: &mut Command,
    fence: &Fence,
    inherited: Vec<RawFd>,
) -> io::Result<Enclosure> {
    command.process_group(0);
    let file_bytes = match fence {
        Fence::Ours => None,
        Fence::Strangers(rules) => Some(rules.limits.file_bytes),
    };
    // SAFETY: between fork and exec only system calls are made, on memory that was set up before.
    unsafe {
        command.pre_exec(move || {
            for file in &inherited {
                libc::fcntl(*file, libc::F_SETFD, 0);
            }
            for (resource, most) in file_bytes
                .map_or([None; 2], |most| [Some((libc::RLIMIT_CORE, 0)), Some((libc::RLIMIT_FSIZE, most))])
                .into_iter()
                .flatten()
            {
                let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
                libc::setrlimit(resource, &limit);
            }
            Ok(())
        });
    }
    Ok(Enclosure { strict: file_bytes.is_some() })
}

impl Enclosure {
    /// What stops the process that was started, and what stands around it: nothing.
    pub(in crate::contestant) fn close(self, group: u32) -> (Stillness, Vec<Guard>) {
        let missing = Guard {
            name: "Linux".to_owned(),
            present: false,
            without: "no namespaces, no Landlock, no filter, no freezer: a contestant can do whatever its user can"
                .to_owned(),
        };
        (Stillness::new(group), self.strict.then_some(missing).into_iter().collect())
    }
}
