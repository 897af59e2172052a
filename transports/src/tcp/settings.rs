// SPDX-License-Identifier: Apache-2.0
//! The environment variables of the transport over TCP.

tombolo_core::settings! {
    /// What the environment says of TCP.
    pub struct TcpSettings {
        /// Network interface for TCP: its name, its address, or a subnet such as 10.1.0.0/16; empty for that
        /// of the fastest network that all hosts share, else the first that leads to other hosts. Of several,
        /// separated by commas, each carries a part of long transfers, to the one at the same place in the
        /// other PE's list.
        User interface: String = "", "SHMEM_TCP_INTERFACE";
        /// Congestion control of TCP connections, by its name in Linux; system for that of the host. auto: that
        /// of the host too, but cubic or reno in place of bbr, which slows down transfers that have pauses
        /// between them.
        User congestion: String = "auto", "SHMEM_TCP_CONGESTION";
    }
}
