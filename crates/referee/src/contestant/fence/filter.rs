//! The filter of system calls: a short program over a call's number and first argument, that the kernel runs before
//! each.

use std::io;

/// What is refused, with the reason why a contestant has no use for it.
const REFUSED: &[libc::c_long] = &[
    // Nobody leaves the process group.
    libc::SYS_setsid,
    libc::SYS_setpgid,
    // Timers that continue whoever is stopped, or fire in such numbers while it is that they take a rival's processor.
    // What waits for files (epoll) stays: without a timer nothing in it fires while all of a contestant stands still.
    libc::SYS_timer_create,
    libc::SYS_timerfd_create,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_writev,
    libc::SYS_process_vm_readv,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Work that the kernel does for whoever is stopped, out of the filter's sight.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_userfaultfd,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    // Other views of the system.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    // Watches of files, of which all processes of a user have a few between them.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_inotify_init,
    libc::SYS_inotify_init1,
    // Memory and messages that no limit counts.
    libc::SYS_memfd_create,
    libc::SYS_memfd_secret,
    libc::SYS_shmget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
];

/// The flags of `clone` that ask for new namespaces.
const NEW_SPACES: u32 = 0x7E02_0000;
/// The flags of `clone` that say which signal tells of a child's end.
const END_SIGNAL: u32 = 0xFF;
/// The option of `prctl` by which a process would outlive the referee.
const SET_DEATH_SIGNAL: u32 = libc::PR_SET_PDEATHSIG as u32;
/// What `fcntl` is told to have another signal sent than the usual when a file can be read or was changed: one that
/// continues whoever is stopped. And to have a lease on a file, a delegation of it, or word of a folder's changes:
/// whoever opens a file on which another has a lease waits for that, 45 seconds where it stands still.
const REFUSED_CONTROLS: [u32; 4] = [10, libc::F_SETLEASE as u32, libc::F_NOTIFY as u32, 1040];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// Which sockets there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sockets {
    None,
    /// Those of the internet's families.
    Internet,
    /// Local ones that reach nobody: NVIDIA's driver gives up unless it can have one, and bind it to a name.
    Mute,
}

impl Sockets {
    /// The network that a season allows decides; then whether there is a GPU. Both at once would be local sockets that
    /// reach others.
    pub(super) fn of(network: bool, gpu: bool) -> Self {
        match (network, gpu) {
            (true, _) => Self::Internet,
            (false, true) => Self::Mute,
            (false, false) => Self::None,
        }
    }

    fn families(self) -> &'static [libc::c_int] {
        match self {
            Self::None => &[],
            Self::Internet => &[libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK],
            Self::Mute => &[libc::AF_UNIX],
        }
    }

    /// What is refused beside the rest.
    fn refused(self) -> &'static [libc::c_long] {
        match self {
            Self::None | Self::Internet => &[],
            Self::Mute => &[libc::SYS_connect, libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_sendmmsg],
        }
    }
}

/// The program.
pub(super) fn program(sockets: Sockets) -> Vec<libc::sock_filter> {
    let refuse = give(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let unknown = give(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
    let allow = give(libc::SECCOMP_RET_ALLOW);
    let (number, machine, argument, second) = (load(0), load(4), load(16), load(24));
    // Calls in another machine's numbers are not what they seem, nor are those of x32, which have a bit of their own.
    let mut program = vec![machine, unless(libc::BPF_JEQ, ARCHITECTURE, 1), jump_over(1), refuse];
    program.extend([number, unless(libc::BPF_JGE, 0x4000_0000, 1), refuse]);
    for call in REFUSED.iter().chain(sockets.refused()) {
        program.extend([unless(libc::BPF_JEQ, *call as u32, 1), refuse]);
    }
    // Its flags lie in memory that no filter sees; libraries fall back to `clone`.
    program.extend([unless(libc::BPF_JEQ, libc::SYS_clone3 as u32, 1), unknown]);
    program.extend([unless(libc::BPF_JEQ, libc::SYS_clone as u32, 9), argument]);
    program.extend([unless(libc::BPF_JSET, NEW_SPACES, 1), refuse]);
    program.push(statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, END_SIGNAL));
    for signal in [0, libc::SIGCHLD as u32] {
        program.extend([unless(libc::BPF_JEQ, signal, 1), allow]);
    }
    program.push(refuse);
    program.push(unless(libc::BPF_JEQ, libc::SYS_fcntl as u32, 2 + 2 * REFUSED_CONTROLS.len() as u8));
    program.push(second);
    for control in REFUSED_CONTROLS {
        program.extend([unless(libc::BPF_JEQ, control, 1), refuse]);
    }
    program.push(allow);
    program.extend([unless(libc::BPF_JEQ, libc::SYS_prctl as u32, 4), argument]);
    program.extend([unless(libc::BPF_JEQ, SET_DEATH_SIGNAL, 1), refuse, allow]);
    let families = sockets.families();
    program.push(unless(libc::BPF_JEQ, libc::SYS_socket as u32, 2 + 2 * families.len() as u8));
    program.push(argument);
    for family in families {
        program.extend([unless(libc::BPF_JEQ, *family as u32, 1), allow]);
    }
    program.extend([refuse, allow]);
    program
}

/// Puts the filter around the calling process, for good. Needs `no_new_privs`.
pub(super) fn bind(program: &[libc::sock_filter]) -> io::Result<()> {
    // The kernel reads the program and does not write it.
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the program lives in the caller's memory for as long as the call; the kernel copies and checks it.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn give(value: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, value)
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Skips so many instructions unless a condition holds.
fn unless(condition: u32, k: u32, skipped: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | condition | libc::BPF_K) as u16, jt: 0, jf: skipped, k }
}

/// Skips so many instructions.
fn jump_over(skipped: u32) -> libc::sock_filter {
    statement(libc::BPF_JMP | libc::BPF_JA, skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would, for a call with an argument, which is its first and its second.
    fn judged(sockets: Sockets, call: libc::c_long, argument: u64) -> u32 {
        let program = program(sockets);
        let (mut at, mut held) = (0, 0u32);
        loop {
            let libc::sock_filter { code, jt: _, jf, k } = program[at];
            let condition = u32::from(code) & 0xF0;
            at += 1;
            match u32::from(code) & 7 {
                libc::BPF_LD => {
                    held = match k {
                        0 => call as u32,
                        4 => ARCHITECTURE,
                        _ => argument as u32,
                    }
                }
                libc::BPF_RET => return k,
                libc::BPF_ALU => held &= k,
                _ if condition == libc::BPF_JA => at += k as usize,
                _ => {
                    let holds = match condition {
                        libc::BPF_JEQ => held == k,
                        libc::BPF_JGE => held >= k,
                        _ => held & k != 0,
                    };
                    at += if holds { 0 } else { usize::from(jf) };
                }
            }
        }
    }

    #[test]
    fn what_is_refused_is_refused_and_what_everyone_needs_is_not() {
        let (allowed, refused) = (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
        for sockets in [Sockets::None, Sockets::Internet, Sockets::Mute] {
            for call in REFUSED {
                assert_eq!(judged(sockets, *call, 0), refused, "{call}");
            }
            for call in [libc::SYS_read, libc::SYS_mmap, libc::SYS_futex, libc::SYS_execve, libc::SYS_socketpair] {
                assert_eq!(judged(sockets, call, 0), allowed, "{call}");
            }
            assert_eq!(judged(sockets, libc::SYS_clone, libc::CLONE_VM as u64), allowed);
            assert_eq!(judged(sockets, libc::SYS_clone, libc::CLONE_NEWUSER as u64), refused);
            assert_eq!(judged(sockets, libc::SYS_clone, libc::SIGCHLD as u64), allowed);
            assert_eq!(judged(sockets, libc::SYS_clone, libc::SIGCONT as u64), refused);
            assert_eq!(judged(sockets, libc::SYS_fcntl, libc::F_SETFL as u64), allowed);
            for control in REFUSED_CONTROLS {
                assert_eq!(judged(sockets, libc::SYS_fcntl, u64::from(control)), refused, "{control}");
            }
            assert_eq!(judged(sockets, libc::SYS_prctl, libc::PR_SET_NAME as u64), allowed);
            assert_eq!(judged(sockets, libc::SYS_prctl, libc::PR_SET_PDEATHSIG as u64), refused);
        }
        let families = [libc::AF_INET, libc::AF_UNIX, libc::AF_VSOCK].map(|family| family as u64);
        let judged_families = |sockets| families.map(|family| judged(sockets, libc::SYS_socket, family));
        assert_eq!(judged_families(Sockets::None), [refused; 3]);
        assert_eq!(judged_families(Sockets::Internet), [allowed, refused, refused]);
        assert_eq!(judged_families(Sockets::Mute), [refused, allowed, refused]);
        for call in [libc::SYS_connect, libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_sendmmsg] {
            assert_eq!(judged(Sockets::Mute, call, 0), refused, "{call}");
        }
        assert_eq!(judged(Sockets::Mute, libc::SYS_bind, 0), allowed);
        assert_eq!([Sockets::of(true, true), Sockets::of(false, true)], [Sockets::Internet, Sockets::Mute]);
    }
}
