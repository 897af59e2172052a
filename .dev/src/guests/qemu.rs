// SPDX-License-Identifier: Apache-2.0
//! QEMU 10.1 or later, for devices that other programs serve (vfio-user): from a later Debian on the
//! mirror of this machine, with all libraries that it needs.

use super::{AS_USER, extract};
use crate::suite::apt_get;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// The release whose packages it needs, and the suite that has it.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];
const PACKAGE: &str = "qemu-system-x86";
/// The keys that sign what Debian releases.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

pub fn what() -> String {
    format!("QEMU of {}", SUITES[1])
}

pub fn is_there(place: &Path) -> bool {
    place.join("qemu/usr/bin/qemu-system-x86_64").is_file()
}

/// Has apt work with lists and a state of its own: as if nothing were installed, so that all
/// libraries come along.
pub fn unpack(place: &Path) -> io::Result<()> {
    let (own, new) = (place.join("apt"), place.join("qemu.new"));
    for directory in ["lists/partial", "archives/partial", "none"] {
        fs::create_dir_all(own.join(directory))?;
    }
    let mirror = mirror()?;
    let sources: Vec<String> = SUITES
        .iter()
        .map(|suite| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n"))
        .collect();
    fs::write(own.join("sources.list"), sources.concat())?;
    fs::write(own.join("status"), "")?;
    let settings = [
        ("Dir::Etc::sourcelist", "sources.list"),
        ("Dir::Etc::sourceparts", "none"),
        ("Dir::Etc::preferences", "none"),
        ("Dir::Etc::preferencesparts", "none"),
        ("Dir::State", ""),
        ("Dir::State::status", "status"),
        ("Dir::State::lists", "lists"),
        ("Dir::Cache", ""),
        ("Dir::Cache::archives", "archives"),
    ];
    let settings = settings.map(|(name, file)| format!("{name}={}", own.join(file).display()));
    let options = settings.iter().flat_map(|setting| ["-o", setting]).chain(AS_USER);
    let options: Vec<&str> = options.collect();
    let download = ["--download-only", "-t", SUITES[1], PACKAGE];
    let fetched =
        apt_get("update", &options) && apt_get("install", &[&options[..], &download[..]].concat());
    if !fetched {
        return Err(io::Error::other(format!("apt-get could not fetch QEMU of {}", SUITES[1])));
    }
    extract(&own.join("archives"), &new, |_| true)?;
    let _ = fs::remove_dir_all(place.join("qemu"));
    fs::rename(&new, place.join("qemu"))?;
    fs::remove_dir_all(&own)
}

/// Where this machine gets Debian from.
fn mirror() -> io::Result<String> {
    let mut ask = Command::new("apt-get");
    ask.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"]);
    let told = |ask: &mut Command| -> io::Result<Option<String>> {
        let output = ask.stdin(Stdio::null()).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned))
    };
    if let Some(mirror) = told(&mut ask)? {
        return Ok(mirror);
    }
    // It is known once its lists are there.
    apt_get("update", &[]);
    told(&mut ask)?.ok_or_else(|| io::Error::other("apt knows no mirror of Debian"))
}
