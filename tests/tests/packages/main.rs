// SPDX-License-Identifier: Apache-2.0
//! What `cargo dev package` makes: the archive works where it is unpacked; Debian packages have no
//! fault that lintian knows, bring all that they need, live beside Open MPI, and leave nothing.

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod support;

mod root;

use libtest_mimic::{Failed, Trial};
use root::Root;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use support::program::run_trials;
use support::{Ran, crate_dir, installed, run, scratch};
use tombolo_tests::unless;

const PACKING: Duration = Duration::from_secs(300);
const LIMIT: Duration = Duration::from_secs(120);

/// What the shell in a root is given: the packages are in `/packages`.
const FRESH: &str = include_str!("fresh.sh");
const BESIDE: &str = include_str!("beside.sh");

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let made = Arc::new(Made { prefix: prefix.to_owned(), folder: OnceLock::new() });
    let no_dpkg = (!installed("dpkg-deb") || !installed("dpkg-shlibdeps"))
        .then_some("dpkg-dev is not installed");
    let no_lintian = (!installed("lintian")).then_some("lintian is not installed");
    let no_root = root::unavailable();
    let no_mpi = (!installed("mpirun.openmpi")).then_some("openmpi-bin is not installed");
    let trial =
        |name: &str, missing: Option<&'static str>, case: fn(&Path) -> Result<(), Failed>| {
            let made = made.clone();
            unless(missing, Trial::test(name, move || case(made.folder()?)))
        };
    vec![
        trial("an_unpacked_archive_works", None, unpacked),
        trial("lintian_finds_no_error", no_dpkg.or(no_lintian), no_error),
        trial("packages_bring_what_they_need", no_dpkg.or(no_root), in_a_fresh_root),
        trial("packages_live_beside_open_mpi", no_dpkg.or(no_root).or(no_mpi), beside_open_mpi),
    ]
}

/// A file that was in the folder before the packages.
const OF_OTHERS: &str = "letter.txt";

/// Packages of the installation, made when first needed.
struct Made {
    prefix: PathBuf,
    folder: OnceLock<Result<PathBuf, String>>,
}

impl Made {
    fn folder(&self) -> Result<&Path, String> {
        let made = self.folder.get_or_init(|| {
            let place = scratch("packages");
            let folder = place.join("made");
            let other = folder.join(OF_OTHERS);
            fs::create_dir_all(&folder)
                .and_then(|()| fs::write(other, ""))
                .map_err(|e| e.to_string())?;
            let mut dev = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
            let manifest = crate_dir().join("Cargo.toml");
            dev.current_dir(&place).args(["run", "--quiet", "--manifest-path"]).arg(manifest);
            dev.args(["--package", "tombolo-dev", "--", "package", "--of"]).arg(&self.prefix);
            // As seen from where the command is given.
            dev.args(["--to", "made"]);
            run(&mut dev, PACKING).map_err(|error| error.to_string())?.succeeded()?;
            Ok(folder)
        });
        made.as_deref().map_err(String::clone)
    }
}

/// Files of a folder whose names end so.
fn files(folder: &Path, end: &str) -> Result<Vec<PathBuf>, Failed> {
    let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let paths = entries.into_iter().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        paths.filter(|path| path.to_string_lossy().ends_with(end)).collect();
    found.sort();
    Ok(found)
}

fn unpacked(folder: &Path) -> Result<(), Failed> {
    let place = scratch("packages").join("a place, with blanks");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&place)?;
    assert!(folder.join(OF_OTHERS).is_file(), "a file of somebody else was removed");
    let [archive] = &files(folder, ".tar.zst")?[..] else { return Err("one archive".into()) };
    let mut tar = Command::new("tar");
    run(tar.arg("-xf").arg(archive).arg("-C").arg(&place), LIMIT)?.succeeded()?;
    let [prefix] = &files(&place, "-linux")?[..] else { return Err("one folder".into()) };
    let own = fs::read(prefix.join("share/doc/tombolo/LICENSE"))?;
    assert_eq!(own, fs::read(crate_dir().join("../LICENSE"))?);
    let terms = fs::read_to_string(prefix.join("share/doc/tombolo/THIRD-PARTY.txt"))?;
    for part in ["libc 0.2", "tokio 1.", "Permission is hereby granted"] {
        assert!(terms.contains(part), "{part} is not in the list of licences");
    }
    let program = place.join("ring");
    let mut oshcc = Command::new(prefix.join("bin/oshcc"));
    oshcc.arg(prefix.join("share/tombolo/examples/ring.c")).arg("-o").arg(&program);
    run(&mut oshcc, LIMIT)?.succeeded()?;
    let mut oshrun = Command::new(prefix.join("bin/oshrun"));
    oshrun.env("SHMEM_SYMMETRIC_SIZE", "16m").env("SHMEM_TUNE_CACHE", scratch("tuning"));
    says(run(oshrun.args(["-n", "2"]).arg(program), LIMIT)?, "all as they were sent")
}

/// Those that are looked through quickly; `cargo dev package` has all looked through.
fn no_error(folder: &Path) -> Result<(), Failed> {
    let is_short = |path: &&PathBuf| !path.to_string_lossy().contains("-dev");
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on=error", "--tag-display-limit=0"]);
    run(lintian.args(files(folder, ".deb")?.iter().filter(is_short)), LIMIT)?.succeeded()?;
    Ok(())
}

/// A root that has nothing but what Debian systems always have and a compiler.
fn in_a_fresh_root(folder: &Path) -> Result<(), Failed> {
    let root = Root::of_packages(&scratch("packages").join("fresh"), &["gcc", "libc6-dev"])?;
    says(root.shell(folder, FRESH, LIMIT)?, "nothing is left")
}

/// A copy of this system, in which Open MPI has programs of the same names.
fn beside_open_mpi(folder: &Path) -> Result<(), Failed> {
    let root = Root::of_this_system();
    says(root.shell(folder, BESIDE, LIMIT)?, "nothing is left")
}

fn says(ran: Ran, what: &str) -> Result<(), Failed> {
    let ran = ran.succeeded()?;
    match ran.stdout.contains(what) {
        true => Ok(()),
        false => Err(ran.account(&format!("expected '{what}'")).into()),
    }
}
