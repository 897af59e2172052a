// SPDX-License-Identifier: Apache-2.0
//! Which PCI functions this build drives, and as what.

/// A kind of NTB device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// What people call it.
    pub name: &'static str,
    vendor: u16,
    devices: &'static [u16],
    /// The class, where functions of other classes have the same numbers.
    pub(super) class: Option<u32>,
    /// What it is to a host.
    pub role: Role,
}

/// What a function is to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// One end of a link, which this port drives.
    Port(PortName),
    /// It serves the ports beside it.
    Engine(EngineName),
}

/// What drives one end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the modules")]
pub enum PortName {
    Amd,
    Epf,
    Intel,
    Ivshmem,
    Plx,
    Switchtec,
}

/// What drives a DMA engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the modules")]
pub enum EngineName {
    Ioat,
    Plx,
}

impl Role {
    /// How it is driven, for people.
    pub fn describe(self) -> &'static str {
        match self {
            Role::Port(PortName::Amd) => "by port amd",
            Role::Port(PortName::Epf) => "by port epf",
            Role::Port(PortName::Intel) => "by port intel",
            Role::Port(PortName::Ivshmem) => "by port ivshmem",
            Role::Port(PortName::Plx) => "by port plx",
            Role::Port(PortName::Switchtec) => "by port switchtec",
            Role::Engine(EngineName::Ioat) => "as DMA engine ioat",
            Role::Engine(EngineName::Plx) => "as DMA engine plx",
        }
    }
}

impl Kind {
    /// The device of QEMU.
    pub const IVSHMEM: Kind = Kind {
        name: "shared memory of virtual machines (ivshmem)",
        vendor: 0x1af4,
        devices: &[0x1110],
        class: None,
        role: Role::Port(PortName::Ivshmem),
    };

    pub(super) fn of(kinds: &[Kind], vendor: u16, device: u16) -> Option<Kind> {
        let is = |kind: &&Kind| kind.vendor == vendor && kind.devices.contains(&device);
        kinds.iter().find(is).copied()
    }

    /// Whether it is one end of a link.
    pub fn is_port(&self) -> bool {
        matches!(self.role, Role::Port(_))
    }

    /// Whether it reaches memory of the program: that takes an IOMMU, and memory that the kernel locks.
    pub fn opens_memory(&self) -> bool {
        self.role != Role::Port(PortName::Ivshmem)
    }

    /// Whether its port can have DMA engines beside it.
    pub fn uses_engines(&self) -> bool {
        use PortName::{Amd, Epf, Intel, Plx};
        matches!(self.role, Role::Port(Plx | Intel | Amd | Epf))
    }
}

/// Functions that are one end of a link.
pub(super) const PORTS: &[Kind] = &[
    Kind::IVSHMEM,
    Kind {
        name: "Intel Xeon NTB, generation 1",
        vendor: 0x8086,
        devices: &[0x3725, 0x3c0d, 0x0e0d, 0x2f0d, 0x6f0d],
        class: None,
        role: Role::Port(PortName::Intel),
    },
    Kind {
        name: "Intel Xeon NTB, generation 3",
        vendor: 0x8086,
        devices: &[0x201c],
        class: None,
        role: Role::Port(PortName::Intel),
    },
    Kind {
        name: "Intel Xeon NTB, generation 4",
        vendor: 0x8086,
        devices: &[0x347e],
        class: None,
        role: Role::Port(PortName::Intel),
    },
    Kind {
        name: "PLX PEX87xx NTB",
        vendor: 0x10b5,
        devices: &[0x87a0, 0x87a1, 0x87b0, 0x87b1],
        class: None,
        role: Role::Port(PortName::Plx),
    },
    Kind {
        name: "AMD NTB",
        vendor: 0x1022,
        devices: &[0x145b, 0x148b, 0x14c0, 0x14c3, 0x155a],
        class: None,
        role: Role::Port(PortName::Amd),
    },
    Kind {
        name: "Switchtec NTB",
        vendor: 0x11f8,
        devices: &[
            0x8531, 0x8532, 0x8533, 0x8534, 0x8535, 0x8536, 0x8541, 0x8542, 0x8543, 0x8544, 0x8545,
            0x8546, 0x8551, 0x8552, 0x8553, 0x8554, 0x8555, 0x8556, 0x8561, 0x8562, 0x8563, 0x8564,
            0x8565, 0x8566, 0x8571, 0x8572, 0x8573, 0x8574, 0x8575, 0x8576,
        ],
        // Those that manage a switch are another one.
        class: Some(0x06_8000),
        role: Role::Port(PortName::Switchtec),
    },
    Kind {
        name: "PCI endpoint function as NTB",
        vendor: 0x1957,
        devices: &[0x0809],
        class: None,
        role: Role::Port(PortName::Epf),
    },
];

/// DMA engines that write through bridges.
pub(super) const ENGINES: &[Kind] = &[
    Kind {
        name: "DMA channel of a PLX switch",
        vendor: 0x10b5,
        devices: &[0x87d0],
        // As the kernel's driver has it.
        class: Some(0x08_8000),
        role: Role::Engine(EngineName::Plx),
    },
    Kind {
        name: "DMA channel of an Intel Xeon (I/OAT)",
        vendor: 0x8086,
        devices: &[
            0x3710, 0x3711, 0x3712, 0x3713, 0x3714, 0x3715, 0x3716, 0x3717, 0x3718, 0x3719, 0x3c20,
            0x3c21, 0x3c22, 0x3c23, 0x3c24, 0x3c25, 0x3c26, 0x3c27, 0x3c2e, 0x3c2f, 0x0e20, 0x0e21,
            0x0e22, 0x0e23, 0x0e24, 0x0e25, 0x0e26, 0x0e27, 0x0e2e, 0x0e2f, 0x2f20, 0x2f21, 0x2f22,
            0x2f23, 0x2f24, 0x2f25, 0x2f26, 0x2f27, 0x2f2e, 0x2f2f, 0x6f20, 0x6f21, 0x6f22, 0x6f23,
            0x6f24, 0x6f25, 0x6f26, 0x6f27, 0x6f2e, 0x6f2f, 0x2021, 0x0b00,
        ],
        class: None,
        role: Role::Engine(EngineName::Ioat),
    },
];
