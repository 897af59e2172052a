// SPDX-License-Identifier: Apache-2.0
//! Waiting for variables of this PE (OpenSHMEM 1.6, "Point-To-Point Synchronization Routines").

use super::atomic::{AtomicInteger, SymmetricAtomic};
use super::context::Context;
use crate::abi;
use crate::c::fast::Tables;
use crate::c::wait::{self, Set};
use std::ffi::c_int;

/// How a variable is compared with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cmp {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// The variable is greater.
    Gt,
    /// The variable is less or equal.
    Le,
    /// The variable is less.
    Lt,
    /// The variable is greater or equal.
    Ge,
}

impl Cmp {
    #[inline(always)]
    fn code(self) -> c_int {
        match self {
            Cmp::Eq => abi::SHMEM_CMP_EQ,
            Cmp::Ne => abi::SHMEM_CMP_NE,
            Cmp::Gt => abi::SHMEM_CMP_GT,
            Cmp::Le => abi::SHMEM_CMP_LE,
            Cmp::Lt => abi::SHMEM_CMP_LT,
            Cmp::Ge => abi::SHMEM_CMP_GE,
        }
    }
}

/// Waiting for variables of this PE that others change. What a PE did before it changed a variable,
/// in order ([`fence`](Context::fence), [`put_signal`](Context::put_signal)), is seen when the wait is
/// over. Waiting calls let transports progress, and give the processor away when they last.
impl Context<'_> {
    /// Waits until a variable compares so with `value`; gives the value that did
    /// (`shmem_wait_until`, `shmem_signal_wait_until`).
    ///
    /// ```
    /// use tombolo::{Cmp, SignalOp};
    ///
    /// let world = tombolo::init()?;
    /// let (data, flag) = (world.alloc_slice(8, 0u8)?, world.alloc_atomic(0u64)?);
    /// let right = (world.my_pe() + 1) % world.n_pes();
    /// world.put_signal(&data, b"from you", &flag, (SignalOp::Set, 1), right);
    /// world.wait_until(&flag, Cmp::Eq, 1);
    /// assert_eq!(data[0].read(), b'f');
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn wait_until<T: AtomicInteger>(
        &self,
        variable: &SymmetricAtomic<T>,
        cmp: Cmp,
        value: T,
    ) -> T {
        // SAFETY: live and aligned; all accesses are atomic.
        unsafe {
            wait::wait_until(
                self.tables(),
                "Context::wait_until",
                variable.as_ptr(),
                cmp.code(),
                value,
            )
        }
    }

    /// Whether a variable compares so with `value` (`shmem_test`).
    #[inline]
    pub fn test<T: AtomicInteger>(
        &self,
        variable: &SymmetricAtomic<T>,
        cmp: Cmp,
        value: T,
    ) -> bool {
        // SAFETY: as above.
        unsafe {
            wait::test(self.tables(), "Context::test", variable.as_ptr(), cmp.code(), value) != 0
        }
    }

    /// Waits until each of the variables has compared so once (`shmem_wait_until_all`).
    pub fn wait_until_all<T: AtomicInteger>(
        &self,
        variables: &[SymmetricAtomic<T>],
        cmp: Cmp,
        value: T,
    ) {
        set(self.tables(), "Context::wait_until_all", variables, cmp, &value).wait_all();
    }

    /// Waits until one of the variables compares so; gives its index, none if there are no variables
    /// (`shmem_wait_until_any`).
    pub fn wait_until_any<T: AtomicInteger>(
        &self,
        variables: &[SymmetricAtomic<T>],
        cmp: Cmp,
        value: T,
    ) -> Option<usize> {
        index(set(self.tables(), "Context::wait_until_any", variables, cmp, &value).wait_any())
    }

    /// Waits until at least one of the variables compares so; gives the indices of all that do
    /// (`shmem_wait_until_some`).
    pub fn wait_until_some<T: AtomicInteger>(
        &self,
        variables: &[SymmetricAtomic<T>],
        cmp: Cmp,
        value: T,
    ) -> Vec<usize> {
        let mut indices = vec![0; variables.len()];
        let set = set(self.tables(), "Context::wait_until_some", variables, cmp, &value);
        // SAFETY: room for the index of every variable.
        let found = unsafe { set.wait_some(indices.as_mut_ptr()) };
        indices.truncate(found);
        indices
    }

    /// Whether all of the variables compare so (`shmem_test_all`).
    pub fn test_all<T: AtomicInteger>(
        &self,
        variables: &[SymmetricAtomic<T>],
        cmp: Cmp,
        value: T,
    ) -> bool {
        set(self.tables(), "Context::test_all", variables, cmp, &value).test_all() != 0
    }

    /// The index of a variable that compares so (`shmem_test_any`). Asked again and again, it finds
    /// each that does some time, though others go on doing so.
    pub fn test_any<T: AtomicInteger>(
        &self,
        variables: &[SymmetricAtomic<T>],
        cmp: Cmp,
        value: T,
    ) -> Option<usize> {
        index(set(self.tables(), "Context::test_any", variables, cmp, &value).test_any())
    }

    /// The indices of all variables that compare so (`shmem_test_some`).
    pub fn test_some<T: AtomicInteger>(
        &self,
        variables: &[SymmetricAtomic<T>],
        cmp: Cmp,
        value: T,
    ) -> Vec<usize> {
        let mut indices = vec![0; variables.len()];
        let set = set(self.tables(), "Context::test_some", variables, cmp, &value);
        // SAFETY: room for the index of every variable.
        let found = unsafe { set.test_some(indices.as_mut_ptr()) };
        indices.truncate(found);
        indices
    }
}

fn set<T: AtomicInteger>(
    tables: &Tables,
    routine: &'static str,
    variables: &[SymmetricAtomic<T>],
    cmp: Cmp,
    value: &T,
) -> Set<T> {
    let (ivars, nelems) = (variables.as_ptr().cast(), variables.len());
    // SAFETY: callers use the set while the borrows last.
    unsafe { Set::new(tables, routine, ivars, nelems, std::ptr::null(), cmp.code(), (value, 0)) }
}

fn index(found: usize) -> Option<usize> {
    (found != usize::MAX).then_some(found)
}
