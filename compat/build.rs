// SPDX-License-Identifier: Apache-2.0
//! Gives the shared library its name and its list of exported symbols.

use std::path::PathBuf;
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
}

/// Where the linker is that comes with the compiler, if one does.
fn linker_of_toolchain() -> Option<PathBuf> {
    let compiler = std::env::var_os("RUSTC")?;
    let sysroot = Command::new(compiler).args(["--print", "sysroot"]).output().ok()?.stdout;
    let sysroot = PathBuf::from(String::from_utf8(sysroot).ok()?.trim_end());
    let folder = sysroot.join("lib/rustlib").join(std::env::var_os("HOST")?).join("bin/gcc-ld");
    folder.is_dir().then_some(folder)
}
