// SPDX-License-Identifier: Apache-2.0
//! Files that other users of the machine may have put in the way.

use std::fs::{DirBuilder, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A larger file is no table.
const SIZE_MAX: u64 = 16 << 20;

/// Whose files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This user's alone, and no links.
    Own,
    /// Anybody's: a person has named the file.
    Any,
}

/// The text of a regular file of reasonable size. Never waits, as for the other end of a FIFO.
pub fn read(path: &Path, owner: Owner) -> io::Result<String> {
    let nofollow = if owner == Owner::Own { libc::O_NOFOLLOW } else { 0 };
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | nofollow)
        .open(path)?;
    let found = file.metadata()?;
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    if !found.is_file() {
        return refused("it is no regular file".into());
    }
    if owner == Owner::Own && !is_own(&found) {
        return refused(format!("it belongs to user {}", found.uid()));
    }
    if found.len() > SIZE_MAX {
        return refused(format!("it is larger than {} MiB", SIZE_MAX >> 20));
    }
    let mut text = String::new();
    file.take(SIZE_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Replaces a file by one with `text`, whole: readers see the old file or the new one.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    // Under a random name, which must not exist.
    let mut file =
        tempfile::Builder::new().prefix("tuning-").suffix(".tmp").tempfile_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

/// Makes a directory that only this user may look into, unless there is one.
pub fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Whether files in a directory can be trusted; the error is for people. One that does not exist can
/// be made.
pub fn check_directory(path: &Path) -> Result<(), String> {
    check_above(path)?;
    let found = match path.metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e.to_string()),
        Ok(found) => found,
    };
    if !found.is_dir() {
        return Err("it is no directory".into());
    }
    if !is_own(&found) {
        return Err(format!("it belongs to user {}", found.uid()));
    }
    match found.mode() & 0o002 {
        0 => Ok(()),
        _ => Err("all users can write to it".into()),
    }
}

/// Refuses a place that others can move away and replace: below a directory that all users can write to,
/// unless only the owners of what lies there may remove it (the sticky bit, as in /tmp).
fn check_above(path: &Path) -> Result<(), String> {
    let nearest = path.ancestors().skip(1).find_map(|above| above.canonicalize().ok());
    // Where the directory itself is a link, also above what it leads to.
    let itself = path.canonicalize().ok().and_then(|found| Some(found.parent()?.to_owned()));
    for above in nearest.iter().chain(&itself).flat_map(|directory| directory.ancestors()) {
        let mode = above.metadata().map_err(|e| e.to_string())?.mode();
        if mode & 0o1002 == 0o002 {
            return Err(format!("all users can write to {}", above.display()));
        }
    }
    Ok(())
}

fn is_own(found: &Metadata) -> bool {
    found.uid() == nix::unistd::geteuid().as_raw()
}

/// Removes all but the `kept` newest regular files that are called `prefix` and more.
pub fn evict(directory: &Path, prefix: &str, kept: usize) -> io::Result<()> {
    let mut files: Vec<_> = std::fs::read_dir(directory)?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .filter_map(|entry| {
            let found = entry.metadata().ok().filter(Metadata::is_file)?;
            Some((found.modified().ok()?, entry.path()))
        })
        .collect();
    files.sort_unstable();
    let old = files.len().saturating_sub(kept);
    for (_, path) in files.drain(..old) {
        match std::fs::remove_file(path) {
            // Another job has done it.
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use std::fs::File;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::{Duration, SystemTime};

    #[test]
    fn what_is_no_file_of_ones_own_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("table"), "text").unwrap();
        symlink(at("table"), at("link")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        File::create(at("huge")).unwrap().set_len(SIZE_MAX + 1).unwrap();
        let why = |path: &Path, owner| read(path, owner).unwrap_err().to_string();
        for owner in [Owner::Own, Owner::Any] {
            assert_eq!(read(&at("table"), owner).unwrap(), "text");
            for other in ["/dev/zero", "/dev/null", "/proc"] {
                assert!(why(Path::new(other), owner).contains("no regular file"), "{other}");
            }
            assert!(why(&at("fifo"), owner).contains("no regular file"));
            assert!(why(&at("huge"), owner).contains("16 MiB"));
        }
        assert_eq!(read(&at("link"), Owner::Any).unwrap(), "text");
        assert!(read(&at("link"), Owner::Own).is_err());
    }

    #[test]
    fn a_file_of_another_user_is_not_read() {
        let other = Path::new("/etc/passwd");
        let owner = other.metadata().unwrap().uid();
        assert!(read(other, Owner::Any).is_ok());
        if owner == nix::unistd::geteuid().as_raw() {
            // As root: give one away.
            let file = tempfile::NamedTempFile::new().unwrap();
            nix::unistd::chown(file.path(), Some(65534.into()), None).unwrap();
            assert!(read(file.path(), Owner::Own).unwrap_err().to_string().contains("user 65534"));
        } else {
            assert!(read(other, Owner::Own).unwrap_err().to_string().contains("belongs to user"));
        }
    }

    #[test]
    fn a_link_in_the_way_is_replaced_and_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (victim, path) = (directory.path().join("victim"), directory.path().join("table"));
        std::fs::write(&victim, "precious").unwrap();
        symlink(&victim, &path).unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(read(&path, Owner::Own).unwrap(), "new");
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deeper/still");
        assert_eq!(check_directory(&path), Ok(()));
        make_directory(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(check_directory(&path), Ok(()));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(check_directory(&path).unwrap_err().contains("all users can write"));
        let file = directory.path().join("file");
        File::create(&file).unwrap();
        assert!(check_directory(&file).unwrap_err().contains("no directory"));
    }

    #[test]
    fn a_directory_that_others_can_replace_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let above = directory.path().join("shared");
        let path = above.join("of mine/deeper");
        make_directory(&path).unwrap();
        let set = |mode| std::fs::set_permissions(&above, PermissionsExt::from_mode(mode)).unwrap();
        let link = directory.path().join("link");
        symlink(&path, &link).unwrap();
        set(0o777);
        for path in [&path, &path.join("to/be/made"), &link, &link.join("made")] {
            let why = check_directory(path).unwrap_err();
            assert!(why.contains("all users can write to") && why.ends_with("/shared"), "{why}");
        }
        set(0o1777);
        assert_eq!(check_directory(&path), Ok(()));
        set(0o755);
        assert_eq!(check_directory(&link.join("made")), Ok(()));
    }

    #[test]
    fn the_newest_files_stay() {
        let directory = tempfile::tempdir().unwrap();
        for age in 0..40u64 {
            let file = File::create(directory.path().join(format!("tuning-{age}.json"))).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(60 * age)).unwrap();
        }
        File::create(directory.path().join("mine.json")).unwrap();
        evict(directory.path(), "tuning-", 32).unwrap();
        let exists = |name: &str| directory.path().join(name).exists();
        assert!((0..32).all(|age| exists(&format!("tuning-{age}.json"))));
        assert!(!(32..40).any(|age| exists(&format!("tuning-{age}.json"))));
        assert!(exists("mine.json"));
    }
}
