// SPDX-License-Identifier: Apache-2.0
//! Linux's NTB drivers, which Debian's kernels have not: built from Debian's sources of the kernel,
//! with its headers, as modules of the kernel that guests run.

use super::{AS_USER, depmod, extract, kernel, succeed};
use crate::suite::apt_get;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is built of the sources.
const SOURCES: [&str; 4] = [
    "drivers/ntb/core.c",
    "drivers/ntb/ntb_transport.c",
    "drivers/ntb/hw/epf/ntb_hw_epf.c",
    "drivers/net/ntb_netdev.c",
];
const KBUILD: &str = "\
obj-m := ntb.o ntb_transport.o ntb_hw_epf.o ntb_netdev.o
ntb-y := core.o
";

fn modules(system: &Path, kernel: &str) -> PathBuf {
    system.join("lib/modules").join(kernel).join("updates")
}

pub fn are_there(place: &Path) -> bool {
    let system = place.join("system");
    kernel(&system).is_ok_and(|kernel| modules(&system, &kernel).join("ntb_hw_epf.ko").is_file())
}

pub fn build(place: &Path) -> io::Result<()> {
    let system = place.join("system");
    let kernel = kernel(&system)?;
    let unknown = || io::Error::other(format!("a kernel {kernel}"));
    // As in 6.1.0-56-amd64: the second word after the version is the kind of machine.
    let (common, _) = kernel.rsplit_once('-').ok_or_else(unknown)?;
    let series: Vec<&str> = kernel.split(['.', '-']).take(2).collect();
    let series = series.join(".");
    let own = place.join("linux");
    let _ = fs::remove_dir_all(&own);
    fs::create_dir_all(own.join("archives"))?;
    let packages = [
        format!("linux-headers-{kernel}"),
        format!("linux-headers-{common}-common"),
        format!("linux-kbuild-{series}"),
        format!("linux-source-{series}"),
    ];
    download(&own.join("archives"), &packages)?;
    let tree = own.join("tree");
    extract(&own.join("archives"), &tree, |_| true)?;
    let sources = own.join("sources");
    fs::create_dir(&sources)?;
    let archive = tree.join(format!("usr/src/linux-source-{series}.tar.xz"));
    let mut tar = Command::new("tar");
    tar.arg("-xJf").arg(archive).arg("-C").arg(&sources).arg("--transform=s,.*/,,");
    let wanted = SOURCES.map(|file| format!("linux-source-{series}/{file}"));
    succeed(tar.args(wanted))?;
    fs::write(sources.join("Kbuild"), KBUILD)?;
    // It leads to where the package would be installed.
    let headers = tree.join("usr/src").join(&packages[0]);
    let makefile = tree.join("usr/src").join(&packages[1]).join("Makefile");
    fs::write(headers.join("Makefile"), format!("include {}\n", makefile.display()))?;
    let mut make = Command::new("make");
    make.arg("-sC").arg(&headers).arg(format!("M={}", sources.display())).arg("modules");
    succeed(make.stderr(Stdio::null()))?;
    let modules = modules(&system, &kernel);
    fs::create_dir_all(&modules)?;
    for entry in fs::read_dir(&sources)? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "ko") {
            fs::copy(entry.path(), modules.join(entry.file_name()))?;
        }
    }
    depmod(&system, &kernel)?;
    fs::remove_dir_all(&own)
}

/// Has apt put packages into a directory, whether they are installed or not.
fn download(directory: &Path, packages: &[String]) -> io::Result<()> {
    let fetch = || {
        let mut get = Command::new("apt-get");
        get.args(["-qq", "download"]).args(AS_USER).args(packages).current_dir(directory);
        succeed(&mut get)
    };
    // The lists of packages may be old.
    fetch().or_else(|error| if apt_get("update", &[]) { fetch() } else { Err(error) })
}
