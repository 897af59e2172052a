// SPDX-License-Identifier: Apache-2.0
use super::*;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

const LEN: usize = 1 << 20;

/// A device that goes on using the pages that were there when memory was registered, as one that pins
/// them does: it has a mapping of its own of what is shared memory. Other memory it only counts.
#[derive(Default)]
struct Pinning {
    pinned: Vec<Option<(*mut u8, usize)>>,
    aliased: bool,
    refuses: bool,
    most: usize,
}

impl Device for Pinning {
    type Key = usize;

    unsafe fn register(&mut self, at: *mut u8, len: usize) -> Result<usize, String> {
        if self.refuses {
            return Err("no more memory can be locked".into());
        }
        let mut own = null_mut();
        if self.aliased {
            // SAFETY: of length 0: makes a second mapping of the same pages, at an address that is free.
            own = unsafe { libc::mremap(at.cast(), 0, len, libc::MREMAP_MAYMOVE) };
            assert_ne!(own, libc::MAP_FAILED);
        }
        self.pinned.push(Some((own.cast(), len)));
        self.most = self.most.max(self.count());
        Ok(self.pinned.len() - 1)
    }

    fn unregister(&mut self, key: usize) {
        let (own, len) = self.pinned[key].take().expect("registered, and once");
        if !own.is_null() {
            // SAFETY: the mapping made in `register`.
            unsafe { libc::munmap(own.cast(), len) };
        }
    }
}

impl Pinning {
    fn of_shared_memory() -> Pinning {
        Pinning { aliased: true, ..Pinning::default() }
    }

    fn count(&self) -> usize {
        self.pinned.iter().flatten().count()
    }

    /// What the device sees at the start of registered memory.
    fn sees(&self, key: usize) -> u8 {
        let (own, _) = self.pinned[key].expect("registered");
        // SAFETY: the mapping made in `register`.
        unsafe { own.read_volatile() }
    }
}

/// Maps memory, at an address if one is given. Otherwise at one far from where the kernel places
/// memory by itself: what a test unmaps must not be taken by another thread before it is mapped again.
fn map(at: *mut u8, len: usize, shared: bool) -> *mut u8 {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1000_0000_0000);
    let kind = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let own = || std::ptr::without_provenance_mut(NEXT.fetch_add(1 << 32, Ordering::Relaxed));
    let at = if at.is_null() { own() } else { at };
    let fixed = libc::MAP_FIXED_NOREPLACE;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, and none is replaced.
    let got =
        unsafe { libc::mmap(at.cast(), len, rights, kind | libc::MAP_ANONYMOUS | fixed, -1, 0) };
    assert_ne!(got, libc::MAP_FAILED);
    got.cast()
}

fn unmap(at: *mut u8, len: usize) {
    // SAFETY: memory of the test.
    assert_eq!(unsafe { libc::munmap(at.cast(), len) }, 0);
}

fn acquire(cache: &mut Cache<usize>, device: &mut Pinning, at: *mut u8, len: usize) -> Held<usize> {
    // SAFETY: buffers of the tests are valid until they are released.
    unsafe { cache.acquire(device, at, len, false) }.expect("this device takes everything")
}

/// Registers a buffer for an operation that is over at once; gives its key.
fn use_once(cache: &mut Cache<usize>, device: &mut Pinning, at: *mut u8, len: usize) -> usize {
    let held = acquire(cache, device, at, len);
    cache.release(device, held);
    held.key
}

#[test]
fn memory_mapped_anew_at_the_same_address_gives_its_own_data() {
    let (mut cache, mut device) = (Cache::new(), Pinning::of_shared_memory());
    let at = map(null_mut(), LEN, true);
    for round in 1..100u8 {
        // SAFETY: mapped by the test.
        unsafe { at.write_volatile(round) };
        let held = acquire(&mut cache, &mut device, at, LEN);
        assert_eq!(device.sees(held.key), round);
        cache.release(&mut device, held);
        unmap(at, LEN);
        assert_eq!(map(at, LEN, true), at);
    }
    unmap(at, LEN);
    assert!(device.most <= 2, "{} registrations of one buffer", device.most);
}

/// As a card that pins memory for writing refuses what this process may not write.
#[derive(Default)]
struct Refusing {
    sources: Vec<bool>,
}

impl Device for Refusing {
    type Key = usize;

    unsafe fn register(&mut self, _: *mut u8, _: usize) -> Result<usize, String> {
        Err("bad address".into())
    }

    unsafe fn register_source(&mut self, _: *mut u8, _: usize) -> Result<usize, String> {
        self.sources.push(true);
        Ok(self.sources.len())
    }

    fn unregister(&mut self, _: usize) {}
}

#[test]
fn memory_that_is_only_read_is_registered_for_that_alone() {
    let (mut cache, mut device) = (Cache::new(), Refusing::default());
    let at = map(null_mut(), LEN, false);
    let mut acquire = |is_source| {
        // SAFETY: the buffer stays until it is released.
        let held = unsafe { cache.acquire(&mut device, at, LEN, is_source) };
        held.map(|held| {
            cache.release(&mut device, held);
            held.key
        })
    };
    assert_eq!(acquire(true), Ok(1));
    let again = acquire(true).unwrap();
    assert!(acquire(false).is_err(), "what is written to");
    assert_eq!(again, if cache.remembers() { 1 } else { 2 });
    unmap(at, LEN);
}

/// So that the test above is known to be able to fail.
#[test]
fn the_device_of_these_tests_goes_on_seeing_old_pages() {
    let mut device = Pinning::of_shared_memory();
    let at = map(null_mut(), LEN, true);
    // SAFETY: mapped by the test.
    let key = unsafe {
        at.write_volatile(1);
        device.register(at, LEN).unwrap()
    };
    unmap(at, LEN);
    map(at, LEN, true);
    // SAFETY: mapped by the test.
    unsafe { at.write_volatile(2) };
    assert_eq!(device.sees(key), 1);
    device.unregister(key);
    unmap(at, LEN);
}

/// Does something to the memory at an address.
type Change = fn(*mut u8);

/// Ways to get rid of pages.
const WAYS: [(&str, Change); 4] = [
    ("unmapped in the middle", |at| {
        unmap(at.wrapping_add(LEN / 2), 4096);
        map(at.wrapping_add(LEN / 2), 4096, false);
    }),
    ("emptied", |at| {
        // SAFETY: memory of the test.
        assert_eq!(unsafe { libc::madvise(at.cast(), LEN, libc::MADV_DONTNEED) }, 0);
    }),
    ("moved", |at| {
        let (may_move, null) = (libc::MREMAP_MAYMOVE, null_mut::<libc::c_void>());
        // SAFETY: memory of the test; where it is moved to is unmapped again.
        let moved = unsafe { libc::mremap(at.cast(), LEN, 64 * LEN, may_move, null) };
        assert_ne!(moved, libc::MAP_FAILED);
        unmap(moved.cast(), 64 * LEN);
        map(at, LEN, false);
    }),
    ("replaced", |at| {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: replaces memory of the test.
        let got = unsafe { libc::mmap(at.cast(), LEN, rights, kind, -1, 0) };
        assert_eq!(got.cast(), at);
    }),
];

#[test]
fn whatever_happens_to_memory_it_is_registered_anew() {
    for (how, change) in WAYS {
        let (mut cache, mut device) = (Cache::new(), Pinning::default());
        let at = map(null_mut(), LEN, false);
        // SAFETY: mapped by the test.
        unsafe { at.write_bytes(1, LEN) };
        let before = use_once(&mut cache, &mut device, at, LEN);
        change(at);
        let after = use_once(&mut cache, &mut device, at, LEN);
        assert_ne!(before, after, "memory that was {how}");
        assert!(device.count() <= 1, "memory that was {how}");
        unmap(at, LEN);
    }
}

#[test]
fn memory_that_is_given_back_and_taken_again_is_registered_anew() {
    let (mut cache, mut device) = (Cache::new(), Pinning::default());
    let mut keys = Vec::new();
    for _ in 0..20 {
        // As long vectors are; those may also stay with the allocator when they are freed.
        let buffer = Slab::new(LEN);
        keys.push(use_once(&mut cache, &mut device, buffer.base(), LEN));
    }
    keys.dedup();
    assert_eq!(keys.len(), 20);
    assert!(device.most <= 2 + usize::from(!cache.remembers()), "{}", device.most);
}

#[test]
fn a_buffer_that_stays_is_registered_once() {
    let (mut cache, mut device) = (Cache::new(), Pinning::default());
    let at = map(null_mut(), LEN, false);
    for part in 0..200 {
        use_once(&mut cache, &mut device, at.wrapping_add(part), LEN - 200);
    }
    // Where the kernel does not tell, each operation has a registration of its own.
    let expected = if cache.remembers() { 1 } else { 200 };
    assert_eq!(device.pinned.len(), expected);
    assert_eq!(device.most, 1);
    unmap(at, LEN);
}

#[test]
fn without_the_kernels_word_nothing_is_remembered() {
    let (mut cache, mut device) = (Cache::idle(), Pinning::default());
    let at = map(null_mut(), LEN, false);
    let keys: Vec<_> = (0..3).map(|_| use_once(&mut cache, &mut device, at, LEN)).collect();
    assert_eq!(keys, [0, 1, 2]);
    assert_eq!((device.count(), cache.size()), (0, (0, 0)));
    unmap(at, LEN);
}

#[test]
fn memory_that_a_device_refuses_is_not_watched_any_more() {
    let (at, mut device) = (map(null_mut(), LEN, false), Pinning::default());
    let mut cache = Cache::new();
    device.refuses = true;
    // More often than ranges can be watched.
    for _ in 0..300 {
        // SAFETY: the mapping above.
        assert!(unsafe { cache.acquire(&mut device, at, LEN, false) }.is_err());
    }
    device.refuses = false;
    let first = use_once(&mut cache, &mut device, at, LEN);
    let remembered = use_once(&mut cache, &mut device, at, LEN) == first;
    assert_eq!(remembered, cache.remembers());
    unmap(at, LEN);
}

#[test]
fn memory_that_is_kept_is_found_and_never_registered() {
    let (mut cache, mut device) = (Cache::new(), Pinning::default());
    let mut heap = vec![0u8; LEN];
    cache.keep(heap.as_ptr(), LEN, 77);
    let key = |cache: &mut _, device: &mut _, at| use_once(cache, device, at, 100);
    assert_eq!(key(&mut cache, &mut device, heap.as_mut_ptr()), 77);
    assert_eq!(key(&mut cache, &mut device, heap[LEN - 100..].as_mut_ptr()), 77);
    assert_eq!(device.most, 0);
    // Partly outside.
    assert_eq!(key(&mut cache, &mut device, heap[LEN - 99..].as_mut_ptr()), 0);
}

#[test]
fn what_is_registered_is_bounded_and_what_is_used_stays() {
    let (mut cache, mut device) = (Cache::new(), Pinning::default());
    let all = map(null_mut(), 2000 * 8192, false);
    let used = acquire(&mut cache, &mut device, all, 100);
    for buffer in 1..2000 {
        use_once(&mut cache, &mut device, all.wrapping_add(buffer * 8192), 100);
        assert!(device.pinned[used.key].is_some(), "an operation uses it");
    }
    assert!(device.most <= ENTRIES + 1, "{} registrations", device.most);
    assert!(cache.size().0 <= ENTRIES && cache.size().0 == device.count());
    cache.release(&mut device, used);
    // Those used last are still there.
    let before = device.pinned.len();
    use_once(&mut cache, &mut device, all.wrapping_add(1999 * 8192), 100);
    assert_eq!(device.pinned.len() - before, usize::from(!cache.remembers()));
    cache.clear(&mut device);
    assert_eq!((device.count(), cache.size()), (0, (0, 0)));
    unmap(all, 2000 * 8192);
}

#[test]
fn the_bytes_are_bounded_too() {
    let (mut cache, mut device) = (Cache::new(), Pinning::default());
    let len = BYTES / 4;
    // Never touched, so never there.
    let all = map(null_mut(), 8 * len, false);
    for buffer in 0..8 {
        use_once(&mut cache, &mut device, all.wrapping_add(buffer * len), len);
        assert!(cache.size().1 <= BYTES);
    }
    use_once(&mut cache, &mut device, all, 8 * len);
    assert_eq!(cache.size(), (0, 0), "longer than all that is remembered");
    unmap(all, 8 * len);
}

#[test]
fn caches_on_several_threads_hear_of_what_others_unmap() {
    let (at, mut device) = (map(null_mut(), LEN, false), Pinning::default());
    let mut cache = Cache::new();
    for _ in 0..200 {
        let before = use_once(&mut cache, &mut device, at, LEN);
        let place = at as usize;
        std::thread::spawn(move || {
            unmap(place as *mut u8, LEN);
            map(place as *mut u8, LEN, false);
        })
        .join()
        .unwrap();
        assert_ne!(use_once(&mut cache, &mut device, at, LEN), before);
    }
    assert!(device.most <= 2);
    unmap(at, LEN);
}

#[test]
fn buffers_of_a_pool_are_apart_and_come_back() {
    let mut pool = Pool::new(3, 100);
    let taken: Vec<u16> = std::iter::from_fn(|| pool.take()).collect();
    let mut places: Vec<usize> = taken.iter().map(|buffer| pool.at(*buffer) as usize).collect();
    places.sort_unstable();
    assert!(places.len() == 3 && places.windows(2).all(|two| two[1] - two[0] >= pool.size()));
    let (base, len) = pool.memory();
    assert!(places[0] == base as usize && places[2] + 100 <= base as usize + len);
    pool.give(taken[1]);
    assert_eq!(pool.take(), Some(taken[1]));
}
