// SPDX-License-Identifier: Apache-2.0
//! Rust programs, built outside this workspace as a stranger would, and run by the installed `oshrun`: the example project,
//! the samples of the README and of the guide, and the programs in `tests/rust`.

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use libtest_mimic::{Failed, Trial};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use support::program::{LIMIT, run_trials};
use support::samples::{Sample, samples};
use support::{Ran, crate_dir, run, scratch};

/// Jobs, as options of `oshrun`. The result does not depend on them.
const JOBS: [&[&str]; 5] = [
    &["-n", "1"],
    &["-n", "3"],
    &["-n", "4"],
    &["-n", "4", "--hosts", "2"],
    &["-n", "3", "-x", "SHMEM_TRANSPORTS=cma"],
];
/// What the example prints for its default size.
const RESULT: &str = "stencil: 64 points, 100 steps, sum 357.529855361\n";
const CHECKED: &[&str] = &["-n", "3", "-x", "SHMEM_DEBUG=1"];
const TWO: &[&str] = &["-n", "2"];
/// Programs in `tests/rust`, with what they print, in any order, and their jobs.
const PROGRAMS: [(&str, &str, &[&[&str]]); 3] = [
    ("calls", "all calls are right\n", &[JOBS[0], JOBS[1], JOBS[2], JOBS[3], JOBS[4], CHECKED]),
    ("leaves", "PE 0 leaves\nPE 1 leaves\nPE 2 leaves\nPE 3 leaves\n", &[JOBS[2]]),
    ("forgets", "2\n", &[TWO]),
];
/// Everything that the library needs is built once more.
const BUILD_LIMIT: Duration = Duration::from_secs(500);

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let project = Arc::new(Project { prefix: prefix.to_owned(), built: OnceLock::new() });
    let mut trials: Vec<Trial> = JOBS
        .into_iter()
        .map(|job| {
            let project = project.clone();
            Trial::test(format!("the example project runs with {}", job.join(" ")), move || {
                let ran = project.launch(job, &[])?.succeeded()?;
                match ran.stdout == RESULT {
                    true => Ok(()),
                    false => Err(ran.account(&format!("expected {RESULT:?}")).into()),
                }
            })
        })
        .collect();
    let jobs = PROGRAMS
        .into_iter()
        .flat_map(|(name, printed, jobs)| jobs.iter().map(move |job| (name, printed, *job)));
    for (name, printed, job) in jobs {
        let project = project.clone();
        trials.push(Trial::test(format!("{name}.rs runs with {}", job.join(" ")), move || {
            let ran = project.launch_program(name, job)?;
            let mut lines: Vec<&str> = ran.stdout.lines().collect();
            lines.sort();
            match lines.iter().copied().eq(printed.lines()) && ran.stderr.is_empty() {
                true => Ok(()),
                false => Err(ran.account(&format!("expected {printed:?} and no error")).into()),
            }
        }));
    }
    for sample in rust_samples() {
        let project = project.clone();
        trials.push(Trial::test(format!("{}: the program runs", sample.place), move || {
            project.launch_program(&sample.name, TWO)?;
            Ok(())
        }));
    }
    trials.push(Trial::test("a_panic_of_one_pe_ends_the_job_with_message_and_place", move || {
        a_panic_ends_the_job(&project)
    }));
    trials
}

struct Project {
    prefix: PathBuf,
    built: OnceLock<Result<PathBuf, String>>,
}

impl Project {
    fn executable(&self) -> Result<PathBuf, String> {
        self.built.get_or_init(build).clone()
    }

    fn launch(&self, job: &[&str], args: &[&str]) -> Result<Ran, String> {
        self.launch_executable(&self.executable()?, job, args)
    }

    /// Runs another of its programs.
    fn launch_program(&self, name: &str, job: &[&str]) -> Result<Ran, String> {
        let executable = self.executable()?.with_file_name(name);
        self.launch_executable(&executable, job, &[])?.succeeded()
    }

    fn launch_executable(
        &self,
        executable: &Path,
        job: &[&str],
        args: &[&str],
    ) -> Result<Ran, String> {
        let mut oshrun = Command::new(self.prefix.join("bin/oshrun"));
        oshrun.env("SHMEM_SYMMETRIC_SIZE", "16m").env("SHMEM_TUNE_CACHE", scratch("tuning"));
        // Programs ask for more memory than there is, and are warned.
        oshrun.env("SHMEM_LOG", "error");
        oshrun.env("RUST_BACKTRACE", "0").args(job).arg(executable).args(args);
        run(&mut oshrun, LIMIT).map_err(|error| format!("{oshrun:?}: {error}"))
    }
}

/// Samples in Rust: parts of programs are the body of a `main` that gives a result.
fn rust_samples() -> Vec<Sample> {
    let mut samples = samples();
    samples.retain(|sample| sample.language == "rust");
    for sample in samples.iter_mut().filter(|sample| !sample.is_whole()) {
        let head = "fn main() -> Result<(), Box<dyn std::error::Error>> {\n";
        sample.text = format!("{head}{}Ok(())\n}}\n", sample.text);
    }
    samples
}

/// Builds a copy of the project, with all other programs, in a folder that belongs to no workspace of this repository.
fn build() -> Result<PathBuf, String> {
    let compat = crate_dir().with_file_name("compat");
    let (from, to) = (compat.join("examples/rust"), scratch("rust-project"));
    let read = |path: PathBuf| {
        fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let write = |path: PathBuf, text: &str| {
        fs::create_dir_all(path.parent().expect("a folder")).map_err(|error| error.to_string())?;
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    let manifest = read(from.join("Cargo.toml"))?;
    let path = format!("path = {:?}", compat.display().to_string());
    assert!(manifest.contains("path = \"../..\""), "{manifest}");
    write(to.join("Cargo.toml"), &manifest.replace("path = \"../..\"", &path))?;
    write(to.join("src/main.rs"), &read(from.join("src/main.rs"))?)?;
    let programs = to.join("src/bin");
    // Programs that are there no more.
    let _ = fs::remove_dir_all(&programs);
    for (name, ..) in PROGRAMS {
        let source = crate_dir().join("rust").join(format!("{name}.rs"));
        write(programs.join(format!("{name}.rs")), &read(source)?)?;
    }
    for Sample { name, text, .. } in rust_samples() {
        write(programs.join(format!("{name}.rs")), &text)?;
    }
    // The versions that are on this machine already.
    write(to.join("Cargo.lock"), &read(crate_dir().with_file_name("Cargo.lock"))?)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(&to).args(["build", "--quiet", "--target-dir"]).arg(to.join("target"));
    // What cargo tells tests about this package is not for others.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_PKG_") {
            cargo.env_remove(name);
        }
    }
    // Nor is how strictly CI has this workspace compiled.
    cargo.env_remove("RUSTFLAGS").env_remove("RUSTC_WORKSPACE_WRAPPER");
    run(&mut cargo, BUILD_LIMIT).map_err(|error| error.to_string())?.succeeded()?;
    Ok(to.join("target/debug/stencil"))
}

/// The last PE gets an argument that is no number, and panics while the others wait for it.
fn a_panic_ends_the_job(project: &Project) -> Result<(), Failed> {
    let executable = project.executable()?.display().to_string();
    let ran =
        project.launch(&["-n", "2"], &["64", "5", ":", "-n", "1", &executable, "64", "five"])?;
    let tells = |line: &str| {
        ["PE 2", "panicked at src/main.rs:", "'five'"].iter().all(|part| line.contains(part))
    };
    match ran.code == Some(101) && ran.stderr.lines().any(tells) {
        true => Ok(()),
        false => {
            Err(ran.account("expected exit code 101 and a line with PE, place and message").into())
        }
    }
}
