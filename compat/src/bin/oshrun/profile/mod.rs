// SPDX-License-Identifier: Apache-2.0
//! `--profile` and `--trace`: what the PEs have counted, brought together and shown.
//!
//! - [`counted`]: what one PE has counted, as hosts tell it; [`events`]: that of a timeline.
//! - [`summary`]: all PEs together, by routine, size and way; [`advice`] follows from it.
//! - [`text`], [`html`], [`json`]: a profile for people and for programs; [`trace`]: a timeline.

mod advice;
pub mod counted;
pub mod events;
mod html;
mod json;
mod summary;
mod text;
mod trace;

use crate::output::write_all;
use crate::report;
use counted::Counted;
use events::{Event, Pieces};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use summary::Summary;
use tombolo_core::board::monotonic_ns;
use tombolo_selector::files;

/// Events that are kept of each PE unless the user says otherwise.
pub const EVENTS: usize = 1 << 16;

/// How a profile is shown, and where; without a path on standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    kind: Kind,
    path: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Html,
    Json,
}

impl Form {
    /// `text`, or `text:PATH`, `html:PATH`, `json:PATH`.
    pub fn parse(text: &str) -> Result<Form, String> {
        let (kind, path) = text.split_once(':').unwrap_or((text, ""));
        let kind = match kind {
            "text" => Kind::Text,
            "html" => Kind::Html,
            "json" => Kind::Json,
            _ => return Err("expected text, text:PATH, html:PATH or json:PATH".into()),
        };
        let path = (!path.is_empty()).then(|| std::path::absolute(path)).transpose();
        let path = path.map_err(|e| e.to_string())?;
        match (kind, &path) {
            (Kind::Html | Kind::Json, None) => {
                Err("expected a path, as in html:profile.html".into())
            }
            _ => Ok(Form { kind, path }),
        }
    }
}

/// What the user wants to see of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    pub profile: Option<Form>,
    pub trace: Option<PathBuf>,
    pub events: usize,
}

/// What PEs are to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counting {
    /// Events that each PE keeps.
    pub events: usize,
}

impl Wish {
    /// What PEs are to count, if anything.
    pub fn counting(&self) -> Option<Counting> {
        let events = if self.trace.is_some() { self.events } else { 0 };
        (self.profile.is_some() || self.trace.is_some()).then_some(Counting { events })
    }

    /// An error if what is to be written cannot be, before a job runs in vain.
    pub fn check(&self) -> Result<(), String> {
        let profile = self.profile.as_ref().and_then(|form| form.path.as_ref());
        if let Some(path) = profile.filter(|path| Some(*path) == self.trace.as_ref()) {
            return Err(format!("--profile and --trace name the same file, {}", path.display()));
        }
        let profile = self.profile.iter().filter_map(|form| form.path.as_deref());
        for path in profile.chain(self.trace.as_deref()) {
            files::check(path).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        }
        Ok(())
    }
}

/// Something that the launcher knows: when it happened, to whom, and what.
pub struct Incident {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    at: u64,
    pe: Option<usize>,
    text: String,
}

/// What a job has counted so far.
#[derive(Default)]
pub struct Collected {
    wish: Wish,
    pes: Vec<Counted>,
    /// Of PEs whose host has not told the rest.
    pieces: Pieces,
    incidents: Vec<Incident>,
}

impl Collected {
    pub fn new(wish: Wish) -> Collected {
        Collected { wish, ..Collected::default() }
    }

    /// Takes what a PE has counted.
    pub fn take(&mut self, mut counted: Counted) {
        self.pieces.join(&mut counted);
        self.pes.push(counted);
    }

    /// Takes events of a PE, of which the rest is still to come.
    pub fn take_events(&mut self, pe: usize, events: Vec<Event>) {
        self.pieces.take(pe, events);
    }

    /// Takes something that happened just now, if there is to be a timeline.
    pub fn note(&mut self, pe: Option<usize>, text: impl FnOnce() -> String) {
        if self.wish.trace.is_some() {
            self.incidents.push(Incident { at: monotonic_ns(), pe, text: text() });
        }
    }

    /// Whether something is to be shown.
    pub fn is_wanted(&self) -> bool {
        self.wish.counting().is_some()
    }

    /// Shows what was counted by PEs on these machines. False if that failed, which has been said.
    pub fn show(mut self, places: Vec<String>) -> bool {
        let size = places.len();
        self.pes.sort_by_key(|counted| counted.pe);
        let mut written = true;
        if let Some(form) = &self.wish.profile {
            let summary = Summary::new(size, &self.pes, places.clone());
            let shown = match form.kind {
                Kind::Text => text::render(&summary),
                Kind::Html => html::render(&summary),
                Kind::Json => json::render(&summary),
            };
            written &= put(form.path.as_deref(), |to| to.write_all(shown.as_bytes()));
        }
        if let Some(path) = &self.wish.trace {
            let trace =
                trace::Trace { size, pes: &self.pes, incidents: &self.incidents, places: &places };
            written &= put(Some(path), |to| trace.write(to));
            let lost: u64 = self.pes.iter().map(|pe| pe.lost_events).sum();
            if lost > 0 {
                report::line(format_args!(
                    "the timeline is without the {lost} oldest events, for which there was no room: \
                     --trace-events keeps more"
                ));
            }
        }
        let missing = size - self.pes.len().min(size);
        if missing > 0 {
            report::line(format_args!(
                "nothing is known of what {missing} of {size} PEs have counted"
            ));
        }
        written
    }
}

fn put(path: Option<&Path>, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> bool {
    let done = match path {
        Some(path) => files::write(path, write),
        None => {
            // Standard error is not locked while somebody is slow to read it.
            let mut text = vec![];
            write(&mut text).and_then(|()| write_all(io::stderr().as_fd(), &text))
        }
    };
    let name = path.map_or("standard error".into(), |path| path.display().to_string());
    if let Err(error) = &done {
        report::line(format_args!("cannot write {name}: {error}"));
    }
    done.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_read_as_people_write_them() {
        assert_eq!(Form::parse("text"), Ok(Form { kind: Kind::Text, path: None }));
        let form = Form::parse("html:/a/b.html").unwrap();
        assert_eq!((form.kind, form.path), (Kind::Html, Some("/a/b.html".into())));
        assert!(Form::parse("json:x.json").unwrap().path.unwrap().is_absolute());
        for wrong in ["", "html", "json:", "xml:/a"] {
            assert!(Form::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_job_that_does_not_begin_leaves_no_files() {
        let folder = std::env::temp_dir().join(format!("tombolo-wish-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let form = format!("json:{}", folder.join("profile.json").display());
        let trace = Some(folder.join("trace.json"));
        let checked = Wish { profile: Form::parse(&form).ok(), trace, events: 5 }.check();
        let left = std::fs::read_dir(&folder).unwrap().count();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((checked, left), (Ok(()), 0));
    }

    #[test]
    fn nothing_is_counted_unless_something_is_to_be_shown() {
        assert_eq!(Wish { events: 5, ..Wish::default() }.counting(), None);
        let profile = Wish { profile: Form::parse("text").ok(), events: 5, trace: None };
        assert_eq!(profile.counting(), Some(Counting { events: 0 }));
        let trace = Wish { profile: None, events: 5, trace: Some("/no/such/place/x".into()) };
        assert_eq!(trace.counting(), Some(Counting { events: 5 }));
        assert!(trace.check().is_err() && profile.check().is_ok());
        let both = Wish {
            profile: Form::parse("json:/tmp/x").ok(),
            trace: Some("/tmp/x".into()),
            events: 5,
        };
        assert!(both.check().unwrap_err().contains("the same file"));
    }
}
