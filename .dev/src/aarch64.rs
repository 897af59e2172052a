// SPDX-License-Identifier: Apache-2.0
//! The library for aarch64, with which tests on other machines run programs under QEMU.

use crate::Tree;
use crate::side_by_side::Job;
use crate::steps::{announce, find, output, run};
use crate::suite::is_root;
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub const COMPILER: &str = "aarch64-linux-gnu-gcc";
pub const QEMU: &str = "qemu-aarch64-static";
const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Where the cross compiler's package has the C library.
const SYSTEM: &str = "/usr/aarch64-linux-gnu";

/// Where the library is, built; none where it cannot be.
pub fn provide(tree: &Tree) -> Option<PathBuf> {
    if cfg!(target_arch = "aarch64") || find(COMPILER).is_none() || find(QEMU).is_none() {
        return None;
    }
    // A change of the user's compilers, which only those who run everything as root are taken to want.
    if !has_target(tree) && is_root() && find("rustup").is_some() {
        announce(&format!("rustup target add {TARGET}"));
        let mut add = tree.command(&find("rustup")?);
        let _ = add.args(["target", "add", TARGET]).stdout(Stdio::null()).status();
    }
    if !has_target(tree) {
        return None;
    }
    announce("building the library for aarch64");
    let mut build = tree.cargo(&["build", "--package", "tombolo", "--lib"]);
    run(set_up(build.args(["--no-default-features", "--target", TARGET]))).ok()?;
    Some(tree.target(TARGET).join("debug"))
}

/// What is written in assembly for aarch64 alone.
pub fn unit_tests(tree: &Tree) -> Job {
    let mut command = tree.cargo(&["test", "--package", "tombolo-collectives", "--lib"]);
    set_up(command.args(["--target", TARGET, "long_double"]));
    Job { name: "long double on aarch64".into(), command }
}

fn set_up(cargo: &mut Command) -> &mut Command {
    let runner = format!("{QEMU} -L {SYSTEM}");
    cargo
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner)
}

/// Whether Rust's own library is installed for it.
fn has_target(tree: &Tree) -> bool {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut ask = tree.command(rustc.as_ref());
    ask.args(["--print", "target-libdir", "--target", TARGET]);
    output(&mut ask).is_ok_and(|folder| PathBuf::from(folder.trim_end()).is_dir())
}
