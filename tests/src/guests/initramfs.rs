// SPDX-License-Identifier: Apache-2.0
//! The first files of a guest: a shell, and the kernel modules that reach its root directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What it takes to mount the files of this machine.
const MODULES: [&str; 3] = ["virtio_pci", "9pnet_virtio", "9p"];

const INIT: &str = "#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for module in /modules/*; do $b insmod $module; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro root /files
for d in proc sys dev; do $b mount --move /$d /files/$d; done
exec $b switch_root /files /bin/sh BOOT
";

/// The kernel: the program itself, where it is there, which QEMU loads and starts, or else the file that expands it.
pub fn kernel(system: &Path) -> io::Result<PathBuf> {
    let program = system.join("boot/vmlinux");
    if program.is_file() {
        return Ok(program);
    }
    entry(&system.join("boot"), "vmlinuz-")
}

/// The image: a `cpio` archive in the form that the kernel reads. The last thing it does is to run
/// the script `boot` of this machine.
pub fn build(system: &Path, boot: &Path) -> io::Result<Vec<u8>> {
    let modules = entry(&system.join("lib/modules"), "")?;
    let mut archive = Archive::default();
    for directory in ["bin", "dev", "files", "modules", "proc", "sys"] {
        archive.add(directory, 0o040_755, &[]);
    }
    archive.add("bin/busybox", 0o100_755, &fs::read(system.join("bin/busybox"))?);
    archive.add("init", 0o100_755, INIT.replace("BOOT", &boot.display().to_string()).as_bytes());
    for (index, module) in load_order(&modules, &MODULES)?.iter().enumerate() {
        archive.add(&format!("modules/{index:03}"), 0o100_644, &fs::read(modules.join(module))?);
    }
    archive.add("TRAILER!!!", 0, &[]);
    Ok(archive.bytes)
}

/// The first entry of a directory whose name begins so.
fn entry(directory: &Path, start: &str) -> io::Result<PathBuf> {
    let entries = fs::read_dir(directory)?.flatten();
    let named = |e: &fs::DirEntry| e.file_name().to_string_lossy().starts_with(start);
    let found = entries.map(|entry| (named(&entry), entry.path())).find(|(named, _)| *named);
    let missing = || io::Error::other(format!("nothing in {}", directory.display()));
    found.map(|(_, path)| path).ok_or_else(missing)
}

/// Files of modules, each after those it depends on.
fn load_order(modules: &Path, wanted: &[&str]) -> io::Result<Vec<String>> {
    let table = fs::read_to_string(modules.join("modules.dep"))?;
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        let file = format!("/{name}.ko");
        let lines = table.lines().filter_map(|line| line.split_once(':'));
        let found = lines.into_iter().find(|(module, _)| module.ends_with(&file));
        let (module, needs) = found.ok_or_else(|| {
            io::Error::other(format!("the kernel has no module {name}, or packs it"))
        })?;
        // The table names the nearest first, which need those further on.
        let all = needs.split_whitespace().rev().chain([module]);
        for file in all {
            if !order.iter().any(|known| known == file) {
                order.push(file.to_owned());
            }
        }
    }
    Ok(order)
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    files: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.files += 1;
        let (size, name_size) = (content.len() as u32, name.len() as u32 + 1);
        let fields = [self.files, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        fields.iter().for_each(|field| self.bytes.extend(format!("{field:08x}").bytes()));
        self.bytes.extend(name.bytes().chain([0]));
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
