// SPDX-License-Identifier: Apache-2.0
//! What the machine does without any library: plain copies, kernel copies, cache lines, TCP.

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A plain copy through the caches.
///
/// # Safety
/// Both ranges are valid for `len` bytes and apart from each other.
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: by the caller's word.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    std::hint::black_box(to);
}

/// A word moved by one load and one store.
///
/// # Safety
/// Both places are valid for a `T`, and aligned.
pub unsafe fn copy_word<T: Copy>(to: *mut u8, from: *const u8) {
    // SAFETY: by the caller's word.
    unsafe { to.cast::<T>().write_volatile(from.cast::<T>().read_volatile()) };
}

/// A copy whose stores go past the caches; plain where the destination is not aligned to 16, and on
/// processors without such stores.
///
/// # Safety
/// As [`copy`].
pub unsafe fn copy_streaming(to: *mut u8, from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    let whole = if (to as usize).is_multiple_of(16) { len & !63 } else { 0 };
    #[cfg(not(target_arch = "x86_64"))]
    let whole = 0;
    // SAFETY: by the caller's word; the destination is aligned.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        stream(to, from, whole);
        copy(to.add(whole), from.add(whole), len - whole);
    }
}

/// # Safety
/// As [`copy`]; `to` is aligned to 16, and `len` is a multiple of 64.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    // SAFETY: by the caller's word.
    unsafe {
        for at in (0..len).step_by(64) {
            let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let line = [0, 1, 2, 3].map(|k| _mm_loadu_si128(from.add(k)));
            for (k, part) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(k), part);
            }
        }
        _mm_sfence();
    }
}

/// Has the kernel copy `from` to `address` of process `pid`.
pub fn cma_write(pid: i32, address: usize, from: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < from.len() {
        let remote = RemoteIoVec { base: address + done, len: from.len() - done };
        done += process_vm_writev(Pid::from_raw(pid), &[IoSlice::new(&from[done..])], &[remote])?;
    }
    Ok(())
}

/// Has the kernel copy what is at `address` of process `pid` to `to`.
pub fn cma_read(pid: i32, address: usize, to: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < to.len() {
        let remote = RemoteIoVec { base: address + done, len: to.len() - done };
        let local = &mut [IoSliceMut::new(&mut to[done..])];
        done += process_vm_readv(Pid::from_raw(pid), local, &[remote])?;
    }
    Ok(())
}

/// Waits until a word has reached a value, giving up the processor now and then where others may
/// need it.
pub fn await_word(word: &AtomicU64, value: u64) {
    let mut turns = 0u32;
    while word.load(Ordering::Acquire) < value {
        turns += 1;
        match turns.is_multiple_of(2000) {
            true => std::thread::yield_now(),
            false => std::hint::spin_loop(),
        }
    }
}

/// What one end of a connection does when messages go to and fro.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Sends first.
    Caller,
    /// Answers.
    Answerer,
}

/// How long an end of a connection waits for the other.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Prepares a connection for [`exchange`]: nothing is held back, and no call waits.
pub fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)
}

/// `count` exchanges: `there` bytes from the caller, then `back` bytes to it. A buffer holds the
/// larger of the two. Both ends look for what comes, as PEs do: one that sleeps would have to be woken first.
pub fn exchange(
    mut stream: &TcpStream,
    end: End,
    count: u64,
    (there, back): (usize, usize),
    buffer: &mut [u8],
) -> io::Result<()> {
    for _ in 0..count {
        match end {
            End::Caller => {
                whole(there, |at| stream.write(&buffer[at..there]))?;
                whole(back, |at| stream.read(&mut buffer[at..back]))?;
            }
            End::Answerer => {
                whole(there, |at| stream.read(&mut buffer[at..there]))?;
                whole(back, |at| stream.write(&buffer[at..back]))?;
            }
        }
    }
    Ok(())
}

/// Moves `len` bytes, as many at a time as `part` does from a position on.
fn whole(len: usize, mut part: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
    /// Looks before others may need the processor.
    const LOOKS: u32 = 32;
    let (mut at, mut looks, mut since) = (0, 0u32, None);
    while at < len {
        match part(at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(moved) => (at, looks, since) = (at + moved, 0, None),
            Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                looks += 1;
                if looks.is_multiple_of(LOOKS) {
                    if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    std::thread::yield_now();
                }
            }
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_any_length_and_alignment_agree() {
        let from: Vec<u8> = (0..1000u32).map(|k| (k * 7 % 251) as u8).collect();
        for (start, len) in [(0, 0), (0, 1), (1, 300), (0, 640), (3, 997), (16, 900)] {
            let mut to = vec![0u8; 1100];
            // SAFETY: both vectors are long enough.
            unsafe { copy_streaming(to.as_mut_ptr().add(start), from.as_ptr(), len) };
            assert_eq!(to[start..start + len], from[..len]);
            assert!(to[..start].iter().chain(&to[start + len..]).all(|byte| *byte == 0));
        }
    }

    #[test]
    fn words_are_moved_whole_and_alone() {
        let (from, mut to) = ([0x0102_0304_0506_0708u64], [u64::MAX; 2]);
        let (at, source) = (to.as_mut_ptr().cast::<u8>(), from.as_ptr().cast::<u8>());
        // SAFETY: both begin at multiples of 8.
        unsafe { copy_word::<u64>(at, source) };
        assert_eq!(to, [from[0], u64::MAX]);
        // SAFETY: as above.
        unsafe { copy_word::<u16>(at.wrapping_add(8), source) };
        assert_eq!(to[1].to_ne_bytes()[..2], from[0].to_ne_bytes()[..2]);
        assert!(to[1].to_ne_bytes()[2..].iter().all(|byte| *byte == 0xff));
    }

    #[test]
    fn messages_of_any_length_go_to_and_fro_until_an_end_is_closed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        prepare(&near).unwrap();
        prepare(&far).unwrap();
        for (there, back) in [(1, 1), (8, 70_000), (10_000_000, 1)] {
            let (mut sent, mut answer) = (vec![1; there.max(back)], vec![2; there.max(back)]);
            std::thread::scope(|scope| {
                let far = scope.spawn(|| {
                    exchange(&far, End::Answerer, 3, (there, back), &mut answer).unwrap();
                });
                exchange(&near, End::Caller, 3, (there, back), &mut sent).unwrap();
                far.join().unwrap();
            });
            // The answer starts with what came.
            assert!(answer[..there].iter().all(|byte| *byte == 1));
            assert!(sent[..back.min(there)].iter().all(|byte| *byte == 1));
            assert!(sent[back.min(there)..back].iter().all(|byte| *byte == 2));
        }
        drop(far);
        let ended = exchange(&near, End::Caller, 1, (1, 1), &mut [0; 1]).unwrap_err();
        assert!(matches!(
            ended.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
        ));
    }

    #[test]
    fn the_kernel_copies_within_a_process() {
        let (from, mut to) = ([1u8, 2, 3], [0u8; 3]);
        let own = std::process::id() as i32;
        // A machine may forbid it: then it is no ceiling either.
        if cma_write(own, to.as_mut_ptr() as usize, &from).is_ok() {
            assert_eq!(to, from);
            let mut back = [0u8; 3];
            cma_read(own, to.as_ptr() as usize, &mut back).unwrap();
            assert_eq!(back, from);
        }
    }
}
