// SPDX-License-Identifier: Apache-2.0
//! Lanes and rings: what the PEs tell each other of it, and what follows for all of them.
//!
//! Links and processors may differ from host to host, but the rings of a lane must be the same all
//! the way round. So every PE tells its own [`PlanInputs`], and each makes the same [`LanePlan`] of all.

use super::handshake;
use super::hardware::Hardware;
use crate::ntb::port::{LinkState, LinkTiming, NtbPort, Window};
use crate::ntb::ring::choose::{Choice, LinkCosts, Overrides, Resources, choose, dma_crossing};
use crate::ntb::ring::{Class, Geometry};
use crate::ntb::settings::{LANES_MAX, NtbSettings};
use std::ops::Range;
use std::sync::Arc;
use tombolo_core::config::Least;
use tombolo_core::transport::Job;
use tombolo_core::wait::usable_cpus;

/// The window that holds the rings.
pub const RING_WINDOW: usize = 0;

/// What one PE knows that the plan depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanInputs {
    /// Rate of the slower one of its links, headers of TLPs included, MB/s; none where they are as
    /// fast as memory.
    pub line_mbs: Option<u32>,
    /// Largest payload of a TLP on either, bytes.
    pub max_payload: u32,
    /// Payload of the TLPs that the CPU's stores become, bytes: of the port with less.
    pub store_bytes: u32,
    /// Processors of its machine for each PE there.
    pub cores: u16,
    /// What the windows for the rings of both its ports have in common, if anything.
    pub window: Option<Window>,
    /// Doorbell bits of the port with fewer.
    pub doorbells: u32,
    /// DMA engines of both move long packets.
    pub dma: bool,
}

/// The lanes of a job. Made once, when all PEs have told their inputs, and the same on all hosts.
pub struct LanePlan {
    /// Lanes of the ring.
    pub lanes: usize,
    /// Lanes that a PE sends on.
    pub lanes_per_pe: usize,
    pub choice: Choice,
    /// The window for the rings as all ports have it: where its slots lie in a port's own is a matter
    /// of offsets.
    pub window: Window,
    /// Doorbell bits that all ports have.
    pub doorbells: u32,
    /// DMA engines move packets from so many bytes of payload on.
    pub dma_least: Option<usize>,
    /// The CPU stores payloads in steps: links are slower than memory.
    pub in_steps: bool,
}

/// Bytes of payload from which on DMA engines move packets by themselves: beginning a transfer takes the
/// CPU as long as a copy of some KiB.
const PACKET_LEAST: usize = 4096;

/// Time that an engine's thread may take to get a processor where each PE has but one: it is woken, and
/// takes turns with the threads of PEs.
const TURNS_NS: f64 = 35_000.0;

impl PlanInputs {
    /// Words of [`PlanInputs::to_words`].
    pub const WORDS: usize = 7;

    /// Those of this PE.
    pub fn of(hardware: &Hardware, job: &Job<'_>, settings: &NtbSettings) -> PlanInputs {
        let config = job.config;
        let states = hardware.ports.each_ref().map(|port| port.link_state());
        let rates =
            hardware.ports.iter().zip(&states).filter(|(port, _)| port.capabilities().paced);
        let rates = rates.map(|(_, state)| {
            let LinkState { speed, width, .. } = *state;
            let timing = LinkTiming { speed, width, ..LinkTiming::default() };
            ((timing.line_bytes_per_s() / 1e6) as u32).max(1)
        });
        let sharing = match config.host {
            // Emulated hosts without PEs of this job need processors too.
            Some(_) if !config.bound.0 => job.sharers().max(hardware.hosts.into()),
            _ => job.sharers(),
        };
        let line_mbs = rates.min();
        let cores = (usable_cpus() / sharing).min(u16::MAX.into()) as u16;
        let has_engine = |port: &Arc<dyn NtbPort>| port.capabilities().dma.is_some();
        let wanted = match settings.dma {
            Least::Never => false,
            Least::From(_) => true,
            // Packets are waited for, and each would wait for the engine's thread.
            Least::Auto => line_mbs.is_some() && !takes_turns(hardware, cores),
        };
        PlanInputs {
            line_mbs,
            dma: wanted && hardware.ports.iter().all(has_engine),
            max_payload: states[0].max_payload.min(states[1].max_payload).max(64),
            store_bytes: hardware
                .ports
                .each_ref()
                .map(|port| port.capabilities().store_bytes)
                .into_iter()
                .fold(u32::MAX, u32::min),
            cores,
            window: common_window(hardware, RING_WINDOW),
            doorbells: hardware
                .ports
                .iter()
                .map(|port| port.capabilities().doorbell_bits)
                .min()
                .unwrap_or(0),
        }
    }

    /// PlanInputs that suit all PEs: the least of each.
    pub fn of_all(mut all: impl Iterator<Item = PlanInputs>) -> Result<PlanInputs, String> {
        let mut agreed = all.next().ok_or("no PE has an NTB port")?;
        for inputs in all {
            agreed.line_mbs = [agreed.line_mbs, inputs.line_mbs].into_iter().flatten().min();
            agreed.max_payload = agreed.max_payload.min(inputs.max_payload);
            agreed.store_bytes = agreed.store_bytes.min(inputs.store_bytes);
            agreed.cores = agreed.cores.min(inputs.cores);
            agreed.window = agreed.window.zip(inputs.window).and_then(|(a, b)| a.common(&b));
            agreed.doorbells = agreed.doorbells.min(inputs.doorbells);
            agreed.dma &= inputs.dma;
        }
        Ok(agreed)
    }

    /// As words for the address of a PE.
    pub fn to_words(self) -> [u64; PlanInputs::WORDS] {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let window = self.window.unwrap_or(NO_WINDOW);
        let flags = [window.size_aligned, window.has_limit, window.fixed, self.dma];
        let flags = flags.iter().rev().fold(0, |all, flag| all << 1 | u64::from(*flag));
        [
            pair(self.line_mbs.unwrap_or(0), self.max_payload),
            pair(self.cores.into(), self.store_bytes),
            pair(self.doorbells, window.slots as u32),
            window.size,
            window.addr_align,
            window.size_align,
            flags,
        ]
    }

    /// Reads them back.
    pub fn from_words(words: [u64; PlanInputs::WORDS]) -> PlanInputs {
        let line_mbs = words[0] as u32;
        let [_, _, counts, size, addr_align, size_align, flags] = words;
        let slots = (counts >> 32) as usize;
        let is_power = |bytes: u64| bytes.is_power_of_two() && bytes <= 1 << 48;
        let is_sane = slots > 0
            && is_power(addr_align)
            && is_power(size_align)
            && size.is_multiple_of(slots as u64)
            && is_power(size / slots as u64);
        let window = Window {
            size,
            slots,
            addr_align,
            size_align,
            size_aligned: flags & 1 != 0,
            has_limit: flags & 2 != 0,
            fixed: flags & 4 != 0,
        };
        PlanInputs {
            line_mbs: (line_mbs != 0).then_some(line_mbs),
            max_payload: ((words[0] >> 32) as u32).max(64),
            store_bytes: ((words[1] >> 32) as u32).clamp(1, 64),
            cores: words[1] as u16,
            window: is_sane.then_some(window),
            doorbells: counts as u32,
            dma: flags & 8 != 0,
        }
    }
}

impl LanePlan {
    /// The error says to people why these ports cannot carry this job.
    pub fn new(
        hardware: &Hardware,
        job: &Job<'_>,
        inputs: &PlanInputs,
        settings: &NtbSettings,
    ) -> Result<LanePlan, String> {
        for port in hardware.ports.each_ref().map(|port| port.capabilities()) {
            if port.spads < handshake::WORDS || port.doorbell_bits == 0 || port.windows.is_empty() {
                return Err(format!(
                    "a port needs a window, a doorbell and {} scratchpads, {} has {}, {} and {}",
                    handshake::WORDS,
                    port.name,
                    port.windows.len(),
                    port.doorbell_bits,
                    port.spads
                ));
            }
        }
        let window =
            inputs.window.ok_or("the windows of the ring's ports have no slots in common")?;
        let doorbells = inputs.doorbells.clamp(1, 64);
        let pes_max = pes_max(job);
        let room = |lanes_per_pe: usize| {
            let lanes = pes_max * lanes_per_pe;
            let slots = if lanes > LANES_MAX { 0 } else { window.share(0, lanes).len() };
            usize::try_from(slots as u64 * window.slot_size()).unwrap_or(usize::MAX)
        };
        let lanes = settings.lanes.map_or(1, |lanes| lanes.0);
        if room(lanes) == 0 {
            return Err(format!(
                "{pes_max} PEs on a host with {lanes} lanes each need {} slots of a window; \
                 there are {}: set SHMEM_NTB_LANES to less, or use fewer PEs",
                pes_max * lanes,
                window.slots.min(LANES_MAX)
            ));
        }
        let line_rate = inputs.line_mbs.map_or(f64::INFINITY, |mbs| f64::from(mbs) / 1e3);
        // An emulated link takes stores at the cost of a processor: there is no time to use.
        let is_modelled = |port: &Arc<dyn NtbPort>| port.capabilities().modelled;
        let no_gain = inputs.cores < 2 && hardware.ports.iter().any(is_modelled);
        let in_steps = settings.steps.map_or(inputs.line_mbs.is_some() && !no_gain, |it| it.0);
        let dma = inputs.dma.then_some(inputs.max_payload);
        let costs =
            LinkCosts { in_steps, ..LinkCosts::desktop(line_rate, inputs.store_bytes, dma) };
        let overrides = Overrides {
            chunk: settings.chunk.map(|chunk| chunk.0),
            lanes: settings.lanes.map(|lanes| lanes.0),
        };
        let resources =
            Resources { hosts: hardware.hosts, cores: inputs.cores.into(), room: &room };
        let choice = choose(&costs, &resources, overrides).map_err(|why| match settings.chunk {
            Some(_) => format!("SHMEM_NTB_CHUNK does not fit: {why}"),
            None => why.to_string(),
        })?;
        let lanes_per_pe = choice.lanes;
        let lanes = pes_max * lanes_per_pe;
        let dma_least = inputs.dma.then_some(match settings.dma {
            Least::From(bytes) => bytes,
            _ => PACKET_LEAST,
        });
        Ok(LanePlan { lanes, lanes_per_pe, choice, window, doorbells, dma_least, in_steps })
    }

    /// Rings of a lane.
    pub fn geometry(&self) -> Geometry {
        self.choice.geometry
    }

    /// Lanes that PE `local` of `pes` on a host serves: all that would be its own if the host had
    /// as many PEs as the largest, and as many times more as it has fewer.
    pub fn served(&self, local: usize, pes: usize) -> impl Iterator<Item = usize> + '_ {
        let lanes_per_pe = self.lanes_per_pe;
        (0..self.lanes).filter(move |lane| lane / lanes_per_pe % pes == local)
    }

    /// Lanes that PE `local` sends on.
    pub fn own(&self, local: usize) -> Range<usize> {
        local * self.lanes_per_pe..(local + 1) * self.lanes_per_pe
    }

    /// Lines for people.
    pub fn describe(&self) -> Vec<String> {
        let LanePlan { lanes, lanes_per_pe, choice, .. } = self;
        let geometry = choice.geometry;
        vec![
            format!(
                "lanes: {lanes} in all, {lanes_per_pe} for each PE, of {} KiB in each window, \
                 with room for {} packets of {} bytes",
                geometry.region_bytes() >> 10,
                geometry.slots(Class::Request),
                geometry.chunk_bytes()
            ),
            format!("why: {}", choice.reason),
        ]
    }
}

/// Bytes from which on the DMA engine makes direct puts that nobody waits for, as long as that is not measured; none:
/// it makes none.
///
/// By itself from where the engine is done sooner than the CPU would be, for it leaves the CPU to the
/// program as well. Where links are as fast as memory the engine is emulated, by a thread that does what
/// the CPU would do. Such a thread on links that are slower makes puts that take longer than it waits for a
/// processor.
pub fn dma_least(
    hardware: &Hardware,
    inputs: &PlanInputs,
    settings: &NtbSettings,
) -> Option<usize> {
    let has_engine = |port: &Arc<dyn NtbPort>| port.capabilities().dma.is_some();
    if !hardware.ports.iter().any(has_engine) {
        return None;
    }
    match settings.dma {
        Least::Never => None,
        Least::From(bytes) => Some(bytes),
        Least::Auto => {
            let line_rate = f64::from(inputs.line_mbs?) / 1e3;
            let [cpu, dma] = [None, Some(inputs.max_payload)]
                .map(|dma| LinkCosts::desktop(line_rate, inputs.store_bytes, dma));
            let turns = if takes_turns(hardware, inputs.cores) { TURNS_NS } else { 0.0 };
            dma_crossing(&cpu, &dma)
                .map(|least| least.max((turns * line_rate) as usize).next_multiple_of(4096))
        }
    }
}

/// Whether engines are threads that share their processors with those of PEs.
pub fn takes_turns(hardware: &Hardware, cores: u16) -> bool {
    let is_thread = |port: &Arc<dyn NtbPort>| {
        port.capabilities().dma.is_some_and(|engine| engine.needs_processor)
    };
    cores < 2 && hardware.ports.iter().any(is_thread)
}

/// PEs of the host with most of them.
pub fn pes_max(job: &Job<'_>) -> usize {
    let most = job.localities.iter().map(|place| place.local_index).max().unwrap_or(0);
    most as usize + 1
}

/// Stands for none in an address.
const NO_WINDOW: Window = Window {
    size: 0,
    slots: 0,
    addr_align: 0,
    size_align: 0,
    size_aligned: false,
    has_limit: false,
    fixed: false,
};

/// What a window has in common at both ports of a host, if both have it.
pub fn common_window(hardware: &Hardware, index: usize) -> Option<Window> {
    let [right, left] =
        hardware.ports.each_ref().map(|port| port.capabilities().windows.get(index));
    right?.common(left?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ntb::port::emulated::{Fabric, FabricSpec};
    use proptest::prelude::*;
    use tombolo_core::Config;
    use tombolo_core::config::Environment;
    use tombolo_core::transport::Locality;

    const WINDOW: Window = Window {
        size: 64 << 20,
        slots: 64,
        addr_align: 4096,
        size_align: 1 << 20,
        size_aligned: true,
        has_limit: false,
        fixed: true,
    };
    const INPUTS: PlanInputs = PlanInputs {
        line_mbs: Some(7247),
        max_payload: 256,
        store_bytes: 64,
        cores: 4,
        window: Some(WINDOW),
        doorbells: 16,
        dma: false,
    };

    #[test]
    fn terms_are_read_back_as_they_were_written() {
        let other = PlanInputs {
            line_mbs: None,
            store_bytes: 8,
            cores: 0,
            window: None,
            dma: true,
            ..INPUTS
        };
        for inputs in [INPUTS, other] {
            assert_eq!(PlanInputs::from_words(inputs.to_words()), inputs);
        }
    }

    /// The plan of PE 0 of two hosts with one PE each, or why there is none.
    fn planned(environment: &[(&str, &str)], window: u64) -> Result<LanePlan, String> {
        planned_by(environment, window, None)
    }

    /// The same by inputs of others.
    fn planned_by(
        environment: &[(&str, &str)],
        window: u64,
        inputs: Option<PlanInputs>,
    ) -> Result<LanePlan, String> {
        let spec = FabricSpec { window_size: Some(window), ..FabricSpec::new(2) };
        let pair = Fabric::create(&spec).unwrap().ports(0).unwrap();
        let ports: [Arc<dyn NtbPort>; 2] = [pair.right, pair.left];
        let hardware = Hardware::of_tests(ports, 0, 2);
        let environment = Environment::from_iter(environment.iter().copied());
        let settings = NtbSettings::read(&environment).unwrap();
        let config = Config::from_environment(environment).unwrap();
        let localities = [0, 1].map(Locality::alone_on);
        let job = Job { pe: 0, localities: &localities, config: &config, meeting: None };
        let own = PlanInputs::of(&hardware, &job, &settings);
        let inputs = PlanInputs::of_all([Some(own), inputs].into_iter().flatten())?;
        LanePlan::new(&hardware, &job, &inputs, &settings)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

        /// Whatever another PE says that it can do: lanes lie in this host's window, or there is no
        /// plan.
        #[test]
        fn garbage_in_inputs_does_no_harm(
            noise in any::<[u64; PlanInputs::WORDS]>(), kept in any::<[bool; PlanInputs::WORDS]>(),
        ) {
            let good = INPUTS.to_words();
            let words = std::array::from_fn(|at| if kept[at] { good[at] } else { noise[at] });
            if let Ok(plan) = planned_by(&[], 1 << 20, Some(PlanInputs::from_words(words))) {
                let share = plan.window.share(plan.lanes - 1, plan.lanes);
                prop_assert!(share.end as u64 * plan.window.slot_size() <= 1 << 20, "{:?}", plan.window);
                let room = share.len() as u64 * plan.window.slot_size();
                prop_assert!(plan.geometry().region_bytes() as u64 <= room);
                prop_assert!((1..=64).contains(&plan.doorbells));
            }
        }
    }

    #[test]
    fn settings_are_kept_or_refused_with_their_names() {
        let both = [("SHMEM_NTB_CHUNK", "1k"), ("SHMEM_NTB_LANES", "3")];
        let plan = planned(&both, 1 << 20).unwrap();
        assert_eq!((plan.geometry().chunk_bytes(), plan.lanes_per_pe, plan.lanes), (1024, 3, 3));
        let many = planned(&[("SHMEM_NTB_LANES", "200")], 1 << 20).err().expect("refused");
        assert!(many.contains("200 lanes each") && many.contains("SHMEM_NTB_LANES"), "{many}");
        let long = [("SHMEM_NTB_CHUNK", "64k"), ("SHMEM_NTB_LANES", "8")];
        let why = planned(&long, 1 << 20).err().expect("refused");
        assert!(why.contains("SHMEM_NTB_CHUNK does not fit"), "{why}");
    }

    #[test]
    fn without_settings_the_plan_says_why() {
        let plan = planned(&[], 64 << 20).unwrap();
        let lines = plan.describe().join("\n");
        assert!(lines.contains("why: ") && lines.contains("as fast as memory"), "{lines}");
    }

    #[test]
    fn the_least_of_all_counts() {
        let slow = PlanInputs { line_mbs: Some(3600), cores: 9, ..INPUTS };
        let small = Window { size: 16 << 20, slots: 256, has_limit: true, ..WINDOW };
        let short = PlanInputs { max_payload: 128, cores: 2, window: Some(small), ..INPUTS };
        let few = PlanInputs { doorbells: 4, store_bytes: 8, dma: true, ..INPUTS };
        let agreed = PlanInputs::of_all([INPUTS, slow, short, few].into_iter()).unwrap();
        let window = Some(Window { size: 16 << 20, slots: 16, ..WINDOW });
        let least = PlanInputs {
            line_mbs: Some(3600),
            max_payload: 128,
            store_bytes: 8,
            cores: 2,
            window,
            doorbells: 4,
            dma: false,
        };
        assert_eq!(agreed, least);
    }
}
