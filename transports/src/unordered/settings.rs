// SPDX-License-Identifier: Apache-2.0
//! What the environment says of the transport without order.

tombolo_core::settings! {
    /// Settings of the transport without order.
    pub struct UnorderedSettings {
        /// Decides what the transport can do and in which order things happen: a number.
        User seed: u32 = "1", "SHMEM_UNORDERED_SEED", alike;
    }
}
