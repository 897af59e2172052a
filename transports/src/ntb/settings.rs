// SPDX-License-Identifier: Apache-2.0
//! The environment variables of the NTB ring.

use super::port::emulated::{Profile, Speed, WINDOW_BYTES};
use super::ring::CHUNK_BYTES_MAX;
use std::fmt;
use std::os::fd::RawFd;
use std::time::Duration;
use tombolo_core::config::{Bytes, Least, Switch, Value};

/// Lanes that a packet can name.
pub const LANES_MAX: usize = 256;

tombolo_core::settings! {
    /// What the environment says of the NTB ring.
    pub struct NtbSettings {
        /// Hardware that emulated NTB ports imitate; the same for all PEs.
        User profile: Profile = "plx8749", "SHMEM_NTB_PROFILE", alike;
        /// Pace of emulated NTB links: "direct" is as fast as memory allows, "modelled" keeps the
        /// time of the hardware. The same for all PEs.
        User speed: Speed = "direct", "SHMEM_NTB_SPEED", alike;
        /// Size of each window of emulated NTB ports; empty for the sizes usual with the hardware.
        /// The same for all PEs.
        User window: Option<WindowBytes> = "", "SHMEM_NTB_WINDOW", alike;
        /// Protect all that crosses an NTB link by CRC32C; the same on all PEs.
        User crc: Switch = "off", "SHMEM_NTB_CRC", alike;
        /// Store directly into the memory of PEs on neighbouring hosts where NTB windows are large
        /// enough for it. Empty: the same, save for puts that were measured to be faster in packets.
        User direct: Option<Switch> = "", "SHMEM_NTB_DIRECT";
        /// Non-blocking puts of at least so many bytes to PEs on neighbouring hosts are made by the DMA
        /// engine of the NTB port, where it has one, and packets with at least so many bytes moved by
        /// it: the program can compute meanwhile. "off": no engine of a device is opened. "auto" for those
        /// puts that were measured to end sooner by the engine, or, where nothing was measured, are expected to by a
        /// model, and packets with 4 KiB and more, where links are slower than memory. The engine of an emulated link
        /// is a thread: where each PE has but one processor, "auto" leaves all packets to the processor, and where
        /// nothing was measured puts of less than about 250 KiB.
        User dma: Least = "auto", "SHMEM_NTB_DMA";
        /// The processor stores a packet's data in steps of 1 KiB, between which it takes in what has
        /// arrived; the same on all PEs. Empty: where links are slower than memory, but emulated ones only where
        /// each PE has two processors.
        User steps: Option<Switch> = "", "SHMEM_NTB_STEPS", alike;
        /// Lanes of each PE on the NTB ring, each with service threads of its own; the same on all
        /// PEs. Empty for as many as links and processors can use.
        User lanes: Option<Lanes> = "", "SHMEM_NTB_LANES" or "SHMEM_NTB_THREADS", alike;
        /// Bytes that a packet on the NTB ring carries at most; the same on all PEs. Empty for what
        /// suits the links.
        User chunk: Option<Chunk> = "", "SHMEM_NTB_CHUNK", alike;
        /// Time in seconds after which another host is given up that does not answer although its link
        /// is up: it may be stopped, for example by a debugger. A host whose links are down is given
        /// up after 2 seconds.
        User silence: Duration = "30", "SHMEM_NTB_SILENCE";
        /// PCI addresses of the NTB devices to the left and to the right of this host, such as
        /// 0000:3b:00.0,0000:5e:00.0, or of one device at an end of a line of hosts. Empty where the host has no
        /// more than two: which is which is learned from the cables.
        User ports: Option<Ports> = "", "SHMEM_NTB_PORTS";
        /// Descriptors of the emulated NTB links to the left and to the right of this host.
        Launcher links: Option<Links> = "", "TOMBOLO_NTB_FD";
    }
}

impl NtbSettings {
    /// Whether the memory of neighbours is stored to.
    pub fn stores(&self) -> bool {
        self.direct.is_none_or(|direct| direct.0)
    }
}

/// Size of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBytes(pub u64);

impl Value for WindowBytes {
    const FORM: &'static str = "a power of two from 1m to 1t";

    fn parse(text: &str) -> Result<Self, String> {
        let bytes = Bytes::parse(text).ok().map(|bytes| bytes.0);
        let fits = |bytes: &u64| bytes.is_power_of_two() && WINDOW_BYTES.contains(bytes);
        bytes.filter(fits).map(WindowBytes).ok_or_else(|| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bytes(self.0).show(f)
    }
}

/// Bytes that a packet carries at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk(pub usize);

impl Value for Chunk {
    const FORM: &'static str = "a multiple of 64, up to 64k";

    fn parse(text: &str) -> Result<Self, String> {
        let bytes = Bytes::parse(text).ok().and_then(|bytes| usize::try_from(bytes.0).ok());
        let fits =
            |bytes: &usize| *bytes > 0 && bytes.is_multiple_of(64) && *bytes <= CHUNK_BYTES_MAX;
        bytes.filter(fits).map(Chunk).ok_or_else(|| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Bytes(self.0 as u64).show(f)
    }
}

/// Lanes of a PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes(pub usize);

impl Value for Lanes {
    const FORM: &'static str = "a whole number from 1 to 256";

    fn parse(text: &str) -> Result<Self, String> {
        let number = text.trim().parse().ok().filter(|number| (1..=LANES_MAX).contains(number));
        number.map(Lanes).ok_or_else(|| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// PCI addresses of a host's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// To the host before it; none if the other one is all there is.
    pub left: Option<String>,
    /// To the host after it.
    pub right: String,
}

impl Value for Ports {
    const FORM: &'static str = "a PCI address, or two different ones, separated by a comma";

    fn parse(text: &str) -> Result<Self, String> {
        let address = |text: &str| {
            let text = text.trim().to_ascii_lowercase();
            let lengths: Vec<usize> = text.split([':', '.']).map(str::len).collect();
            let digits = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
            // The domain is mostly left out.
            match (text.chars().all(digits), &lengths[..]) {
                (true, [4, 2, 2, 1]) => Some(text),
                (true, [2, 2, 1]) => Some(format!("0000:{text}")),
                _ => None,
            }
        };
        let ports = match text.split_once(',') {
            None => address(text).map(|right| Ports { left: None, right }),
            Some((left, right)) => {
                let pair = address(left).zip(address(right)).filter(|(left, right)| left != right);
                pair.map(|(left, right)| Ports { left: Some(left), right })
            }
        };
        ports.ok_or_else(|| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.left {
            Some(left) => write!(f, "{left},{}", self.right),
            None => f.write_str(&self.right),
        }
    }
}

/// Descriptors of a host's two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    /// To the host before it.
    pub left: RawFd,
    /// To the host after it.
    pub right: RawFd,
}

impl Value for Links {
    const FORM: &'static str = "two descriptors, separated by a comma";

    fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse::<RawFd>().ok().filter(|fd| *fd >= 0);
        let pair = text
            .split_once(',')
            .and_then(|(left, right)| Some(Links { left: number(left)?, right: number(right)? }));
        pair.ok_or_else(|| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.left, self.right)
    }
}

impl fmt::Display for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::config::{Environment, Shown};

    fn read(name: &str, value: &str) -> Result<NtbSettings, String> {
        let environment = Environment::from_iter([(name, value)]);
        NtbSettings::read(&environment).map_err(|e| e.to_string())
    }

    #[test]
    fn defaults_parse_and_print_back() {
        for row in NtbSettings::read(&Environment::default()).unwrap().rows() {
            assert_eq!(row.value, row.variable.default, "{}", row.variable.name);
            assert_eq!(row.common, None, "{}", row.variable.name);
        }
    }

    #[test]
    fn values_are_kept_or_refused_with_their_rules() {
        assert_eq!(read("SHMEM_NTB_WINDOW", "64M").unwrap().window, Some(WindowBytes(64 << 20)));
        let ports = read("SHMEM_NTB_PORTS", "3B:00.0, 0001:5e:00.1").unwrap().ports.unwrap();
        let both = (ports.left.as_deref(), &*ports.right);
        assert_eq!(both, (Some("0000:3b:00.0"), "0001:5e:00.1"));
        let one = read("SHMEM_NTB_PORTS", "5e:00.1").unwrap().ports.unwrap();
        assert_eq!((one.left.as_deref(), &*one.right), (None, "0000:5e:00.1"));
        assert_eq!(Shown(&one).to_string(), "0000:5e:00.1");
        assert_eq!(read("SHMEM_NTB_CHUNK", "1k").unwrap().chunk, Some(Chunk(1024)));
        for name in ["SHMEM_NTB_LANES", "SHMEM_NTB_THREADS"] {
            assert_eq!(read(name, "3").unwrap().lanes, Some(Lanes(3)));
        }
        assert_eq!(read("TOMBOLO_NTB_FD", "5,6").unwrap().links, Some(Links { left: 5, right: 6 }));
        assert_eq!(read("SHMEM_NTB_SPEED", "Modelled").unwrap().speed, Speed::Modelled);
        for profile in Profile::ALL {
            assert_eq!(read("SHMEM_NTB_PROFILE", profile.name()).unwrap().profile, profile);
        }
        for (name, value) in [
            ("SHMEM_NTB_WINDOW", "3m"),
            ("SHMEM_NTB_WINDOW", "512k"),
            ("SHMEM_NTB_WINDOW", "2t"),
            ("SHMEM_NTB_CHUNK", "0"),
            ("SHMEM_NTB_CHUNK", "100"),
            ("SHMEM_NTB_CHUNK", "64g"),
            ("SHMEM_NTB_DMA", "0"),
            ("SHMEM_NTB_DMA", "always"),
            ("SHMEM_NTB_LANES", "0"),
            ("SHMEM_NTB_LANES", "257"),
            ("SHMEM_NTB_PORTS", "00:10.0,"),
            ("SHMEM_NTB_PORTS", "00:10.0,0000:00:10.0"),
            ("SHMEM_NTB_PORTS", "00:10.0,eth0"),
            ("SHMEM_NTB_SPEED", "fast"),
            ("SHMEM_NTB_PROFILE", "none"),
            ("TOMBOLO_NTB_FD", "5"),
            ("TOMBOLO_NTB_FD", "5,-1"),
        ] {
            let why = read(name, value).unwrap_err();
            assert!(why.starts_with(&format!("{name}='{value}': expected ")), "{why}");
        }
    }

    #[test]
    fn values_print_as_one_would_write_them() {
        let lanes = read("SHMEM_NTB_THREADS", "2").unwrap();
        let row = lanes.rows().into_iter().find(|row| row.variable.name == "SHMEM_NTB_LANES");
        assert_eq!(row.unwrap().common, Some("2".to_owned()));
        for (value, shown) in [("auto", "auto"), ("OFF", "off"), ("65536", "64k")] {
            let dma = read("SHMEM_NTB_DMA", value).unwrap().dma;
            assert_eq!(Shown(&dma).to_string(), shown);
        }
        assert_eq!(Shown(&read("SHMEM_NTB_CHUNK", "4096").unwrap().chunk).to_string(), "4k");
    }
}
