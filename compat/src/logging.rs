//! Log lines on standard error, as much of them as `SHMEM_LOG` asks for.

use std::fmt;
use tombolo_core::{Error, Result};
use tracing::{Event, Level, Subscriber, field::Field, field::Visit};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Starts logging unless the program, or an earlier call, has set up a log of its own.
pub fn start() -> Result<()> {
    let text = std::env::var("SHMEM_LOG").unwrap_or_default();
    let level = parse(&text).ok_or_else(|| Error::Config {
        name: "SHMEM_LOG".into(),
        value: text,
        why: "expected error, warn, info or debug".into(),
    })?;
    // An error means that there is a log already.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .event_format(Lines)
        .try_init();
    Ok(())
}

fn parse(text: &str) -> Option<Level> {
    match text.to_ascii_lowercase().as_str() {
        "error" => Some(Level::ERROR),
        "" | "warn" => Some(Level::WARN),
        "info" => Some(Level::INFO),
        "debug" => Some(Level::DEBUG),
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_in_any_case_and_others_refused() {
        assert_eq!(parse(""), Some(Level::WARN));
        assert_eq!(parse("DEBUG"), Some(Level::DEBUG));
        assert_eq!(parse("loud"), None);
    }
}
