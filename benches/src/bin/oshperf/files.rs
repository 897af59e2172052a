// SPDX-License-Identifier: Apache-2.0
//! Files that the user asks for.

use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use tombolo_selector::files;

fn named<T>(path: &Path, done: std::io::Result<T>) -> Result<T, String> {
    done.map_err(|why| format!("{}: {why}", path.display()))
}

/// Whether they can be written: that is to be known before, and not after, all was measured.
pub fn check<'a>(paths: impl IntoIterator<Item = &'a Option<PathBuf>>) -> Result<(), String> {
    paths.into_iter().flatten().try_for_each(|path| {
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        named(path, file).map(drop)
    })
}

/// Writes a file.
pub fn put(path: &Path, text: &str) -> Result<(), String> {
    named(path, files::write(path, |to| to.write_all(text.as_bytes())))
}

/// Writes a file, if it is asked for.
pub fn write(
    path: &Option<PathBuf>,
    text: impl FnOnce() -> Result<String, String>,
) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    put(path, &text()?)
}

/// The same of a value.
pub fn json(path: &Option<PathBuf>, value: &impl Serialize) -> Result<(), String> {
    let text = || serde_json::to_string_pretty(value).map_err(|why| why.to_string());
    write(path, || text().map(|text| text + "\n"))
}
