// SPDX-License-Identifier: Apache-2.0
//! What guests of the tests are made of: QEMU and a kernel, unpacked from Debian packages into the
//! build directory. Nothing is installed on the machine.

use crate::Tree;
use crate::install::install;
use crate::steps::{Failure, announce, find, run};
use crate::suite::{apt_get, is_root};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// What is asked for; the packages that these depend on are fetched with them.
const PACKAGES: [&str; 4] = ["qemu-system-x86", "busybox-static", "linux-image-amd64", "perftest"];
/// Of these packages those are unpacked whose names begin so: the others are for a machine that
/// boots from a disk.
const UNPACKED: [&str; 9] = [
    "qemu-system-",
    "seabios_",
    "busybox-static_",
    "linux-image-",
    "kmod_",
    "lib",
    "ipxe-",
    "perftest_",
    "zlib",
];

/// `cargo dev guests`: the tests that run in guests, with what they need.
pub fn guests(tree: &Tree, args: &[String]) -> Result<(), Failure> {
    if let Some(missing) = provide(tree) {
        announce(&format!("no guests: {missing}"));
    }
    let prefix = tree.target("tombolo");
    install(tree, &prefix)?;
    let suite = ["test", "--workspace", "--test", "guests", "--"];
    run(tree.cargo(&suite).args(args).env("TOMBOLO_PREFIX", &prefix).env("TOMBOLO_GUESTS", "1"))
}

/// Fetches and unpacks what is missing, where that is possible; says why there is nothing.
pub fn provide(tree: &Tree) -> Option<String> {
    let place = tree.target("guests");
    // One of the packages that were asked for last.
    if place.join("system/usr/bin/ib_write_lat").is_file() {
        return None;
    }
    if !is_root() || find("apt-get").is_none() || find("dpkg-deb").is_none() {
        return Some("QEMU and a kernel are fetched by root, on Debian and its kin".into());
    }
    announce(&format!("unpacking {} in {}", PACKAGES.join(", "), place.display()));
    let done = unpack(&place);
    done.err().map(|error| format!("{}: {error}", place.display()))
}

fn unpack(place: &Path) -> std::io::Result<()> {
    let (archives, new) = (place.join("archives"), place.join("system.new"));
    fs::create_dir_all(archives.join("partial"))?;
    let _ = fs::remove_dir_all(&new);
    let cache = format!("Dir::Cache::archives={}", archives.display());
    // The files are read by the user who runs this, in a directory of that user.
    let options = [
        "--download-only",
        "-o",
        &cache,
        "-o",
        "APT::Sandbox::User=root",
        "-o",
        "Debug::NoLocking=1",
    ];
    let fetch = || apt_get("install", &[&options[..], &PACKAGES].concat());
    // The lists of packages may be absent or old; the second attempt renews them.
    if !(fetch() || apt_get("update", &[]) && fetch()) {
        return Err(std::io::Error::other("apt-get could not fetch the packages"));
    }
    for entry in fs::read_dir(&archives)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".deb") && UNPACKED.iter().any(|start| name.starts_with(start)) {
            succeed(Command::new("dpkg-deb").arg("-x").arg(entry.path()).arg(&new))?;
        }
    }
    for kernel in fs::read_dir(new.join("lib/modules"))? {
        // One program under several names.
        let mut depmod = Command::new(new.join("bin/kmod"));
        depmod.arg0("depmod").arg("-b").arg(&new).arg(kernel?.file_name());
        succeed(&mut depmod)?;
    }
    let _ = fs::remove_dir_all(place.join("system"));
    fs::rename(&new, place.join("system"))?;
    fs::remove_dir_all(&archives)
}

fn succeed(command: &mut Command) -> std::io::Result<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(std::io::Error::other(format!("{status}: {command:?}"))),
    }
}
