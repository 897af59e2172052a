// SPDX-License-Identifier: Apache-2.0
//! A panic at one PE ends the job: the others would wait for it for ever.

use crate::library::Library;
use std::cell::RefCell;
use std::panic;
use std::sync::Once;
use tombolo_core::error::report;
use tombolo_core::world;

thread_local! {
    /// Message and place of this thread's last panic.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The exit status of Rust programs that panic.
const STATUS: i32 = 101;

/// From now on message and place of panics are kept. What the hook in place does is done as well.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let owned = payload.downcast_ref::<String>().map(String::as_str);
            let message = payload.downcast_ref::<&str>().copied().or(owned);
            let message = message.unwrap_or("(no message)");
            let place = info.location().map(|place| format!(" at {place}")).unwrap_or_default();
            // Fails only where the thread is past its end.
            let _ = LAST.try_with(|last| last.replace(format!("{place}: {message}")));
            before(info);
        }));
    });
}

/// Ends the job after a panic of this thread.
pub fn end_the_job(library: &Library) -> ! {
    let what = LAST.try_with(RefCell::take).unwrap_or_default();
    report(format_args!("PE {}: panicked{what}: ends the job", library.world.pe()));
    world::end(&**library.world.bootstrap(), STATUS)
}
