// SPDX-License-Identifier: Apache-2.0
//! What the system tells of processes.

use std::io;
use std::os::unix::fs::MetadataExt;

/// What `/proc/PID/stat` tells of a process, or `/proc/PID/task/TID/stat` of a thread.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    /// No thread runs any more. The first one may have ended before others, and looks then like a process that has.
    pub is_over: bool,
    /// Number of the process that started it, or has adopted it.
    pub parent: i32,
    /// Flags of the kernel (`PF_`).
    pub flags: u32,
    /// When it was started, in ticks since the system was.
    pub started: u64,
}

impl Stat {
    /// Reads that of a process. Errors: those of the file system, of which [`is_of_no_process`] tells more;
    /// `InvalidData` if it is not such a text.
    pub fn of(pid: i32) -> io::Result<Stat> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Stat::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// None if the text is not that of such a file.
    pub fn parse(text: &str) -> Option<Stat> {
        // The name, second and in parentheses, may hold any character. The numbers are those of proc(5).
        let rest: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| rest.get(number - 3).copied();
        let threads = field(20)?.parse::<u64>().ok()?;
        Some(Stat {
            is_over: field(3)?.starts_with(['Z', 'X']) && threads <= 1,
            parent: field(4)?.parse().ok()?,
            flags: field(9)?.parse().ok()?,
            started: field(22)?.parse().ok()?,
        })
    }
}

/// Whether an error in reading of a process says that there is none, or none any more. Others, such as a lack of
/// descriptors, say nothing of it.
pub fn is_of_no_process(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Whether a process is gone, or nothing but an exit code. False where that cannot be found out.
pub fn has_ended(pid: i32) -> bool {
    Stat::of(pid).map_or_else(|error| is_of_no_process(&error), |stat| stat.is_over)
}

/// The namespace in which this process is numbered: equal for two processes of one kernel if they mean the same by a
/// process number. 0 if the kernel does not tell.
pub fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |names| names.ino())
}

/// Whether the calling thread is the only one of this process; false where the kernel does not tell.
pub fn has_one_thread() -> bool {
    std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

/// Whether this process ignores a signal.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks for the current action only; an all-zero `sigaction` is a valid value.
    let action = unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_ended_when_only_its_exit_code_is_left() {
        assert!(!has_ended(std::process::id() as i32));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id() as i32;
        while !has_ended(pid) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(has_ended(pid));
    }

    #[test]
    fn a_process_whose_first_thread_alone_has_ended_goes_on() {
        let is_over = |state: char, threads: usize| {
            let between = (5..20).map(|number| number.to_string()).collect::<Vec<_>>().join(" ");
            let text = format!("7 (a) Z (b) {state} 4 {between} {threads} 0 99 0 0\n");
            let stat = Stat::parse(&text).unwrap();
            assert_eq!((stat.parent, stat.flags, stat.started), (4, 9, 99));
            stat.is_over
        };
        let all = [('Z', 2), ('Z', 1), ('X', 1), ('S', 1), ('R', 9)];
        let over = all.map(|(state, threads)| is_over(state, threads));
        assert_eq!(over, [false, true, true, false, false]);
    }

    #[test]
    fn this_process_is_understood() {
        let own = Stat::of(std::process::id() as i32).unwrap();
        assert!(!own.is_over && own.started > 0);
        assert_eq!(own.parent, std::os::unix::process::parent_id() as i32);
        assert!(Stat::parse("").is_none() && Stat::parse("7 (a) R 1 2").is_none());
    }
}
