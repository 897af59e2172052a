// SPDX-License-Identifier: Apache-2.0
//! Files that the user asks for.

use serde::Serialize;
use std::fs;
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

/// The same of a report. One that is complete stays where this one is not: it cost as much time, and says more.
pub fn report(
    path: &Option<PathBuf>,
    report: &impl Serialize,
    complete: bool,
) -> Result<(), String> {
    match path.as_deref().filter(|path| !complete && is_complete(path)) {
        Some(path) => Err(format!("{}: the report there is complete and stays", path.display())),
        None => json(path, report),
    }
}

/// Whether a file holds a report that says so of itself. What is no file, as a terminal, is not read.
pub fn is_complete(path: &Path) -> bool {
    let text = path.is_file().then(|| fs::read_to_string(path).ok()).flatten();
    let report = text.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    report.is_some_and(|report| report["complete"] == true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_report_stays_where_a_new_one_is_not() {
        let folder = passing_folder().unwrap();
        let path = folder.path().join("report");
        let keep = |text: &str, complete| {
            let value = serde_json::json!({"complete": complete, "text": text});
            report(&Some(path.clone()), &value, complete)
        };
        let kept = || {
            let value: serde_json::Value =
                serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            value["text"].as_str().unwrap().to_owned()
        };
        for (text, complete) in [("part", false), ("other part", false), ("whole", true)] {
            keep(text, complete).unwrap();
            assert_eq!(kept(), text);
        }
        assert!(keep("part", false).unwrap_err().ends_with("complete and stays"));
        assert_eq!(kept(), "whole");
        keep("another whole", true).unwrap();
        assert_eq!(kept(), "another whole");
        // Of another form, or no report.
        for text in ["[1]", "", "{\"complete\": 1}"] {
            fs::write(&path, text).unwrap();
            assert!(!is_complete(&path), "{text}");
        }
        assert!(!is_complete(Path::new("/dev/zero")) && !is_complete(folder.path()));
        assert!(report(&None, &1, false).is_ok());
    }
}
