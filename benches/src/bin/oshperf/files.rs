// SPDX-License-Identifier: Apache-2.0
//! Files that the user asks for.

use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use tombolo_selector::files;

fn named<T>(path: &Path, done: std::io::Result<T>) -> Result<T, String> {
    done.map_err(|why| format!("{}: {why}", path.display()))
}

/// Whether they can be written: that is to be known before, and not after, all was measured. A file that
/// was not there before is not there after this: a run that is cut short leaves no empty one.
pub fn check<'a>(paths: impl IntoIterator<Item = &'a Option<PathBuf>>) -> Result<(), String> {
    paths.into_iter().flatten().try_for_each(|path| {
        let is_new = !path.exists();
        named(path, fs::OpenOptions::new().create(true).append(true).open(path))?;
        // A link that led to nothing stays; what it leads to goes again.
        match is_new {
            true => named(path, path.canonicalize().and_then(fs::remove_file)),
            false => Ok(()),
        }
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_leaves_everything_as_it_was() {
        let folder = passing_folder().unwrap();
        let at = |name: &str| Some(folder.path().join(name));
        let entries = || fs::read_dir(folder.path()).unwrap().count();
        check([&at("new"), &None]).unwrap();
        assert_eq!(entries(), 0);
        put(&at("old").unwrap(), "text").unwrap();
        std::os::unix::fs::symlink("nothing", at("link").unwrap()).unwrap();
        check([&at("old"), &at("link")]).unwrap();
        assert_eq!(
            (entries(), fs::read_to_string(at("old").unwrap()).unwrap()),
            (2, "text".into())
        );
        assert!(check([&at("none/new")]).is_err());
    }
}
