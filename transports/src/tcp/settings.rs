// SPDX-License-Identifier: Apache-2.0
//! The environment variables of the transport over TCP.

use super::ports::Ports;

tombolo_core::settings! {
    /// What the environment says of TCP.
    pub struct TcpSettings {
        /// Network interface for TCP: its name, its address, or a subnet such as 10.1.0.0/16; empty for that
        /// of the fastest network that all hosts share, else the first that leads to other hosts. Several names
        /// separated by commas share long transfers: the first interface of one PE talks to the first of the
        /// other, and so on.
        User interface: String = "", "SHMEM_TCP_INTERFACE";
        /// Ports that PEs listen at for TCP, for networks whose firewalls let these through: the first and the last,
        /// such as 50000-50100. A host needs as many as it has PEs, for each interface. auto: the system chooses.
        User ports: Ports = "auto", "SHMEM_TCP_PORTS";
        /// Congestion control of TCP connections, by its name in Linux; system for that of the host. auto: that
        /// of the host too, but cubic or reno in place of bbr, which slows down transfers that have pauses
        /// between them.
        User congestion: String = "auto", "SHMEM_TCP_CONGESTION";
    }
}
