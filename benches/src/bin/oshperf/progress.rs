// SPDX-License-Identifier: Apache-2.0
//! How far a long run is, on a terminal; nothing elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A line at the end of the terminal.
pub struct Progress(ProgressBar);

impl Progress {
    /// For so many steps.
    pub fn new(steps: u64) -> Progress {
        let target = match std::io::stderr().is_terminal() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(steps), target);
        let form = "{bar:24} {percent:>3} %, about {eta} left  {wide_msg}";
        bar.set_style(ProgressStyle::with_template(form).expect("a valid template"));
        bar.enable_steady_tick(Duration::from_millis(500));
        Progress(bar)
    }

    /// Says what is done now.
    pub fn now(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }

    /// One step is done.
    pub fn step(&self) {
        self.0.inc(1);
    }

    /// A part is over, however many of its steps were done.
    pub fn reach(&self, steps: u64) {
        self.0.set_position(steps);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
