// SPDX-License-Identifier: Apache-2.0
//! What tests of Python programs need: NumPy, mpi4py and the source of shmem4py, in an environment of
//! their own in `target/python`.

use crate::Tree;
use crate::steps::find;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// shmem4py 1.0 is not made for NumPy 2. The last three are what compiles it.
const PACKAGES: [&str; 5] = ["numpy<2", "mpi4py>=4.1", "cffi", "setuptools", "wheel"];
const SHMEM4PY: &str = "shmem4py==1.0.0";
/// Where there is no network, that is to be known soon.
const NETWORK: [&str; 5] =
    ["--quiet", "--disable-pip-version-check", "--retries=1", "--timeout=20", "--no-input"];

/// The environment, made if it is not there; none where that is not possible.
pub fn provide(tree: &Tree) -> Option<PathBuf> {
    let folder = tree.target("python");
    if is_whole(&folder) {
        return Some(folder);
    }
    let _ = fs::remove_dir_all(&folder);
    let made = succeeds(Command::new(find("python3")?).args(["-m", "venv"]).arg(&folder));
    let pip = |what: &[&str]| {
        let mut pip = Command::new(folder.join("bin/pip"));
        succeeds(pip.args(&what[..1]).args(NETWORK).args(&what[1..]).current_dir(&folder))
    };
    let install = [&["install"], &PACKAGES[..]].concat();
    let source = ["download", "--no-deps", "--no-build-isolation", "--no-binary=:all:", SHMEM4PY];
    let fetched = made && pip(&install) && pip(&source);
    (fetched && unpack(&folder) && is_whole(&folder)).then_some(folder)
}

fn is_whole(folder: &Path) -> bool {
    let mut python = Command::new(folder.join("bin/python3"));
    folder.join("source").is_dir() && succeeds(python.args(["-c", "import numpy, cffi, mpi4py"]))
}

fn unpack(folder: &Path) -> bool {
    let source = folder.join("source");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut archives = entries.map(|entry| entry.path());
    let archive = archives.find(|path| path.to_string_lossy().ends_with(".tar.gz"));
    archive.is_some_and(|archive| {
        let mut tar = Command::new("tar");
        fs::create_dir_all(&source).is_ok()
            && succeeds(tar.arg("-xzf").arg(archive).arg("-C").arg(&source))
    })
}

fn succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
