// SPDX-License-Identifier: Apache-2.0
//! Symmetric memory: the heap, its allocator, and the executable's static data.

mod allocator;
pub(crate) mod common;
mod guarded;
mod handout;
mod heap;
mod limits;
mod standstill;
pub mod statics;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::os::fd::OwnedFd;

pub use allocator::{Allocator, Placement};
pub use guarded::Guarded;
pub use heap::Heap;
pub use limits::check_file_size;
pub use statics::StaticData;

/// A memory file that [`seal`] can fix the size of.
pub fn sealable(name: &str) -> nix::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    memfd_create(name, flags)
}

/// Fixes the size of a memory file for good: a process that has its descriptor cannot take away
/// pages that others have mapped, whose next access would raise `SIGBUS`. Works without where the
/// kernel has no seals.
pub fn seal(file: &OwnedFd) {
    let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    if let Err(why) = fcntl(file, FcntlArg::F_ADD_SEALS(size)) {
        tracing::info!("a memory file is not protected against being shrunk: {why}");
    }
}

/// Size of a page of this system in bytes.
pub fn page_size() -> usize {
    // SAFETY: asks the system for a constant.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}
