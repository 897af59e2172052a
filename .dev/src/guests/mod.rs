// SPDX-License-Identifier: Apache-2.0
//! What guests of the tests are made of: QEMU and a kernel, unpacked from Debian packages into the
//! build directory. Nothing is installed on the machine.

mod ntb;
mod qemu;
mod vmlinux;

use crate::Tree;
use crate::install::install;
use crate::steps::{Failure, announce, find, run};
use crate::suite::{apt_get, is_root};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// What is asked for; the packages that these depend on are fetched with them.
const PACKAGES: [&str; 3] = ["busybox-static", "linux-image-amd64", "perftest"];
/// Of these packages those are unpacked whose names begin so: the others are for a machine that
/// boots from a disk.
const UNPACKED: [&str; 6] =
    ["busybox-static_", "linux-image-", "kmod_", "lib", "perftest_", "zlib"];

/// The files are read by the user who runs this, in a directory of that user.
const AS_USER: [&str; 4] = ["-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1"];

/// `cargo dev guests`: the tests that run in guests, with what they need.
pub fn guests(tree: &Tree, args: &[String]) -> Result<(), Failure> {
    if let Some(missing) = provide(tree, Extent::All) {
        announce(&format!("no guests: {missing}"));
    }
    let prefix = tree.target("tombolo");
    install(tree, &prefix)?;
    let suite = ["test", "--workspace", "--test", "guests", "--"];
    run(tree.cargo(&suite).args(args).env("TOMBOLO_PREFIX", &prefix).env(WANTED, "all"))
}

/// The variable that has tests in guests run: "all", or "few", which `cargo dev test` prepares for.
pub const WANTED: &str = "TOMBOLO_GUESTS";

/// Which tests are to run.
#[derive(PartialEq)]
pub enum Extent {
    Few,
    All,
}

/// Fetches and unpacks what is missing, where that is possible; says why there is nothing.
pub fn provide(tree: &Tree, extent: Extent) -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some("they are machines for x86-64".into());
    }
    let place = tree.target("guests");
    type Part = (fn(&Path) -> bool, String, fn(&Path) -> io::Result<()>);
    let mut parts: Vec<Part> = vec![
        // One of the packages that were asked for last.
        (|place| place.join("system/usr/bin/ib_write_lat").is_file(), PACKAGES.join(", "), unpack),
        (qemu::is_there, qemu::what(), qemu::unpack),
        (vmlinux::is_there, "the kernel itself".into(), vmlinux::expand),
    ];
    if extent == Extent::All {
        parts.push((ntb::are_there, "Linux's NTB drivers".into(), ntb::build));
    }
    if parts.iter().all(|(is_there, ..)| is_there(&place)) {
        return None;
    }
    if !is_root() || find("apt-get").is_none() || find("dpkg-deb").is_none() {
        return Some("QEMU and a kernel are fetched by root, on Debian and its kin".into());
    }
    let mut missing = vec![];
    // Unpacking a part may remove others that are made from it, so each is looked for when it has its turn.
    for (is_there, what, make) in parts {
        if !is_there(&place) {
            announce(&format!("unpacking {what} in {}", place.display()));
            missing.extend(make(&place).err().map(|error| format!("{what}: {error}")));
        }
    }
    (!missing.is_empty()).then(|| format!("{}: {}", place.display(), missing.join("; ")))
}

fn unpack(place: &Path) -> io::Result<()> {
    let (archives, new) = (place.join("archives"), place.join("system.new"));
    fs::create_dir_all(archives.join("partial"))?;
    let cache = format!("Dir::Cache::archives={}", archives.display());
    let options = [&["--download-only", "-o", &cache][..], &AS_USER].concat();
    let fetch = || apt_get("install", &[&options[..], &PACKAGES].concat());
    // The lists of packages may be absent or old; the second attempt renews them.
    if !(fetch() || apt_get("update", &[]) && fetch()) {
        return Err(io::Error::other("apt-get could not fetch the packages"));
    }
    extract(&archives, &new, |name| UNPACKED.iter().any(|start| name.starts_with(start)))?;
    depmod(&new, &kernel(&new)?)?;
    let _ = fs::remove_dir_all(place.join("system"));
    fs::rename(&new, place.join("system"))?;
    fs::remove_dir_all(&archives)
}

/// The version of the kernel in a system.
fn kernel(system: &Path) -> io::Result<String> {
    let first = fs::read_dir(system.join("lib/modules"))?.next();
    let first = first.ok_or_else(|| io::Error::other("no kernel was unpacked"))??;
    Ok(first.file_name().to_string_lossy().into_owned())
}

/// Lists what modules of the kernel depend on.
fn depmod(system: &Path, kernel: &str) -> io::Result<()> {
    // One program under several names.
    let mut depmod = Command::new(system.join("bin/kmod"));
    succeed(depmod.arg0("depmod").arg("-b").arg(system).arg(kernel))
}

/// Unpacks the wanted ones of the packages in a directory.
fn extract(archives: &Path, new: &Path, wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    let _ = fs::remove_dir_all(new);
    for entry in fs::read_dir(archives)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".deb") && wanted(&name) {
            succeed(Command::new("dpkg-deb").arg("-x").arg(entry.path()).arg(new))?;
        }
    }
    Ok(())
}

fn succeed(command: &mut Command) -> io::Result<()> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{status}: {command:?}"))),
    }
}
