// SPDX-License-Identifier: Apache-2.0
//! Ctrl-C and its like: what was measured so far is kept, and jobs are ended.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tombolo_core::process::is_ignored;

static WANTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on the first interruption is only noted; the second one ends this process. A terminal that hangs up
/// tells so more than once, which is no second interruption, and does not matter to a process that was started to
/// outlive it (`nohup`).
pub fn catch() -> std::io::Result<()> {
    let wanted = WANTED.get_or_init(Arc::default);
    let again = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first of them sees what the second one sets.
        signal_hook::flag::register_conditional_default(signal, again.clone())?;
        signal_hook::flag::register(signal, again.clone())?;
        signal_hook::flag::register(signal, wanted.clone())?;
    }
    if !is_ignored(SIGHUP) {
        signal_hook::flag::register(SIGHUP, wanted.clone())?;
    }
    Ok(())
}

/// Whether the user wants to end.
pub fn wanted() -> bool {
    WANTED.get().is_some_and(|wanted| wanted.load(Ordering::Relaxed))
}
