// SPDX-License-Identifier: Apache-2.0
//! Gives the shared library its name and its list of exported symbols, and tells it from which sources it is built.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    // The compiler passes a list of exported symbols too, and of the usual linkers only LLVM's takes two.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    if let Some(folder) = linker_of_toolchain() {
        println!("cargo:rustc-cdylib-link-arg=-B{}", folder.display());
    }
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
    println!("cargo:rerun-if-changed=exports.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={here}/exports.map");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtombolo.so.0");
    // By which debuggers find the symbols of packages.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--build-id=sha1");
    println!("cargo:rustc-link-arg-bins=-Wl,--build-id=sha1");
    // What runs at exit must still be there at exit, whoever loaded the library and closed it again.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rustc-env=TOMBOLO_BUILD={:016x}", sources(Path::new(&here)));
}

/// Folders with the crates whose code decides what PEs write for each other to read.
const CRATES: [&str; 5] = ["core", "transports", "selector", "collectives", "compat"];

/// A number that stands for the sources of the library, whatever folder they lie in and whether they come from
/// git or not.
///
/// Of this crate and those that it is built from it takes the files that the library is compiled from: a change of
/// one has it compiled again anyway. Where a registry has given each crate a folder of its own, only this one is
/// found, and versions tell the others apart.
fn sources(here: &Path) -> u64 {
    let workspace = here.parent().unwrap_or(here);
    let mut sum = Fnv(0xcbf2_9ce4_8422_2325);
    for name in CRATES {
        let folder = if name == "compat" { here.to_owned() } else { workspace.join(name) };
        let mut files = vec![];
        find(&folder.join("src"), &mut files);
        files.sort();
        for file in files {
            println!("cargo:rerun-if-changed={}", file.display());
            let text = fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            let place = file.strip_prefix(&folder).expect("found there").to_string_lossy();
            for part in [name.as_bytes(), place.as_bytes(), &text] {
                sum.add(&(part.len() as u64).to_le_bytes());
                sum.add(part);
            }
        }
    }
    sum.0
}

/// Source files below a folder, without those of programs and of tests, which the library is not compiled from.
fn find(folder: &Path, files: &mut Vec<PathBuf>) {
    const OTHERS: [&str; 7] =
        ["bin", "tests", "tests.rs", "testing", "testing.rs", "device_tests", "device_tests.rs"];
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        match path.is_dir() {
            _ if OTHERS.contains(&&*name) || name.starts_with('.') => {}
            true => find(&path, files),
            false if name.ends_with(".rs") => files.push(path),
            false => {}
        }
    }
}

/// The hash of Fowler, Noll and Vo: that of the standard library may change with the compiler.
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

/// Where the linker is that comes with the compiler, if one does.
fn linker_of_toolchain() -> Option<PathBuf> {
    let compiler = std::env::var_os("RUSTC")?;
    let sysroot = Command::new(compiler).args(["--print", "sysroot"]).output().ok()?.stdout;
    let sysroot = PathBuf::from(String::from_utf8(sysroot).ok()?.trim_end());
    let folder = sysroot.join("lib/rustlib").join(std::env::var_os("HOST")?).join("bin/gcc-ld");
    folder.is_dir().then_some(folder)
}
