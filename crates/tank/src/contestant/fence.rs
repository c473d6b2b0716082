//! The fence around a contestant's process.
//!
//! - **A process group of its own**, stopped and killed whole. A filter of system calls keeps it whole: `setsid` and
//!   `setpgid` are refused, so no child can leave it.
//! - **No network**: a network namespace with nothing in it, and the filter refuses every socket that is not local.
//! - **No way to others**: a user namespace of its own, from which other processes' memory cannot be opened, and a process
//!   namespace, from which they cannot be signalled; `ptrace` and its kin are refused as well. It dies with the thread of the referee's that started it.
//! - **Limits** on address space, processes and the size of files; no core files.
//!
//! Namespaces need a kernel that grants them to everyone. Where it does not, the filter still stands, and the record says
//! what is missing: [`Fence::remarks`] looks at the process itself and not at what was asked for. It is a fence and not a
//! jail: a contestant runs as the user who runs the tank and sees the same files.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::limits::Limits;

/// What is to be put around a process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fence {
    limits: Option<Limits>,
}

impl Fence {
    /// For anyone's program.
    pub(super) fn around_strangers(limits: &Limits) -> Self {
        Self { limits: Some(limits.clone()) }
    }

    /// For our own code: a process group, and nothing else. GPU drivers need more than strangers may have.
    pub(super) fn around_ourselves() -> Self {
        Self { limits: None }
    }

    /// Puts the fence around what a command will start.
    pub(super) fn put_around(&self, command: &mut Command) {
        command.process_group(0);
        let limits = self.limits.clone();
        // SAFETY: between fork and exec only system calls are made, on memory that was set up before.
        unsafe {
            command.pre_exec(move || system::enclose(limits.as_ref()));
        }
    }

    /// What is not as it should be around a running process.
    pub(super) fn remarks(&self, pid: u32) -> Vec<String> {
        match &self.limits {
            Some(limits) => system::remarks(pid, limits),
            None => Vec::new(),
        }
    }
}

/// Signals a process group: stop, continue or kill it, whole.
pub(super) fn signal(group: u32, signal: libc::c_int) -> io::Result<()> {
    let group = libc::pid_t::try_from(group).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: a plain system call. The group is that of a child that was not waited for yet, so its number is not another's.
    match unsafe { libc::kill(-group, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs;
    use std::io;

    use super::Limits;

    /// Everything between fork and exec.
    pub(super) fn enclose(limits: Option<&Limits>) -> io::Result<()> {
        let Some(limits) = limits else { return die_with_the_referee() };
        let mut spaces = libc::CLONE_NEWUSER | libc::CLONE_NEWIPC | libc::CLONE_NEWPID;
        if !limits.network {
            spaces |= libc::CLONE_NEWNET;
        }
        // SAFETY: a plain system call with numbers, as those below. A kernel that refuses is a remark in the record, not an error.
        let fenced = unsafe { libc::unshare(spaces) } == 0;
        if fenced {
            enter_process_space()?;
        }
        limit(libc::RLIMIT_CORE, 0)?;
        limit(libc::RLIMIT_AS, limits.memory_bytes)?;
        limit(libc::RLIMIT_FSIZE, limits.file_bytes)?;
        if fenced {
            // In a user namespace of its own only its own processes are counted; outside all of the user's would be.
            limit(libc::RLIMIT_NPROC, limits.processes)?;
        }
        die_with_the_referee()?;
        // SAFETY: a plain system call with numbers.
        check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
        filter(limits.network)
    }

    /// Asked for after the namespaces were left, because leaving them forgets it.
    fn die_with_the_referee() -> io::Result<()> {
        // SAFETY: a plain system call with numbers.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })
    }

    /// A process namespace begins with the next child. That child goes on to become the contestant; this process stays outside,
    /// waits for it and ends as it ended. It is the one that the referee knows, and the leader of the group that both are in.
    fn enter_process_space() -> io::Result<()> {
        // SAFETY: this process is itself fresh from a fork and has one thread.
        let child = unsafe { libc::fork() };
        match child {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(()),
            child => {
                die_with_the_referee()?;
                // Nobody in the namespace may open this process and reach out through it.
                // SAFETY: a plain system call with numbers.
                check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) })?;
                stand_by(child)
            }
        }
    }

    /// Waits for the contestant and ends as it did. Keeps no file open: a pipe is closed when the contestant closes it.
    fn stand_by(child: libc::pid_t) -> ! {
        let mut status = 0;
        // SAFETY: plain system calls; this process has nothing else to do and owns no memory that anybody waits for.
        unsafe {
            if libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) != 0 {
                (0..4096).for_each(|file| _ = libc::close(file));
            }
            while libc::waitpid(child, &mut status, 0) != child {}
            if libc::WIFSIGNALED(status) {
                libc::signal(libc::WTERMSIG(status), libc::SIG_DFL);
                libc::kill(libc::getpid(), libc::WTERMSIG(status));
            }
            libc::_exit(libc::WEXITSTATUS(status))
        }
    }

    fn check(result: libc::c_int) -> io::Result<()> {
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn limit(resource: libc::__rlimit_resource_t, most: u64) -> io::Result<()> {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: the limit lives on this stack for as long as the call.
        check(unsafe { libc::setrlimit(resource, &limit) })
    }

    /// Installs the filter of system calls: a short program over the call's number and first argument.
    fn filter(network: bool) -> io::Result<()> {
        const REFUSED: [libc::c_long; 6] = [
            libc::SYS_setsid,
            libc::SYS_setpgid,
            libc::SYS_ptrace,
            libc::SYS_process_vm_writev,
            libc::SYS_process_vm_readv,
            // Its rings make system calls that no filter sees.
            libc::SYS_io_uring_setup,
        ];
        const LENGTH: usize = REFUSED.len() + 12;
        let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
        let give = |value| statement(libc::BPF_RET | libc::BPF_K, value);
        let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        let end = LENGTH - 1;
        // A jump counts from the instruction after it.
        let to = |target: usize, at: usize| (target - at - 1) as u8;
        let mut program = [give(libc::SECCOMP_RET_ALLOW); LENGTH];
        // 0, 1: calls in another machine's numbers are not what they seem.
        program[0] = load(4);
        program[1] = jump(libc::BPF_JEQ, ARCHITECTURE, 0, to(end, 1));
        // 2, 3: nor are those of x32, which have a bit of their own.
        program[2] = load(0);
        program[3] = jump(libc::BPF_JGE, 0x4000_0000, to(end, 3), 0);
        for (index, call) in REFUSED.iter().enumerate() {
            program[4 + index] = jump(libc::BPF_JEQ, *call as u32, to(end, 4 + index), 0);
        }
        let at = 4 + REFUSED.len();
        let allow = end - 1;
        program[at] = jump(libc::BPF_JEQ, libc::SYS_socket as u32, 0, to(allow, at));
        program[at + 1] = load(16);
        program[at + 2] = jump(libc::BPF_JEQ, libc::AF_UNIX as u32, to(allow, at + 2), 0);
        program[at + 3] = give(if network { libc::SECCOMP_RET_ALLOW } else { refuse });
        program[end] = give(refuse);
        let program = libc::sock_fprog { len: LENGTH as u16, filter: program.as_mut_ptr() };
        // SAFETY: the program lives on this stack for as long as the call; the kernel copies and checks it.
        check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) })
    }

    #[cfg(target_arch = "x86_64")]
    const ARCHITECTURE: u32 = 0xC000_003E;
    #[cfg(target_arch = "aarch64")]
    const ARCHITECTURE: u32 = 0xC000_00B7;

    fn statement(code: u32, k: u32) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
    }

    fn jump(condition: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
        libc::sock_filter { code: (libc::BPF_JMP | condition | libc::BPF_K) as u16, jt, jf, k }
    }

    pub(super) fn remarks(pid: u32, limits: &Limits) -> Vec<String> {
        let space = |pid: &str, kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
        let apart =
            |kind: &str| space(&pid.to_string(), kind).is_some_and(|theirs| Some(theirs) != space("self", kind));
        let mut remarks = Vec::new();
        if !apart("user") {
            remarks
                .push("no user namespace here: processes are not counted, other processes are within reach".to_owned());
        }
        if !limits.network && !apart("net") {
            remarks.push(
                "no network namespace here: only the filter of system calls keeps contestants off the network"
                    .to_owned(),
            );
        }
        remarks
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;

    use super::Limits;

    pub(super) fn enclose(limits: Option<&Limits>) -> io::Result<()> {
        let Some(limits) = limits else { return Ok(()) };
        for (resource, most) in [(libc::RLIMIT_CORE, 0), (libc::RLIMIT_FSIZE, limits.file_bytes)] {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            // SAFETY: the limit lives on this stack for as long as the call.
            if unsafe { libc::setrlimit(resource, &limit) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    pub(super) fn remarks(_pid: u32, _limits: &Limits) -> Vec<String> {
        vec!["not Linux: no namespaces and no filter of system calls, so the network is open".to_owned()]
    }
}
