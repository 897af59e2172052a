// SPDX-License-Identifier: Apache-2.0
//! Ctrl-C: what was measured so far is kept.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static WANTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on the first interruption is only noted; the second one ends this process.
pub fn catch() -> std::io::Result<()> {
    let wanted = WANTED.get_or_init(Arc::default);
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // In this order: the first of them sees what the second one sets.
        signal_hook::flag::register_conditional_default(signal, wanted.clone())?;
        signal_hook::flag::register(signal, wanted.clone())?;
    }
    Ok(())
}

/// Whether the user wants to end.
pub fn wanted() -> bool {
    WANTED.get().is_some_and(|wanted| wanted.load(Ordering::Relaxed))
}
