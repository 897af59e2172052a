// SPDX-License-Identifier: Apache-2.0
//! What carries puts to a neighbour, by their size: stores through its window, packets of the ring, or the port's DMA
//! engine.
//!
//! Puts of all three may be under way together, and each may fall back to packets at any time. So nothing depends on
//! when a limit changes: `fence` waits for all that a stream has issued, and a put with a signal has one carrier.

use crate::ntb::settings::NtbSettings;
use std::sync::atomic::{AtomicUsize, Ordering};
use tombolo_core::config::Least;
use tombolo_core::transport::{Carrier, CarrierChoice, Carriers, EngineChoice};

/// What decides, for all neighbours of a PE.
#[derive(Clone, Copy, Debug)]
pub struct CarrierRules {
    /// What carries puts as long as nobody has measured.
    usual: Carriers,
    /// Others may choose between stores and packets.
    stores_open: bool,
    /// Others may choose what the engine makes.
    engine_open: bool,
    /// See [`EngineChoice`].
    engine_is_free: bool,
    /// Longest put: longer ones come in pieces of so many bytes.
    put_max: usize,
}

impl CarrierRules {
    /// Rules for an engine that makes puts of at least `engine` bytes by what the user or the model says, and for puts
    /// of at most `put_max` bytes.
    pub fn new(
        settings: &NtbSettings,
        engine: Option<usize>,
        engine_is_free: bool,
        put_max: usize,
    ) -> CarrierRules {
        let engine = engine.unwrap_or(usize::MAX);
        CarrierRules {
            usual: for_pieces(Carriers { engine, ..Carriers::STORES }, put_max),
            stores_open: settings.direct.is_none(),
            engine_open: settings.dma == Least::Auto,
            engine_is_free,
            put_max,
        }
    }
}

/// The limits of one neighbour, which may change at any time.
#[derive(Debug)]
pub struct CarrierLimits {
    rules: CarrierRules,
    blocking: Limits,
    non_blocking: Limits,
}

/// Those of blocking puts, or of others.
#[derive(Debug)]
pub struct Limits {
    /// Shorter puts are left to stores: the less of the others.
    others: AtomicUsize,
    packets: AtomicUsize,
    engine: AtomicUsize,
}

impl CarrierLimits {
    /// Those that hold as long as nobody has measured, for a neighbour that an engine reaches or none does.
    pub fn new(mut rules: CarrierRules, has_engine: bool) -> CarrierLimits {
        if !has_engine {
            (rules.usual.engine, rules.engine_open) = (usize::MAX, false);
        }
        let limits = || Limits {
            others: AtomicUsize::new(usize::MAX),
            packets: AtomicUsize::new(usize::MAX),
            engine: AtomicUsize::new(usize::MAX),
        };
        let all = CarrierLimits { rules, blocking: limits(), non_blocking: limits() };
        all.put_into_force(rules.usual);
        all
    }

    /// The limits of blocking puts, or of others.
    #[inline]
    pub fn of(&self, blocking: bool) -> &Limits {
        if blocking { &self.blocking } else { &self.non_blocking }
    }

    /// What others may choose, where stores have arrived `at_once` or not.
    pub fn choice(&self, at_once: bool) -> CarrierChoice {
        let CarrierRules { usual, stores_open, engine_open, engine_is_free, .. } = self.rules;
        let engine =
            engine_open.then_some(EngineChoice { expected: usual.engine, is_free: engine_is_free });
        // Stores that are under way for a while keep their source until they have arrived.
        CarrierChoice { blocking: stores_open && at_once, non_blocking: stores_open, engine }
    }

    /// Takes a choice, save for what the user has chosen.
    pub fn set(&self, carriers: Carriers) {
        let CarrierRules { usual, stores_open, engine_open, put_max, .. } = self.rules;
        let stored = if stores_open { carriers } else { usual };
        let engine = if engine_open { carriers.engine } else { usual.engine };
        self.put_into_force(for_pieces(Carriers { engine, ..stored }, put_max));
    }

    /// For people: the carriers of blocking puts where stores have arrived `at_once`, and of others.
    pub fn describe(&self, at_once: bool) -> String {
        let least = |bytes: usize, carrier| match bytes {
            usize::MAX => None,
            bytes => Some(format!("{carrier} from {bytes} bytes on")),
        };
        let list = |limits: &Limits| {
            let [packets, engine] =
                [&limits.packets, &limits.engine].map(|bytes| bytes.load(Ordering::Relaxed));
            // The engine comes first.
            let packets = if engine <= packets { usize::MAX } else { packets };
            let packets = least(packets, Carrier::Packets);
            let engine = least(engine, Carrier::Engine);
            let all = [Some(Carrier::Stores.to_string()), packets, engine];
            all.into_iter().flatten().collect::<Vec<_>>().join(", ")
        };
        let others = list(&self.non_blocking);
        match at_once {
            true => format!("blocking puts {}; non-blocking puts {others}", list(&self.blocking)),
            false => format!("blocking puts packets; non-blocking puts {others}"),
        }
    }

    fn put_into_force(&self, carriers: Carriers) {
        let Carriers { blocking_packets, packets, engine } = carriers;
        self.blocking.set(blocking_packets, usize::MAX);
        self.non_blocking.set(packets, engine);
    }
}

impl Limits {
    fn set(&self, packets: usize, engine: usize) {
        self.others.store(packets.min(engine), Ordering::Relaxed);
        self.packets.store(packets, Ordering::Relaxed);
        self.engine.store(engine, Ordering::Relaxed);
    }

    /// Whether stores are the carrier.
    #[inline]
    pub fn by_stores(&self, len: usize) -> bool {
        len < self.others.load(Ordering::Relaxed)
    }

    /// Whether stores are preferred to packets.
    pub fn rather_stores(&self, len: usize) -> bool {
        len < self.packets.load(Ordering::Relaxed)
    }

    /// Whether the engine is preferred to both.
    pub fn by_engine(&self, len: usize) -> bool {
        len >= self.engine.load(Ordering::Relaxed)
    }
}

/// The same where longer puts come in pieces of `put_max` bytes: what holds for them holds for the pieces.
fn for_pieces(carriers: Carriers, put_max: usize) -> Carriers {
    let cut = |least| if least < usize::MAX && put_max > 0 { put_max.min(least) } else { least };
    let Carriers { blocking_packets, packets, engine } = carriers;
    Carriers { blocking_packets: cut(blocking_packets), packets: cut(packets), engine: cut(engine) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::config::Environment;

    const PUT_MAX: usize = 1 << 18;

    fn limits(variables: &[(&str, &str)]) -> CarrierLimits {
        let environment = Environment::from_iter(variables.iter().copied());
        let settings = NtbSettings::read(&environment).unwrap();
        let engine = match settings.dma {
            Least::Never => None,
            Least::From(bytes) => Some(bytes),
            Least::Auto => Some(1 << 16),
        };
        CarrierLimits::new(CarrierRules::new(&settings, engine, true, PUT_MAX), true)
    }

    /// Whether blocking puts of a size are stores, and whether others are made by the engine or are stores.
    fn carried(limits: &CarrierLimits, len: usize) -> (bool, [bool; 2]) {
        let others = limits.of(false);
        (limits.of(true).by_stores(len), [others.by_engine(len), others.by_stores(len)])
    }

    #[test]
    fn unless_measured_stores_carry_all_but_what_the_engine_is_expected_to_make() {
        let limits = limits(&[]);
        assert_eq!(carried(&limits, 1 << 15), (true, [false, true]));
        assert_eq!(carried(&limits, 1 << 16), (true, [true, false]));
        let choice = limits.choice(true);
        assert_eq!(choice.engine, Some(EngineChoice { expected: 1 << 16, is_free: true }));
        assert!(choice.blocking && choice.non_blocking);
    }

    #[test]
    fn what_was_measured_takes_the_place_of_what_was_expected() {
        let limits = limits(&[]);
        limits.set(Carriers { blocking_packets: 1 << 17, packets: 1 << 12, engine: 1 << 14 });
        assert_eq!(carried(&limits, 1 << 11), (true, [false, true]));
        assert_eq!(carried(&limits, 1 << 13), (true, [false, false]));
        assert_eq!(carried(&limits, 1 << 14), (true, [true, false]));
        assert_eq!(carried(&limits, 1 << 17), (false, [true, false]));
        // An engine that has no room leaves a put to what would carry it without one.
        assert!(!limits.of(false).rather_stores(1 << 14));
        limits.set(Carriers::STORES);
        assert_eq!(carried(&limits, usize::MAX - 1), (true, [false, true]));
    }

    #[test]
    fn what_holds_for_long_puts_holds_for_their_pieces() {
        let limits = limits(&[]);
        limits.set(Carriers { engine: 1 << 20, blocking_packets: 1 << 20, ..Carriers::STORES });
        assert_eq!(carried(&limits, PUT_MAX), (false, [true, false]));
        assert_eq!(carried(&limits, PUT_MAX - 1), (true, [false, true]));
    }

    #[test]
    fn what_the_user_has_chosen_is_not_for_others_to_choose() {
        let all = Carriers { blocking_packets: 0, packets: 0, engine: 0 };
        let dma = limits(&[("SHMEM_NTB_DMA", "32k")]);
        dma.set(Carriers { engine: 1, ..Carriers::STORES });
        assert_eq!(carried(&dma, 1 << 15), (true, [true, false]));
        assert_eq!(carried(&dma, (1 << 15) - 1), (true, [false, true]));
        assert_eq!(dma.choice(true).engine, None);
        let no_dma = limits(&[("SHMEM_NTB_DMA", "off")]);
        no_dma.set(Carriers { engine: 0, ..Carriers::STORES });
        assert_eq!(carried(&no_dma, 1 << 20), (true, [false, true]));
        let stores = limits(&[("SHMEM_NTB_DIRECT", "on"), ("SHMEM_NTB_DMA", "off")]);
        stores.set(all);
        assert_eq!(carried(&stores, 1 << 20), (true, [false, true]));
        assert!(stores.choice(true).is_empty());
    }

    #[test]
    fn where_no_engine_leads_nothing_is_left_to_one() {
        let engine_for_all = Carriers { engine: 0, ..Carriers::STORES };
        let limits = CarrierLimits::new(limits(&[]).rules, false);
        assert_eq!(carried(&limits, 1 << 20), (true, [false, true]));
        limits.set(engine_for_all);
        assert_eq!(carried(&limits, 1 << 20), (true, [false, true]));
        assert_eq!(limits.choice(true).engine, None);
    }

    #[test]
    fn people_are_told_what_is_in_force() {
        let limits = limits(&[]);
        limits.set(Carriers { packets: 4096, blocking_packets: 512, engine: 8192 });
        let others =
            "non-blocking puts stores, packets from 4096 bytes on, engine from 8192 bytes on";
        let all = format!("blocking puts stores, packets from 512 bytes on; {others}");
        assert_eq!(limits.describe(true), all);
        assert_eq!(limits.describe(false), format!("blocking puts packets; {others}"));
    }

    #[test]
    fn stores_that_are_under_way_for_a_while_carry_no_blocking_puts() {
        let choice = limits(&[]).choice(false);
        assert_eq!((choice.blocking, choice.non_blocking), (false, true));
    }
}
