// SPDX-License-Identifier: Apache-2.0
//! The environment variables of libfabric's transport.

tombolo_core::settings! {
    /// What the environment says of libfabric.
    pub struct OfiSettings {
        /// Provider of libfabric, whole as "tcp;ofi_rxm" or its first part; empty for the best that
        /// works. The same on all PEs.
        User provider: String = "", "SHMEM_OFI_PROVIDER", alike;
        /// Domain of libfabric, as fi_info lists them; empty for any.
        User domain: String = "", "SHMEM_OFI_DOMAIN";
        /// Network interface for libfabric: its name, its address, or a subnet such as 10.1.0.0/16;
        /// empty for any that leads to other hosts.
        User interface: String = "", "SHMEM_OFI_INTERFACE";
    }
}
