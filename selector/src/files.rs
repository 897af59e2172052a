// SPDX-License-Identifier: Apache-2.0
//! Files of results that a person has named.

use nix::unistd::geteuid;
use std::fs::{File, Metadata, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use tempfile::NamedTempFile;

/// Access for all whom the user's file mode creation mask does not exclude.
const ANYBODY: u32 = 0o666;

/// Writes a file. An older file stays as it is until the new one is whole, and is replaced then; the new one has its
/// permissions. So a full disk or a signal that kills the process costs no older results. A terminal, a pipe, a file of
/// another user, a file with several names, and one in a directory where no file can be made are written to directly.
///
/// Errors: those of the file system, and of `contents`.
pub fn write(
    path: &Path,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    // A link stays; what it leads to is replaced.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let Some(new) = beside(&target, target.metadata().ok()) else {
        return fill(&File::create(path)?, contents);
    };
    fill(new.as_file(), contents)?;
    new.persist(target)?;
    Ok(())
}

/// Whether a file can be written: that is to be known before, and not after, all work is done. One that was not there
/// before is not there after this: work that is cut short, or never begins, leaves no empty one.
///
/// Errors: those of the file system.
pub fn check(path: &Path) -> io::Result<()> {
    let is_new = !path.exists();
    File::options().create(true).append(true).open(path)?;
    // A link that led to nothing stays; what it leads to goes again.
    if is_new { path.canonicalize().and_then(std::fs::remove_file) } else { Ok(()) }
}

/// A new file in the directory of one that it can replace.
fn beside(target: &Path, old: Option<Metadata>) -> Option<NamedTempFile> {
    let is_own = |old: &Metadata| {
        let is_alone = old.is_file() && old.nlink() == 1 && old.uid() == geteuid().as_raw();
        is_alone && !old.permissions().readonly()
    };
    if !old.as_ref().is_none_or(is_own) {
        return None;
    }
    let directory = target.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let anybody = Permissions::from_mode(ANYBODY);
    let new = tempfile::Builder::new().permissions(anybody).tempfile_in(directory).ok()?;
    if let Some(old) = old {
        new.as_file().set_permissions(old.permissions()).ok()?;
    }
    Some(new)
}

fn fill(file: &File, contents: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut to = BufWriter::new(file);
    contents(&mut to)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn put(path: &Path, text: &str) -> io::Result<()> {
        write(path, |to| to.write_all(text.as_bytes()))
    }

    #[test]
    fn an_older_file_stays_until_the_new_one_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("result");
        put(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let fails = |to: &mut dyn Write| {
            to.write_all(b"new, but not whole")?;
            Err(io::ErrorKind::StorageFull.into())
        };
        assert!(write(&path, fails).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        put(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn links_and_what_is_no_file_stay_what_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        put(&at("result"), "old").unwrap();
        symlink("result", at("link")).unwrap();
        put(&at("link"), "new").unwrap();
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(at("result")).unwrap(), "new");
        fs::hard_link(at("result"), at("twin")).unwrap();
        put(&at("twin"), "newer").unwrap();
        assert_eq!(fs::read_to_string(at("result")).unwrap(), "newer");
        put(Path::new("/dev/null"), "gone").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert!(put(&at("none/result"), "new").is_err());
    }

    #[test]
    fn a_check_leaves_everything_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let entries = || fs::read_dir(directory.path()).unwrap().count();
        check(&at("new")).unwrap();
        assert_eq!(entries(), 0);
        put(&at("old"), "text").unwrap();
        symlink("nothing", at("link")).unwrap();
        ["old", "link"].iter().for_each(|name| check(&at(name)).unwrap());
        assert_eq!((entries(), fs::read_to_string(at("old")).unwrap()), (2, "text".into()));
        assert!(check(&at("none/new")).is_err());
    }
}
