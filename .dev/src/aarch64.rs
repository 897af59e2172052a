// SPDX-License-Identifier: Apache-2.0
//! The library for aarch64, with which tests on other machines run programs under QEMU.

use crate::Tree;
use crate::steps::{Failure, announce, find, output, run};
use crate::suite::is_root;
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub const COMPILER: &str = "aarch64-linux-gnu-gcc";
/// Every program is linked with this file of the C library, whose package that of the compiler only recommends.
pub const C_LIBRARY: &str = "crt1.o of aarch64";
pub const QEMU: &str = "qemu-aarch64-static";
const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Where the library is, built; none without what builds it and what runs it.
pub fn provide(tree: &Tree) -> Result<Option<PathBuf>, Failure> {
    if cfg!(target_arch = "aarch64") || !has_c_library() || find(QEMU).is_none() {
        return Ok(None);
    }
    // A change of the user's compilers, which only those who run everything as root are taken to want.
    if !has_target(tree)
        && is_root()
        && let Some(rustup) = find("rustup")
    {
        announce(&format!("rustup target add {TARGET}"));
        let mut add = tree.command(&rustup);
        let _ = add.args(["target", "add", TARGET]).stdout(Stdio::null()).status();
    }
    if !has_target(tree) {
        return Ok(None);
    }
    announce("building the library for aarch64");
    let folder = tree.target("aarch64");
    let mut build = tree.cargo(&["build", "--package", "tombolo", "--lib"]);
    build.args(["--no-default-features", "--target", TARGET]);
    build.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER);
    // A folder of its own, so that no other build has to wait. Less optimised, it compiles faster; under QEMU programs are
    // slow whatever it is.
    run(build.env("CARGO_TARGET_DIR", &folder).env("CARGO_PROFILE_DEV_OPT_LEVEL", "1"))?;
    Ok(Some(folder.join(TARGET).join("debug")))
}

/// Whether there is a compiler that finds the C library for aarch64.
pub fn has_c_library() -> bool {
    let Some(compiler) = find(COMPILER) else { return false };
    // It prints the bare name of a file that it does not find.
    output(Command::new(compiler).arg("-print-file-name=crt1.o"))
        .is_ok_and(|place| place.trim_end().contains('/'))
}

/// Whether Rust's own library is installed for it.
fn has_target(tree: &Tree) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut ask = tree.command(rustc.as_ref());
    ask.args(["--print", "target-libdir", "--target", TARGET]);
    output(&mut ask).is_ok_and(|folder| PathBuf::from(folder.trim_end()).is_dir())
}
