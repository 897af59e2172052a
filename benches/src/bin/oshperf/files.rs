// SPDX-License-Identifier: Apache-2.0
//! Files that the user asks for.

use serde::Serialize;
use std::path::{Path, PathBuf};
use tombolo_selector::files;

fn named<T>(path: &Path, done: std::io::Result<T>) -> Result<T, String> {
    done.map_err(|why| format!("{}: {why}", path.display()))
}

/// Whether they can be written; see [`files::check`].
pub fn check<'a>(paths: impl IntoIterator<Item = &'a Option<PathBuf>>) -> Result<(), String> {
    paths.into_iter().flatten().try_for_each(|path| named(path, files::check(path)))
}

/// A folder that is removed when this value is, with a name that tells people whose it is when this
/// process is killed before.
pub fn passing_folder() -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("tombolo-oshperf-").tempdir()
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
