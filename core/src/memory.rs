//! Symmetric memory: the heap, its allocator, and the executable's static data.

mod allocator;
mod heap;
mod limits;
pub mod statics;

pub use allocator::Allocator;
pub use heap::Heap;
pub use statics::StaticData;

/// Size of a page of this system in bytes.
pub fn page_size() -> usize {
    // SAFETY: asks the system for a constant.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}
