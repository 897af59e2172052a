// SPDX-License-Identifier: Apache-2.0
//! `cargo dev package`: an installation as one file, to be unpacked at any place, and as packages of
//! Debian.

mod deb;
mod scripts;

use crate::Tree;
use crate::install::install;
use crate::steps::{Failure, announce, find, output, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub fn package(tree: &Tree, args: &[String]) -> Result<(), Failure> {
    let (of, to) = match args {
        [] => (None, tree.target("package")),
        [of, prefix, to, folder] if of == "--of" && to == "--to" => {
            (Some(Path::new(prefix)), PathBuf::from(folder))
        }
        _ => return Err(Failure::new("usage: cargo dev package [--of PREFIX --to DIR]")),
    };
    // Some tools are started in other folders.
    let to = std::path::absolute(&to)
        .map_err(|error| Failure::new(format!("--to {}: {error}", to.display())))?;
    let name = format!("tombolo-{VERSION}-{}-linux", std::env::consts::ARCH);
    let root = to.join(&name);
    let place = |path: &Path| path.canonicalize().ok();
    let replaced = |prefix: &Path| {
        place(prefix).zip(place(&root)).is_some_and(|(prefix, root)| prefix.starts_with(root))
    };
    if of.is_some_and(replaced) {
        return Err(Failure::new(format!("--of: this command replaces {}", root.display())));
    }
    // What an earlier version installed and this one does not is not to be packed. Other files of the
    // folder are not of this command.
    remove(&root)?;
    remove(&to.join(deb::STAGES))?;
    match of {
        None => install(tree, &root)?,
        Some(prefix) => {
            fs::create_dir_all(&to)
                .map_err(|error| Failure::new(format!("{}: {error}", to.display())))?;
            run(Command::new("cp").args(["-a", "--"]).arg(prefix).arg(&root))?;
        }
    }
    let when = moment(tree);
    let file = to.join(format!("{name}.tar.zst"));
    announce(&format!("packing {}", file.display()));
    run(&mut archiver(&file, &to, &name, when))?;
    if find("dpkg-deb").is_none() {
        announce("no Debian packages: dpkg-deb is not installed");
        return Ok(());
    }
    let packages = deb::packages(tree, &root, &to, when)?;
    // What is made of an installation is for tests, which look at the packages themselves.
    match find("lintian") {
        Some(lintian) if of.is_none() => {
            announce("lintian");
            run(Command::new(lintian).args(["--allow-root", "--fail-on=error"]).args(packages))
        }
        _ => Ok(()),
    }
}

/// What packs the folder `name` in `to`. The archive depends on who packs it neither by names nor by permissions, which
/// that one's umask limits: all may read what somebody unpacks.
fn archiver(file: &Path, to: &Path, name: &str, when: u64) -> Command {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--zstd", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg("--mode=u+rw,go=rX").arg(format!("--mtime=@{when}"));
    tar.arg("--file").arg(file).arg("--directory").arg(to).arg(name);
    tar
}

/// The time that files in packages have, in seconds since 1970: that of the last commit, so that one
/// commit gives one package.
fn moment(tree: &Tree) -> u64 {
    let own = std::env::var("SOURCE_DATE_EPOCH").ok();
    let mut log = Command::new("git");
    log.arg("-C").arg(tree.path("")).args(["log", "-1", "--format=%ct"]);
    let commit = || output(log.stderr(std::process::Stdio::null())).ok();
    own.or_else(commit).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn remove(folder: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::new(format!("{}: {error}", folder.display())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn all_may_read_what_is_packed_by_somebody_private() {
        let folder = std::env::temp_dir().join(format!("tombolo-packed-{}", std::process::id()));
        let bin = folder.join("root/bin");
        fs::create_dir_all(&bin).unwrap();
        let allow = |path: &Path, mode| fs::set_permissions(path, PermissionsExt::from_mode(mode));
        for (name, mode) in [("program", 0o700), ("text", 0o600)] {
            fs::write(bin.join(name), "").unwrap();
            allow(&bin.join(name), mode).unwrap();
        }
        allow(&bin, 0o700).unwrap();
        let file = folder.join("root.tar.zst");
        run(&mut archiver(&file, &folder, "root", 0)).unwrap();
        let listed = output(Command::new("tar").arg("-tvf").arg(&file)).unwrap();
        let modes: Vec<&str> = listed.lines().map(|line| &line[..10]).collect();
        assert_eq!(modes[1..], ["drwxr-xr-x", "-rwxr-xr-x", "-rw-r--r--"], "{listed}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
