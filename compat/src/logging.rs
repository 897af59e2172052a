// SPDX-License-Identifier: Apache-2.0
//! Log lines on standard error, as much of them as `SHMEM_LOG` asks for.

use std::fmt;
use tombolo_core::config::Log;
use tracing::{Event, Level, Subscriber, field::Field, field::Visit};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Starts logging unless the program, or an earlier call, has set up a log of its own.
pub fn start(log: Log) {
    let level = match log {
        Log::Error => Level::ERROR,
        Log::Warn => Level::WARN,
        Log::Info => Level::INFO,
        Log::Debug => Level::DEBUG,
    };
    // An error means that there is a log already.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        // A line that cannot be written would be told by a panic, for want of standard error.
        .log_internal_errors(false)
        .event_format(Lines)
        .try_init();
}

/// `tombolo: warning: message`, the form of the library's other messages.
struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let severity = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            _ => "debug",
        };
        write!(writer, "tombolo: {severity}: ")?;
        let mut message = Message { writer: writer.by_ref(), result: Ok(()) };
        event.record(&mut message);
        message.result?;
        writeln!(writer)
    }
}

struct Message<'a> {
    writer: Writer<'a>,
    result: fmt::Result,
}

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_ok() {
            self.result = match field.name() {
                "message" => write!(self.writer, "{value:?}"),
                name => write!(self.writer, " {name}={value:?}"),
            };
        }
    }
}
