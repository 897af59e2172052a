// SPDX-License-Identifier: Apache-2.0
//! Collectives in real worlds: every operation against a reference computed locally, back to back,
//! over memory that is mapped (`shm`) and memory that is not (`cma`).

mod collectives {
    mod crowd;
    mod data;
    mod forced;
    mod locks;
    mod support;
    mod sync;
    mod teams;
}
