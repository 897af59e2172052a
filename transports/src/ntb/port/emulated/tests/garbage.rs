// SPDX-License-Identifier: Apache-2.0
//! What any process of two hosts can do to the memory of their link.

use super::*;
use proptest::prelude::*;

/// A link whose memory is mapped a second time, for whoever writes garbage.
struct Open {
    tied: Tied,
    raw: SharedMapping,
}

impl Open {
    fn new(speed: Speed) -> Open {
        let tied = tied(&spec(Profile::IntelGen3, speed));
        let file = tied.fabric.fds()[0].try_clone_to_owned().unwrap();
        let raw = SharedMapping::new(&file, 0, size_of::<layout::LinkMemory>()).unwrap();
        Open { tied, raw }
    }

    fn words(&self) -> usize {
        self.raw.size() / 8
    }

    fn write(&self, word: usize, value: u64) {
        assert!(word < self.words());
        // SAFETY: inside the mapping, whose fields are all atomic; aligned as it is.
        unsafe { AtomicU64::from_ptr(self.raw.base().cast::<u64>().add(word)) }
            .store(value, Ordering::SeqCst);
    }

    /// Makes writes take no longer than a test can wait.
    fn bound_delays(&self) {
        let faults = &self.tied.a.link.memory().faults;
        faults.delay_ns.fetch_and(0xff, Ordering::SeqCst);
    }

    /// Everything that the ends of a link do, whatever comes of it.
    fn use_all(&self) {
        let Tied { a, b, memory, slot_size, .. } = &self.tied;
        for port in [a, b] {
            let _ = port.link_enable();
            let _ = (port.link_state(), port.link_event(), port.counters(), port.describe());
            let _ =
                (port.db_read(), port.db_read_mask(), port.spad_read(1), port.peer_spad_read(2));
            port.db_clear(1);
            port.db_set_mask(2);
            port.db_clear_mask(3);
            port.peer_db_set(5);
            port.peer_spad_write(3, 4);
            let _ = port.db_wait(7, Duration::from_micros(10));
            port.poll();
        }
        if let Ok(address) = b.register(&memory.region()) {
            let _ = b.mw_set_trans(0, 1, address, *slot_size as u64);
        }
        let Ok(mut window) = a.outbound(0) else { return };
        for offset in [0, slot_size - 8, *slot_size, 2 * slot_size - 8] {
            send(&mut *window, offset, &[7; 100]);
            window.write_line(offset / 64 * 64, &Line([9; 8]));
            let mut bytes = [0; 20];
            window.read(offset, &mut bytes);
            if let Some(mapping) = window.map(offset, 64) {
                // SAFETY: a slice is readable for its length.
                unsafe { mapping.write(0, [3u8; 64].as_ptr(), 64) };
            }
        }
        window.flush();
    }
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), 0u64..5000]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 10))]

    /// Words anywhere: most of the memory is translations.
    #[test]
    fn garbage_in_link_memory_does_no_harm(
        writes in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..400),
        modelled: bool,
    ) {
        let open = Open::new(if modelled { Speed::Modelled } else { Speed::Direct });
        let head = std::mem::offset_of!(layout::LinkMemory, sides) / 8;
        for (at, (index, value)) in writes.into_iter().enumerate() {
            // Registers and the status of the link as often as all that there is.
            let range = if at % 2 == 0 { open.words() } else { head + 128 };
            open.write(index.index(range), value);
        }
        open.bound_delays();
        open.use_all();
    }

    /// All of it, as a broken file.
    #[test]
    fn a_link_full_of_one_value_does_no_harm(value in value(), first in 0usize..2) {
        let open = Open::new(Speed::Direct);
        (first * 512..open.words()).for_each(|word| open.write(word, value));
        open.bound_delays();
        open.use_all();
    }

    /// A translation that leads to memory which there is, but anywhere in it and behind it.
    #[test]
    fn a_wild_translation_does_no_harm(fields in any::<[u64; 4]>(), masks in any::<[u8; 4]>()) {
        let open = Open::new(Speed::Direct);
        let Tied { b, memory, .. } = &open.tied;
        let file = memory.region().file.expect("a file");
        let [region_offset, region_len, offset, size] =
            std::array::from_fn(|at| fields[at] >> (masks[at] % 64) & !u64::from(masks[at]));
        let contents = words::Contents {
            pid: std::process::id(),
            fd: sys::number_of(file),
            inode: sys::inode_of(file).unwrap(),
            region_offset,
            region_len,
            offset,
            size,
        };
        let entry = &b.local().windows[0][0];
        entry.close();
        entry.open(&contents);
        open.use_all();
    }
}
