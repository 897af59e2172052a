// SPDX-License-Identifier: Apache-2.0
//! System calls of the CMA transport.

use std::io;

/// Copies `len` bytes at `address` of process `pid`, or of the one with this thread, to `dest`.
///
/// # Safety
/// `dest` is writable for `len` bytes.
pub unsafe fn read(pid: i32, dest: *mut u8, address: usize, len: usize) -> io::Result<()> {
    // SAFETY: by the caller's word; the kernel checks the other process's side.
    whole(len, |done, left| unsafe {
        let local = libc::iovec { iov_base: dest.add(done).cast(), iov_len: left };
        let remote = libc::iovec { iov_base: (address + done) as *mut _, iov_len: left };
        libc::process_vm_readv(pid, &local, 1, &remote, 1, 0)
    })
}

/// Copies `len` bytes at `source` to `address` of process `pid`.
///
/// # Safety
/// `source` is readable for `len` bytes.
pub unsafe fn write(pid: i32, address: usize, source: *const u8, len: usize) -> io::Result<()> {
    // SAFETY: as above.
    whole(len, |done, left| unsafe {
        let local = libc::iovec { iov_base: source.add(done).cast_mut().cast(), iov_len: left };
        let remote = libc::iovec { iov_base: (address + done) as *mut _, iov_len: left };
        libc::process_vm_writev(pid, &local, 1, &remote, 1, 0)
    })
}

/// Whether [`write_in_two`] keeps its order: the kernel copies one range after the other, and stores of
/// this architecture become visible in the order of the program.
pub const ENDS_LAST: bool = cfg!(target_arch = "x86_64");

/// Whether the last 8 bytes of a put have to appear last; see `Capabilities::ends_last`.
pub fn has_end(address: usize, len: usize) -> bool {
    ENDS_LAST && (16..=64).contains(&len) && address.is_multiple_of(8)
}

/// As [`write`], but the last 8 bytes are copied after the others. `len` is at least 8.
///
/// # Safety
/// As [`write`].
pub unsafe fn write_in_two(
    pid: i32,
    address: usize,
    source: *const u8,
    len: usize,
) -> io::Result<()> {
    let local = libc::iovec { iov_base: source.cast_mut().cast(), iov_len: len };
    let end = len - 8;
    let remote = [
        libc::iovec { iov_base: address as *mut _, iov_len: end },
        libc::iovec { iov_base: (address + end) as *mut _, iov_len: 8 },
    ];
    // SAFETY: by the caller's word; the kernel checks the other process's side.
    let done = unsafe { libc::process_vm_writev(pid, &local, 1, remote.as_ptr(), 2, 0) };
    let done = usize::try_from(done).unwrap_or(0);
    if done == len {
        return Ok(());
    }
    // What is left, in the same order; an error shows again.
    let first = done.min(end);
    // SAFETY: as above; both parts lie within the source.
    unsafe {
        write(pid, address + first, source.add(first), end - first)?;
        write(pid, address + end, source.add(end), 8)
    }
}

/// Where the kernel's Yama module says who may access whose memory.
const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Lets other processes of the user attach where the kernel otherwise allows it to ancestors only.
/// True if that was needed, so that [`forbid_siblings`] has to undo it.
pub fn allow_siblings() -> bool {
    let needed = std::fs::read_to_string(SCOPE).is_ok_and(|scope| needs_permission(&scope));
    if needed {
        set_tracer(libc::PR_SET_PTRACER_ANY);
    }
    needed
}

/// Undoes [`allow_siblings`].
pub fn forbid_siblings() {
    set_tracer(0);
}

/// Whether siblings may attach only to who permits it: 0 allows it to all processes of the user, 2
/// and 3 only to administrators or nobody, whatever a process permits.
fn needs_permission(scope: &str) -> bool {
    scope.trim() == "1"
}

fn set_tracer(pid: libc::c_ulong) {
    // SAFETY: a prctl without memory arguments. If it fails, peers find that they have no access.
    unsafe {
        libc::prctl(
            libc::PR_SET_PTRACER,
            pid,
            0 as libc::c_ulong,
            0 as libc::c_ulong,
            0 as libc::c_ulong,
        )
    };
}

/// The threads of a process, also those that have ended; none where the system does not tell.
pub fn threads(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// Repeats a call that may do less than asked until `len` bytes are done.
fn whole(len: usize, mut call: impl FnMut(usize, usize) -> isize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match call(done, len - done) {
            n if n > 0 => done += n as usize,
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {
                let e = io::Error::last_os_error();
                if e.kind() != io::ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_scope_asks_for_permission() {
        assert_eq!(
            ["0\n", "1\n", "2\n", "3\n", ""].map(needs_permission),
            [false, true, false, false, false]
        );
    }

    #[test]
    fn writing_in_two_parts_writes_all_of_it() {
        let source: [u8; 64] = std::array::from_fn(|i| i as u8 + 1);
        let pid = std::process::id() as i32;
        for len in (16..=64).step_by(8) {
            let mut dest = [0u64; 9];
            let at = dest.as_mut_ptr() as usize;
            assert_eq!(has_end(at, len), ENDS_LAST);
            assert!(!has_end(at + 4, len));
            // SAFETY: the source holds 64 bytes.
            unsafe { write_in_two(pid, at, source.as_ptr(), len) }.unwrap();
            let written: Vec<u8> = dest.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!((&written[..len], &written[len..]), (&source[..len], &[0u8; 72][len..]));
        }
        // SAFETY: as above.
        assert!(unsafe { write_in_two(pid, 64, source.as_ptr(), 64) }.is_err());
    }

    #[test]
    fn partial_transfers_are_continued_and_errors_end_them() {
        let mut asked = Vec::new();
        whole(10, |done, left| {
            asked.push((done, left));
            left.min(4) as isize
        })
        .unwrap();
        assert_eq!(asked, [(0, 10), (4, 6), (8, 2)]);
        assert!(whole(1, |_, _| 0).is_err());
    }
}
