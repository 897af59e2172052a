// SPDX-License-Identifier: Apache-2.0
//! The developer commands behind `cargo dev`. Small and with few dependencies: it is built before
//! anything else is.

mod aarch64;
mod check;
mod demo;
mod deny;
mod docs;
mod guests;
mod install;
mod licences;
mod package;
mod python;
mod side_by_side;
mod soak;
mod steps;
mod suite;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use steps::{Failure, run};

const HELP: &str = "\
Usage: cargo dev COMMAND

  demo                  build, install into target/tombolo, compile an example, run it on 4 PEs
  test [ARGUMENTS]      run every test of this repository; arguments go to `cargo test`
  check [--quick]       formatting, dependency directions, licences, clippy; --quick leaves clippy out
  conform [NAME]        run the conformance suite of the transports: all, or those named NAME
  docs                  write the guide and the reference as HTML into target/docs
  guests [ARGUMENTS]    run the tests that need guests: virtual machines with devices
  sim [ARGUMENTS]       run the NTB ring protocol under the simulator
  bench [ARGUMENTS]     install into target/tombolo and measure it; --help tells more
  soak --minutes N      attack jobs as the tests do, with other cases each time, for so long
  install --prefix DIR  build and install the library, headers, tools and manual pages
  licences              list what the library contains of others, with licences
  deny [ARGUMENTS]      have cargo-deny look at dependencies: licences, sources, known weaknesses
  package [--of PREFIX --to DIR]
                        write a *.tar.zst for any place and Debian packages into target/package:
                        of what is built, or of an installation
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[][..]),
    };
    let tree = Tree::find();
    let outcome = match command {
        "demo" | "docs" | "licences" if !rest.is_empty() => {
            Err(Failure::new(format!("{command} takes no arguments, but got '{}'", rest.join(" "))))
        }
        "demo" => demo::demo(&tree),
        "test" => suite::test(&tree, rest),
        "check" => check::check(&tree, rest),
        "docs" => docs::docs(&tree),
        "conform" => conform(&tree, rest),
        "guests" => guests::guests(&tree, rest),
        "sim" => sim(&tree, rest),
        "bench" => bench(&tree, rest),
        "soak" => soak::soak(&tree, rest),
        "install" => install::command(&tree, rest),
        "licences" => licences::print(&tree),
        "deny" => deny::deny(&tree, rest),
        "package" => package::package(&tree, rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(Failure::new(format!("unknown command '{other}'\n\n{HELP}"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("cargo dev: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn conform(tree: &Tree, args: &[String]) -> Result<(), Failure> {
    let suite = ["test", "--package", "tombolo-tests", "--test", "conformance", "--"];
    run(tree.cargo(&suite).args(args))
}

fn sim(tree: &Tree, args: &[String]) -> Result<(), Failure> {
    let sim = ["run", "--release", "--package", "tombolo-benches", "--bin", "ntbsim", "--"];
    run(tree.cargo(&sim).args(args))
}

/// Measures what it has just installed, so that the figures are those of this tree.
fn bench(tree: &Tree, args: &[String]) -> Result<(), Failure> {
    let prefix = tree.target("tombolo");
    install::install(tree, &prefix)?;
    let mut oshperf = Command::new(prefix.join("bin/oshperf"));
    run(oshperf.arg("against").args(args).current_dir(tree.path("")))
}

/// The source tree these commands work on.
pub struct Tree {
    root: PathBuf,
}

impl Tree {
    fn find() -> Tree {
        // Set by `cargo run`; the place of compilation serves a binary that is called by itself.
        let own = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        Tree { root: own.parent().unwrap_or(Path::new(".")).to_owned() }
    }

    /// A path within the tree.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// A path within the directory that cargo builds in.
    pub fn target(&self, relative: &str) -> PathBuf {
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        self.root.join(target).join(relative)
    }

    /// `cargo` with arguments, run at the root of the tree. It builds where [`Tree::target`] says, whatever the
    /// settings of the user.
    pub fn cargo(&self, args: &[&str]) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = self.command(Path::new(&cargo));
        command.args(args).env("CARGO_TARGET_DIR", self.target(""));
        command
    }

    /// A program, run at the root of the tree.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        // `cargo run` describes this crate in the environment, which would have crates that look
        // at it built anew each time.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        command
    }
}
