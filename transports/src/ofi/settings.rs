// SPDX-License-Identifier: Apache-2.0
//! The environment variables of libfabric's transport.

tombolo_core::settings! {
    /// What the environment says of libfabric.
    pub struct OfiSettings {
        /// Provider of libfabric, whole as "tcp;ofi_rxm" or its first part; empty for the best that
        /// works. The same on all PEs.
        User provider: String = "", "SHMEM_OFI_PROVIDER", alike;
        /// Domain of libfabric, as fi_info lists them; empty for any. Several names separated by commas share
        /// long transfers: the first domain of one PE talks to the first of the other, and so on.
        User domain: String = "", "SHMEM_OFI_DOMAIN";
        /// Network interface for libfabric: its name, its address, or a subnet such as 10.1.0.0/16;
        /// empty for one in a network that all hosts share, else any that leads to other hosts. Several
        /// as with SHMEM_OFI_DOMAIN.
        User interface: String = "", "SHMEM_OFI_INTERFACE";
        /// Who carries out atomic operations: the target's processor, or the provider, which is worth a
        /// trial where a network card does. The provider does where every PE reaches every other one by
        /// libfabric alone, so not where two share a host; else the processor.
        User atomics: Atomics = "target", "SHMEM_OFI_ATOMICS", alike;
    }
}

tombolo_core::choice! {
    /// Who carries out atomic operations.
    Atomics {
        /// The target's processor.
        Target = "target",
        /// The provider.
        Provider = "provider",
    }
}
