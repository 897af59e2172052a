// SPDX-License-Identifier: Apache-2.0
//! Numbers that nobody guesses.

use std::io;

/// Fills `bytes`. Needs no file: there may be no `/dev`.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &mut bytes[done..];
        // SAFETY: writes into the rest, as many bytes as it holds at most.
        match unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) } {
            count @ 0.. => done += count as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}
