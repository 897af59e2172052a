// SPDX-License-Identifier: Apache-2.0
//! Waiting for and testing variables of this PE (OpenSHMEM 1.6, "Point-To-Point Synchronization
//! Routines").

use super::fast::{TABLES, Tables};
use super::slow;
use super::types::Watched;
use crate::abi::{
    SHMEM_CMP_EQ, SHMEM_CMP_GE, SHMEM_CMP_GT, SHMEM_CMP_LE, SHMEM_CMP_LT, SHMEM_CMP_NE,
};
use crate::library::library;
use crate::profile::{self, State};
use std::ffi::{c_int, c_long, c_short, c_ushort};
use std::sync::atomic::{AtomicU64, Ordering};
use tombolo_core::board::monotonic_ns;
use tombolo_core::wait::{Polls, Reason};
use tombolo_core::{Waiting, World};

macro_rules! one_variable {
    ($name:ident, $ty:ty) => {
        routines! {
            callers: "`ivar` is a valid, aligned variable of this PE, which others change by whole \
accesses alone: it alone is read";
            [shmem_ $name _wait_until](ivar: *mut $ty, cmp: c_int, cmp_value: $ty) {
                wait_until(&TABLES, ROUTINE, ivar, cmp, cmp_value);
            }
            [shmem_ $name _test](ivar: *mut $ty, cmp: c_int, cmp_value: $ty) -> c_int {
                test(&TABLES, ROUTINE, ivar, cmp, cmp_value)
            }
            [shmem_ $name _wait](ivar: *mut $ty, cmp_value: $ty) {
                wait_until(&TABLES, ROUTINE, ivar, SHMEM_CMP_NE, cmp_value);
            }
        }
    };
}

macro_rules! wait_and_test {
    ($name:ident, $ty:ty) => {
        one_variable! {$name, $ty}

        routines! {
            callers: "the arrays are valid for `nelems` elements, `status` if it is not null, variables \
                aligned and changed by whole accesses alone: they are read, and `indices` written, \
                inside these bounds";
            [shmem_ $name _wait_until_all](
                ivars: *mut $ty, nelems: usize, status: *const c_int, cmp: c_int, cmp_value: $ty,
            ) {
                Set::new(&TABLES, ROUTINE, ivars, nelems, status, cmp, (&raw const cmp_value, 0)).wait_all()
            }
            [shmem_ $name _wait_until_any](
                ivars: *mut $ty, nelems: usize, status: *const c_int, cmp: c_int, cmp_value: $ty,
            ) -> usize {
                Set::new(&TABLES, ROUTINE, ivars, nelems, status, cmp, (&raw const cmp_value, 0)).wait_any()
            }
            [shmem_ $name _wait_until_some](
                ivars: *mut $ty, nelems: usize, indices: *mut usize, status: *const c_int,
                cmp: c_int, cmp_value: $ty,
            ) -> usize {
                let set = Set::new(&TABLES, ROUTINE, ivars, nelems, status, cmp, (&raw const cmp_value, 0));
                set.wait_some(indices)
            }
            [shmem_ $name _wait_until_all_vector](
                ivars: *mut $ty, nelems: usize, status: *const c_int, cmp: c_int,
                cmp_values: *const $ty,
            ) {
                Set::new(&TABLES, ROUTINE, ivars, nelems, status, cmp, (cmp_values, 1)).wait_all()
            }
            [shmem_ $name _wait_until_any_vector](
                ivars: *mut $ty, nelems: usize, status: *const c_int, cmp: c_int,
                cmp_values: *const $ty,
            ) -> usize {
                Set::new(&TABLES, ROUTINE, ivars, nelems, status, cmp, (cmp_values, 1)).wait_any()
            }
            [shmem_ $name _wait_until_some_vector](
                ivars: *mut $ty, nelems: usize, indices: *mut usize, status: *const c_int,
                cmp: c_int, cmp_values: *const $ty,
            ) -> usize {
                Set::new(&TABLES, ROUTINE, ivars, nelems, status, cmp, (cmp_values, 1)).wait_some(indices)
            }
        }

        routines! {
            callers: "the arrays are valid for `nelems` elements, `status` if it is not null, variables \
                aligned and changed by whole accesses alone: they are read, and `indices` written, \
                inside these bounds";
            [shmem_ $name _test_all](
                ivars: *mut $ty, nelems: usize, status: *const c_int, cmp: c_int, cmp_value: $ty,
            ) -> c_int {
                Set::new(&TABLES, ROUTINE, ivars, nelems, status, cmp, (&raw const cmp_value, 0)).test_all()
            }
            [shmem_ $name _test_any](
                ivars: *mut $ty, nelems: usize, status: *const c_int, cmp: c_int, cmp_value: $ty,
            ) -> usize {
                Set::new(&TABLES, ROUTINE, ivars, nelems, status, cmp, (&raw const cmp_value, 0)).test_any()
            }
            [shmem_ $name _test_some](
                ivars: *mut $ty, nelems: usize, indices: *mut usize, status: *const c_int,
                cmp: c_int, cmp_value: $ty,
            ) -> usize {
                let set = Set::new(&TABLES, ROUTINE, ivars, nelems, status, cmp, (&raw const cmp_value, 0));
                set.test_some(indices)
            }
            [shmem_ $name _test_all_vector](
                ivars: *mut $ty, nelems: usize, status: *const c_int, cmp: c_int,
                cmp_values: *const $ty,
            ) -> c_int {
                Set::new(&TABLES, ROUTINE, ivars, nelems, status, cmp, (cmp_values, 1)).test_all()
            }
            [shmem_ $name _test_any_vector](
                ivars: *mut $ty, nelems: usize, status: *const c_int, cmp: c_int,
                cmp_values: *const $ty,
            ) -> usize {
                Set::new(&TABLES, ROUTINE, ivars, nelems, status, cmp, (cmp_values, 1)).test_any()
            }
            [shmem_ $name _test_some_vector](
                ivars: *mut $ty, nelems: usize, indices: *mut usize, status: *const c_int,
                cmp: c_int, cmp_values: *const $ty,
            ) -> usize {
                Set::new(&TABLES, ROUTINE, ivars, nelems, status, cmp, (cmp_values, 1)).test_some(indices)
            }
        }
    };
}

amo_types! {wait_and_test}

routines! {
    callers: "the variable is valid and aligned, of this PE, and others change it by whole accesses \
        alone: it alone is read";
    [shmem_signal_wait_until](sig_addr: *mut u64, cmp: c_int, cmp_value: u64) -> u64 {
        wait_until(&TABLES, ROUTINE, sig_addr, cmp, cmp_value)
    }
    [shmem_wait_until](ivar: *mut c_long, cmp: c_int, cmp_value: c_long) {
        wait_until(&TABLES, ROUTINE, ivar, cmp, cmp_value);
    }
    [shmem_wait](ivar: *mut c_long, cmp_value: c_long) {
        wait_until(&TABLES, ROUTINE, ivar, SHMEM_CMP_NE, cmp_value);
    }
}

// Deprecated with these types, which have no AMO.
one_variable! {short, c_short}
one_variable! {ushort, c_ushort}

#[inline(always)]
fn compare<T: PartialOrd>(routine: &'static str, value: T, cmp: c_int, cmp_value: T) -> bool {
    match cmp {
        SHMEM_CMP_EQ => value == cmp_value,
        SHMEM_CMP_NE => value != cmp_value,
        SHMEM_CMP_GT => value > cmp_value,
        SHMEM_CMP_LE => value <= cmp_value,
        SHMEM_CMP_LT => value < cmp_value,
        SHMEM_CMP_GE => value >= cmp_value,
        _ => no_comparison(routine, cmp),
    }
}

#[cold]
fn no_comparison(routine: &'static str, cmp: c_int) -> ! {
    let world = &library(routine).world;
    world.stop_job(
        routine,
        format_args!("cmp = {cmp}: expected one of SHMEM_CMP_EQ to SHMEM_CMP_GE"),
    )
}

/// Waits for one variable and gives the value that satisfied the condition.
///
/// # Safety
/// `ivar` is valid and aligned; so for all functions below.
#[inline(always)]
pub unsafe fn wait_until<T: Watched>(
    tables: &Tables,
    routine: &'static str,
    ivar: *const T,
    cmp: c_int,
    cmp_value: T,
) -> T {
    // SAFETY: by the caller's word.
    unsafe {
        if tables.checking() {
            return wait_checked(routine, ivar, cmp, cmp_value);
        }
        wait_unchecked(routine, ivar, cmp, cmp_value)
    }
}

/// # Safety
/// See [`wait_until`].
#[inline(always)]
unsafe fn wait_unchecked<T: Watched>(
    routine: &'static str,
    ivar: *const T,
    cmp: c_int,
    cmp_value: T,
) -> T {
    // SAFETY: by the caller's word.
    unsafe {
        let value = T::load(ivar);
        if compare(routine, value, cmp, cmp_value) {
            return value;
        }
        wait_long(routine, ivar, cmp, cmp_value)
    }
}

/// As [`wait_until`], with checks, and counted if calls are.
///
/// # Safety
/// See [`wait_until`].
#[cold]
#[inline(never)]
unsafe fn wait_checked<T: Watched>(
    routine: &'static str,
    ivar: *const T,
    cmp: c_int,
    cmp_value: T,
) -> T {
    slow::check_variable(routine, "ivar", ivar, 1);
    let Some(state) = profile::on() else {
        // SAFETY: by the caller's word.
        return unsafe { wait_unchecked(routine, ivar, cmp, cmp_value) };
    };
    let mut value = cmp_value;
    wait_counted(state, routine, ivar, || {
        // SAFETY: by the caller's word.
        value = unsafe { T::load(ivar) };
        compare(routine, value, cmp, cmp_value)
    });
    value
}

/// Waits until `ready` says so, counted.
#[inline(always)]
fn wait_counted<T>(
    state: &State,
    routine: &'static str,
    ivar: *const T,
    mut ready: impl FnMut() -> bool,
) {
    let looking = state.look(routine);
    if !ready() {
        state.wait(looking, waiting_for(routine, ivar), &mut ready);
    } else if let Some(looking) = looking {
        state.looked(routine, looking);
    }
}

/// As [`wait_counted`], apart from what runs where nothing is counted.
#[cold]
#[inline(never)]
fn wait_counted_apart<T>(
    state: &State,
    routine: &'static str,
    ivar: *const T,
    ready: impl FnMut() -> bool,
) {
    wait_counted(state, routine, ivar, ready);
}

fn waiting_for<T>(routine: &'static str, ivar: *const T) -> Waiting {
    Waiting { routine, argument: ivar as u64, reason: Reason::Variable }
}

/// # Safety
/// See [`wait_until`].
#[cold]
unsafe fn wait_long<T: Watched>(
    routine: &'static str,
    ivar: *const T,
    cmp: c_int,
    cmp_value: T,
) -> T {
    let mut value = cmp_value;
    library(routine).world.wait(waiting_for(routine, ivar), || {
        // SAFETY: by the caller's word.
        value = unsafe { T::load(ivar) };
        compare(routine, value, cmp, cmp_value)
    });
    value
}

/// Whether the condition holds: not 0 if so.
///
/// # Safety
/// See [`wait_until`].
#[inline(always)]
pub unsafe fn test<T: Watched>(
    tables: &Tables,
    routine: &'static str,
    ivar: *const T,
    cmp: c_int,
    cmp_value: T,
) -> c_int {
    // SAFETY: by the caller's word.
    unsafe {
        if tables.checking() {
            return test_checked(routine, ivar, cmp, cmp_value);
        }
        test_unchecked(routine, ivar, cmp, cmp_value)
    }
}

/// As [`test`], with checks, and counted if calls are.
///
/// # Safety
/// See [`wait_until`].
#[cold]
#[inline(never)]
unsafe fn test_checked<T: Watched>(
    routine: &'static str,
    ivar: *const T,
    cmp: c_int,
    cmp_value: T,
) -> c_int {
    slow::check_variable(routine, "ivar", ivar, 1);
    // SAFETY: by the caller's word.
    look(profile::on(), routine, || unsafe { test_unchecked(routine, ivar, cmp, cmp_value) })
}

/// Does what a routine that looks at this PE's memory alone is for, counted if there is something to count by.
#[inline(always)]
pub fn look<R>(state: Option<&State>, routine: &'static str, work: impl FnOnce() -> R) -> R {
    match state {
        None => work(),
        Some(state) => look_counted(state, routine, work),
    }
}

/// Apart from [`look`], which is then as short as where nothing can be counted.
#[cold]
#[inline(never)]
fn look_counted<R>(state: &State, routine: &'static str, work: impl FnOnce() -> R) -> R {
    let looking = state.look(routine);
    let result = work();
    if let Some(looking) = looking {
        state.looked(routine, looking);
    }
    result
}

/// # Safety
/// See [`wait_until`].
#[inline(always)]
unsafe fn test_unchecked<T: Watched>(
    routine: &'static str,
    ivar: *const T,
    cmp: c_int,
    cmp_value: T,
) -> c_int {
    // SAFETY: by the caller's word.
    let holds = || unsafe { compare(routine, T::load(ivar), cmp, cmp_value) };
    if holds() {
        POLLS.found();
        return 1;
    }
    poll_again(routine, || holds().then_some(())).is_some().into()
}

/// Failed tests of the program, of variables and of locks.
pub static POLLS: Polls = Polls::new();

/// An AMO at this address has found this value and left it there, in a job with more PEs than processors. If
/// many such AMOs in a row had the same address and value, that counts as a test in vain: of a lock, for example.
/// A program may as well read a variable that seldom changes before each of its other operations, which are not
/// seen here: so few of these AMOs give the processor away that it hardly becomes slower, and one that waits hardly
/// later.
#[cold]
#[inline(never)]
pub fn changed_nothing(address: usize, value: u64) {
    /// How many are one test: some hundred nanoseconds.
    const IN_A_ROW: u64 = 32;
    static LAST: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Threads that do this at the same time may mix theirs up; it is only a measure.
    let now = [address as u64, value];
    if LAST.each_ref().map(|last| last.load(Ordering::Relaxed)) != now {
        LAST.iter().zip(now).for_each(|(last, now)| last.store(now, Ordering::Relaxed));
        COUNT.store(0, Ordering::Relaxed);
        POLLS.found();
        return;
    }
    let count = COUNT.load(Ordering::Relaxed) + 1;
    COUNT.store(count, Ordering::Relaxed);
    if count.is_multiple_of(IN_A_ROW) {
        let patience = library("shmem_atomic_fetch").world.patience();
        POLLS.in_vain(patience, |_| std::thread::yield_now());
    }
}

/// Asks once more, after progress, for what a test has not found.
fn poll_again<R>(routine: &'static str, ask: impl Fn() -> Option<R>) -> Option<R> {
    let world = &library(routine).world;
    world.progress();
    let found = ask();
    match found {
        Some(_) => POLLS.found(),
        None => in_vain(world, routine, Reason::Variable),
    }
    found
}

/// A test of the program, of a variable or a lock, has found nothing. It may be one of a loop that waits.
pub fn in_vain(world: &World, routine: &'static str, reason: Reason) {
    POLLS.in_vain(world.patience(), |first| profile::give_way(routine, reason, first));
    if POLLS.is_check_due(monotonic_ns) {
        world.check_polls(routine);
    }
}

/// The variables of a call on many: those of `ivars` that `status` does not exclude.
pub struct Set<T> {
    routine: &'static str,
    ivars: *const T,
    nelems: usize,
    /// Null, or non-zero for what is excluded.
    status: *const c_int,
    cmp: c_int,
    /// What to compare with, and 1 if every variable has its own value, else 0.
    values: (*const T, usize),
    /// Arguments are checked, or calls counted. Looking at [`super::fast::TABLES`] again would have all routines load the
    /// address of that from memory: what becomes part of programs makes it a symbol of the crate.
    is_checking: bool,
}

/// Spreads searches for any one variable over all of them.
static SEARCHES: AtomicU64 = AtomicU64::new(0);

impl<T: Watched> Set<T> {
    /// # Safety
    /// The arrays are valid for `nelems` elements while the set is used, `status` if it is not
    /// null, the values for `nelems` or for one.
    pub unsafe fn new(
        tables: &Tables,
        routine: &'static str,
        ivars: *const T,
        nelems: usize,
        status: *const c_int,
        cmp: c_int,
        values: (*const T, usize),
    ) -> Set<T> {
        let is_checking = tables.checking();
        if is_checking {
            slow::check_variable(routine, "ivars", ivars, nelems);
        }
        Set { routine, ivars, nelems, status, cmp, values, is_checking }
    }

    /// What calls are counted by, if they are.
    #[inline(always)]
    fn counting(&self) -> Option<&'static State> {
        if self.is_checking { profile::on() } else { None }
    }

    fn includes(&self, i: usize) -> bool {
        // SAFETY: valid for `nelems` elements, by the contract of `new`.
        self.status.is_null() || unsafe { *self.status.add(i) } == 0
    }

    fn holds(&self, i: usize) -> bool {
        let (values, step) = self.values;
        // SAFETY: valid for `nelems` elements, by the contract of `new`.
        let (value, cmp_value) = unsafe { (T::load(self.ivars.add(i)), *values.add(i * step)) };
        compare(self.routine, value, self.cmp, cmp_value)
    }

    fn is_empty(&self) -> bool {
        !(0..self.nelems).any(|i| self.includes(i))
    }

    /// A variable whose condition holds. Begins at a different place each time: whichever it is, a
    /// variable whose condition holds is found some time, though others go on holding as well.
    fn any(&self) -> Option<usize> {
        let searches = SEARCHES.load(Ordering::Relaxed).wrapping_add(1);
        SEARCHES.store(searches, Ordering::Relaxed);
        let place = u128::from(searches.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let first = ((place * self.nelems as u128) >> 64) as usize;
        (first..self.nelems).chain(0..first).find(|i| self.includes(*i) && self.holds(*i))
    }

    /// Writes all indices whose condition holds and gives their number.
    ///
    /// # Safety
    /// `indices` is valid for `nelems` elements.
    unsafe fn some(&self, indices: *mut usize) -> usize {
        let mut found = 0;
        for i in (0..self.nelems).filter(|i| self.includes(*i)) {
            if self.holds(i) {
                // SAFETY: `found` is less than `nelems`.
                unsafe { indices.add(found).write(i) };
                found += 1;
            }
        }
        found
    }

    /// Moves `done` to the first variable whose condition has not yet held; true at the end.
    fn all(&self, done: &mut usize) -> bool {
        while *done < self.nelems && (!self.includes(*done) || self.holds(*done)) {
            *done += 1;
        }
        *done == self.nelems
    }

    /// The result of a call that has nothing to look at.
    fn find_none(&self, result: usize) -> usize {
        look(self.counting(), self.routine, || result)
    }

    #[inline(always)]
    fn wait(&self, mut ready: impl FnMut() -> bool) {
        match self.counting() {
            Some(state) => wait_counted_apart(state, self.routine, self.ivars, ready),
            None if ready() => {}
            None => {
                let waiting = waiting_for(self.routine, self.ivars);
                library(self.routine).world.wait(waiting, ready);
            }
        }
    }

    /// Asks once, and once more after progress.
    #[inline(always)]
    fn test<R>(&self, ask: impl Fn() -> Option<R>) -> Option<R> {
        look(self.counting(), self.routine, || match ask() {
            Some(found) => {
                POLLS.found();
                Some(found)
            }
            None => poll_again(self.routine, ask),
        })
    }

    /// Waits until every variable has met its condition once.
    #[inline(always)]
    pub fn wait_all(&self) {
        let mut done = 0;
        self.wait(|| self.all(&mut done));
    }

    /// Waits for a variable that meets its condition; `usize::MAX` if there is none to wait for.
    #[inline(always)]
    pub fn wait_any(&self) -> usize {
        if self.is_empty() {
            return self.find_none(usize::MAX);
        }
        let mut found = None;
        self.wait(|| {
            found = self.any();
            found.is_some()
        });
        found.unwrap_or(usize::MAX)
    }

    /// Waits for at least one; writes the indices of all that meet their conditions, and gives their
    /// number.
    ///
    /// # Safety
    /// As [`Set::some`].
    #[inline(always)]
    pub unsafe fn wait_some(&self, indices: *mut usize) -> usize {
        if self.is_empty() {
            return self.find_none(0);
        }
        let mut found = 0;
        self.wait(|| {
            // SAFETY: by the caller's word.
            found = unsafe { self.some(indices) };
            found > 0
        });
        found
    }

    /// Not 0 if all meet their conditions.
    #[inline(always)]
    pub fn test_all(&self) -> c_int {
        self.test(|| self.all(&mut 0).then_some(())).is_some().into()
    }

    /// A variable that meets its condition, or `usize::MAX`.
    #[inline(always)]
    pub fn test_any(&self) -> usize {
        if self.nelems == 0 {
            return self.find_none(usize::MAX);
        }
        self.test(|| self.any()).unwrap_or(usize::MAX)
    }

    /// As [`Set::wait_some`], without waiting.
    ///
    /// # Safety
    /// As [`Set::some`].
    #[inline(always)]
    pub unsafe fn test_some(&self, indices: *mut usize) -> usize {
        // SAFETY: by the caller's word.
        let found = || Some(unsafe { self.some(indices) }).filter(|found| *found > 0);
        self.test(found).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set<T: Watched>(ivars: &[T], status: &[c_int], cmp: c_int, value: &T) -> Set<T> {
        let status = if status.is_empty() { std::ptr::null() } else { status.as_ptr() };
        Set {
            routine: "test",
            ivars: ivars.as_ptr(),
            nelems: ivars.len(),
            status,
            cmp,
            values: (value, 0),
            is_checking: false,
        }
    }

    #[test]
    fn comparisons_are_those_of_the_type() {
        assert!(compare("test", -1i32, SHMEM_CMP_LT, 0));
        assert!(compare("test", -1i32 as u32, SHMEM_CMP_GT, 0));
        assert!(compare("test", 3usize, SHMEM_CMP_GE, 3) && compare("test", 3u64, SHMEM_CMP_LE, 3));
        assert!(
            compare("test", i64::MIN, SHMEM_CMP_NE, 0) && compare("test", 7i16, SHMEM_CMP_EQ, 7)
        );
    }

    #[test]
    fn only_the_variables_of_the_set_count() {
        let ivars = [1i64, 0, 1, 0];
        let mut indices = [9usize; 4];
        // SAFETY: arrays of four elements.
        unsafe {
            assert_eq!(set(&ivars, &[], SHMEM_CMP_EQ, &1).some(indices.as_mut_ptr()), 2);
            assert_eq!(indices, [0, 2, 9, 9]);
            let masked = set(&ivars, &[1, 0, 0, 0], SHMEM_CMP_EQ, &1);
            assert_eq!(masked.some(indices.as_mut_ptr()), 1);
            assert_eq!(indices[0], 2);
        }
        assert!(set(&ivars, &[1; 4], SHMEM_CMP_EQ, &1).is_empty());
        assert!(set(&ivars, &[0, 1, 0, 1], SHMEM_CMP_EQ, &1).all(&mut 0));
        assert!(!set(&ivars, &[0, 1, 0, 0], SHMEM_CMP_EQ, &1).all(&mut 0));
    }

    #[test]
    fn each_value_of_a_vector_meets_its_own_variable() {
        let (ivars, values) = ([1u32, 2, 3], [3u32, 2, 1]);
        let vector = Set { values: (values.as_ptr(), 1), ..set(&ivars, &[], SHMEM_CMP_EQ, &0) };
        assert_eq!([vector.holds(0), vector.holds(1), vector.holds(2)], [false, true, false]);
    }

    #[test]
    fn every_variable_that_holds_is_found_in_the_end() {
        let ivars = [1i32; 10];
        let all = set(&ivars, &[], SHMEM_CMP_EQ, &1);
        let found: std::collections::HashSet<_> = (0..1000).map(|_| all.any().unwrap()).collect();
        assert_eq!(found.len(), 10);
    }
}
