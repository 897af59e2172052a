//! System calls of the CMA transport.

use std::io;
use std::os::unix::fs::MetadataExt;

/// Copies `len` bytes at `address` of process `pid` to `dest`.
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

/// Lets sibling processes attach where the kernel otherwise allows it to descendants only.
pub fn allow_siblings() {
    // SAFETY: a prctl without memory arguments; kernels without that restriction refuse it, which
    // is as good.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// The name space in which this process is numbered: equal for two processes of one kernel if they
/// mean the same by a process number. 0 if the kernel does not tell.
pub fn process_name_space() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
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
