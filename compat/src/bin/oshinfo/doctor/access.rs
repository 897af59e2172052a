// SPDX-License-Identifier: Apache-2.0
//! CMA: whether a process may copy from the memory of another one.

use super::{Finding, Grade, Machine};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pause};
use std::io;

const SCOPE: &str = "proc/sys/kernel/yama/ptrace_scope";
/// What the second child ends with when the copy was wrong.
const WRONG: i32 = 255;

pub fn findings(machine: &Machine) -> Vec<Finding> {
    let scope = machine.number(SCOPE);
    let known = match scope {
        None => "no Yama".to_owned(),
        Some(scope) => format!("ptrace_scope {scope}"),
    };
    let refused = machine.is_live().then(try_copy).and_then(Result::err);
    vec![judged(machine, known, scope, refused)]
}

fn judged(
    machine: &Machine,
    known: String,
    scope: Option<u64>,
    refused: Option<io::Error>,
) -> Finding {
    let effect = "large copies between PEs of a host have one way less, and static data that cannot be \
                  mapped (SHMEM_STATIC) is not reached";
    let scope_says_no = scope.is_some_and(|scope| scope >= 2);
    let state = match (&refused, machine.is_live()) {
        (Some(why), _) => {
            format!("a process may not copy from another one of its user: {why} ({known})")
        }
        (None, true) => format!("a process copied from another one of its user ({known})"),
        (None, false) => known,
    };
    if refused.is_none() && (machine.is_live() || !scope_says_no) {
        return Finding::good("CMA", state);
    }
    let change: &[&str] = match (scope_says_no, refused.and_then(|why| why.raw_os_error())) {
        (true, _) => {
            &["sysctl -w kernel.yama.ptrace_scope=1   # 3 stays until the machine is started anew"]
        }
        (_, Some(libc::ENOSYS)) => &["# a kernel with CONFIG_CROSS_MEMORY_ATTACH"],
        _ => &[
            "# in a container: docker run --cap-add=SYS_PTRACE, or a seccomp profile with process_vm_readv",
        ],
    };
    Finding::new("CMA", Grade::Slow, state, effect, change)
}

/// Has one child copy from another, which has permitted it as PEs do.
fn try_copy() -> io::Result<()> {
    let value: u64 = 0x746f_6d62_6f6c_6f21;
    let at = &raw const value;
    let [ready, told] = nix::unistd::pipe().map(|(read, write)| [read, write])?;
    // SAFETY: this process has one thread, and the child makes system calls only.
    let source = match unsafe { fork() }? {
        ForkResult::Child => {
            // SAFETY: a prctl without memory arguments.
            unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
            let _ = nix::unistd::write(&told, b"!");
            loop {
                pause();
            }
        }
        ForkResult::Parent { child } => child,
    };
    let outcome = copy_by_child(source, at, &ready);
    let _ = kill(source, Signal::SIGKILL);
    let _ = waitpid(source, None);
    outcome
}

fn copy_by_child(source: Pid, at: *const u64, ready: &std::os::fd::OwnedFd) -> io::Result<()> {
    let mut byte = [0];
    nix::unistd::read(ready, &mut byte)?;
    // SAFETY: as above.
    let reader = match unsafe { fork() }? {
        ForkResult::Child => {
            let mut copy = 0u64;
            let local = libc::iovec { iov_base: (&raw mut copy).cast(), iov_len: 8 };
            let remote = libc::iovec { iov_base: at.cast_mut().cast(), iov_len: 8 };
            // SAFETY: `copy` is writable for 8 bytes; the kernel checks the other side.
            let got = unsafe { libc::process_vm_readv(source.as_raw(), &local, 1, &remote, 1, 0) };
            // SAFETY: both children began as copies of this process, so the value is here as well.
            let expected = unsafe { at.read() };
            let code = match got {
                8 if copy == expected => 0,
                8 => WRONG,
                _ => io::Error::last_os_error().raw_os_error().unwrap_or(WRONG),
            };
            // SAFETY: ends the child at once, without exit handlers of the parent.
            unsafe { libc::_exit(code) }
        }
        ForkResult::Parent { child } => child,
    };
    match waitpid(reader, None)? {
        WaitStatus::Exited(_, 0) => Ok(()),
        WaitStatus::Exited(_, WRONG) => Err(io::Error::other("the copy was wrong")),
        WaitStatus::Exited(_, code) => Err(io::Error::from_raw_os_error(code)),
        other => Err(io::Error::other(format!("a trial ended unexpectedly: {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::Copy;
    use super::*;

    #[test]
    fn a_scope_that_forbids_is_told_with_the_command_that_allows() {
        let copy = Copy::of("scope", &[(SCOPE, "2\n")]);
        let finding = findings(&copy.machine()).remove(0);
        assert_eq!((finding.grade, finding.state.as_str()), (Grade::Slow, "ptrace_scope 2"));
        assert!(finding.change[0].starts_with("sysctl -w kernel.yama.ptrace_scope=1"));
        copy.write(SCOPE, "1\n");
        assert_eq!(findings(&copy.machine())[0].grade, Grade::Good);
    }

    #[test]
    fn a_trial_that_fails_counts_whatever_files_say() {
        let refused = |number| Some(io::Error::from_raw_os_error(number));
        let of = |number| judged(&Machine::this(), "no Yama".into(), Some(0), refused(number));
        assert_eq!(of(libc::EPERM).grade, Grade::Slow);
        assert!(of(libc::EPERM).change[0].contains("SYS_PTRACE"), "{:?}", of(libc::EPERM));
        assert!(of(libc::ENOSYS).change[0].contains("CONFIG_CROSS_MEMORY_ATTACH"));
        assert_eq!(
            judged(&Machine::this(), "ptrace_scope 2".into(), Some(2), None).grade,
            Grade::Good
        );
    }
}
