// SPDX-License-Identifier: Apache-2.0
//! The environment variables of the transport over verbs.

tombolo_core::settings! {
    /// What the environment says of RDMA devices.
    pub struct VerbsSettings {
        /// RDMA device, as ibv_devices lists them; empty for the first one that works, RoCE devices in a network
        /// that all hosts share before others. Of several, separated by commas, each carries a part of long
        /// transfers, to the one at the same place in the other PE's list.
        User device: String = "", "SHMEM_VERBS_DEVICE";
        /// Port of the RDMA device; empty for the first active one. Several as with SHMEM_VERBS_DEVICE.
        User port: String = "", "SHMEM_VERBS_PORT";
        /// Index of this PE's address in the port's table of GIDs; empty for the best, which is that
        /// of RoCE version 2 in a network that all hosts share, or else over IPv4.
        User gid: Option<u32> = "", "SHMEM_VERBS_GID";
        /// What shows that data written over verbs can be read: a read that follows them, or the
        /// acknowledgement of the card, which takes less time but is not meant to say that. auto: read,
        /// but for devices that are software.
        User confirm: Confirm = "auto", "SHMEM_VERBS_CONFIRM";
        /// Who carries out atomic operations on variables of 8 bytes: the RDMA card of the target, or the
        /// target's processor. Where those of a card are not atomic with those of processors, it does on
        /// the variables of PEs whose memory nobody else of their host maps, for the PE itself too. auto:
        /// the card where it can, and where there is one. card: the card where it can, and it is told where
        /// it cannot.
        User amo: AmoBy = "auto", "SHMEM_VERBS_AMO", alike;
    }
}

tombolo_core::choice! {
    /// Who carries out atomic operations.
    AmoBy {
        /// The card where it can.
        Auto = "auto",
        /// The card; it is told where it cannot.
        Card = "card",
        /// The target's processor.
        Target = "target",
    }
}

tombolo_core::choice! {
    /// What shows that data can be read at the target.
    Confirm {
        /// What the device needs.
        Auto = "auto",
        /// A read that follows the data.
        Read = "read",
        /// The acknowledgement of the data.
        Acknowledgement = "ack",
    }
}

impl Confirm {
    /// Whether the acknowledgement is taken to show it, of a device that is software or not.
    pub fn is_by_acknowledgement(self, is_software: bool) -> bool {
        match self {
            Confirm::Auto => is_software,
            Confirm::Read => false,
            Confirm::Acknowledgement => true,
        }
    }
}
