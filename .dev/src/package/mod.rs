//! `cargo dev package`: an installation as one file, to be unpacked at any place.

use crate::Tree;
use crate::install::install;
use crate::steps::{Failure, announce, run};
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub fn package(tree: &Tree) -> Result<(), Failure> {
    let folder = tree.target("package");
    let name = format!("tombolo-{VERSION}-{}-linux", std::env::consts::ARCH);
    let root = folder.join(&name);
    // What an earlier version installed and this one does not is not to be packed.
    match std::fs::remove_dir_all(&root) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure::new(format!("{}: {error}", root.display())));
        }
        _ => install(tree, &root)?,
    }
    let file = folder.join(format!("{name}.tar.zst"));
    announce(&format!("packing {}", file.display()));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--zstd", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg("--file").arg(&file).arg("--directory").arg(&folder).arg(&name);
    run(&mut tar)
}
