// SPDX-License-Identifier: Apache-2.0
//! `cargo dev demo`: from a fresh clone to a running job.

use crate::Tree;
use crate::install::install;
use crate::steps::{Failure, announce, run, shown};
use std::process::Command;

pub fn demo(tree: &Tree) -> Result<(), Failure> {
    let prefix = tree.target("tombolo");
    install(tree, &prefix)?;
    let directory = tree.target("demo");
    std::fs::create_dir_all(&directory)
        .map_err(|error| Failure::new(format!("{}: {error}", directory.display())))?;
    let (program, picture) = (directory.join("heat"), directory.join("heat.png"));
    let mut compile = Command::new(prefix.join("bin/oshcc"));
    compile.arg("-O2").arg(prefix.join("share/tombolo/examples/heat.c"));
    compile.arg("-o").arg(&program).arg("-lm");
    announce(&shown(&compile));
    run(&mut compile)?;
    let mut job = Command::new(prefix.join("bin/oshrun"));
    job.args(["-n", "4"]).arg(&program).arg(&picture);
    announce(&shown(&job));
    run(&mut job)
}
