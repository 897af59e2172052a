// SPDX-License-Identifier: Apache-2.0
//! The environment variables of the transport over verbs.

tombolo_core::settings! {
    /// What the environment says of RDMA devices.
    pub struct VerbsSettings {
        /// RDMA device, as ibv_devices lists them; empty for the first one that works, RoCE devices in a network
        /// that all hosts share before others. Several names separated by commas share long transfers: the
        /// first device of one PE talks to the first of the other, and so on.
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
        /// Who carries out atomic operations on variables of 8 bytes. auto: the RDMA card of the target, if it
        /// supports them and only one card is used; otherwise the target's processor. card: the card, with a
        /// message where it cannot. target: always the target's processor. A card whose operations are not
        /// atomic with those of processors serves only PEs whose memory no other PE of their host maps, and
        /// then for the PE itself too.
        User amo: AmoBy = "auto", "SHMEM_VERBS_AMO", alike;
    }
}

tombolo_core::choice! {
    /// Who carries out atomic operations.
    AmoBy {
        /// The card, if it supports them and is the only one.
        Auto = "auto",
        /// The card, with a message where it cannot.
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
