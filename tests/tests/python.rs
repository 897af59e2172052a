// SPDX-License-Identifier: Apache-2.0
//! Python programs: shmem4py, installed as its users install it, with its own tests, NumPy arrays in
//! symmetric memory, and mpi4py in the same process.
//!
//! `cargo dev test` makes a Python environment with what is needed; `TOMBOLO_PYTHON` names its folder.

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use libtest_mimic::{Failed, Trial};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;
use support::program::{LIMIT, run_trials};
use support::{Ran, crate_dir, installed, run, scratch};
use tombolo_tests::nodes::{self, Nodes};
use tombolo_tests::unless;

const ARRAYS: [&[&str]; 4] =
    [&["-n", "1"], &["-n", "3"], &["-n", "4"], &["-n", "4", "--hosts", "2"]];
const ITS_OWN_TESTS: [&[&str]; 2] = [&["-n", "3"], &["-n", "2", "--hosts", "2"]];
/// On hosts that have only files and a network in common.
const ON_HOSTS: [&str; 2] = ["--host", "n1:2,n2:2"];
/// Who is imported, and so initialised, first.
const ORDERS: [&str; 2] = ["mpi", "shmem"];
const MPICH: &str = "/usr/lib/x86_64-linux-gnu/libmpich.so.12";
/// A compiler at work on a busy machine, or some 24,000 barriers and collectives: each may wait until programs that
/// compute have had their turns.
const LONG_LIMIT: Duration = Duration::from_secs(300);

/// Jobs leave them as they are.
static HOSTS: LazyLock<Result<Nodes, String>> = LazyLock::new(|| Nodes::start(2));

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let folder = std::env::var_os("TOMBOLO_PYTHON").map(PathBuf::from);
    let missing = match &folder {
        None => Some("needs TOMBOLO_PYTHON: NumPy, mpi4py and the source of shmem4py"),
        Some(_) => None,
    };
    let python = Arc::new(Python {
        prefix: prefix.to_owned(),
        folder: folder.unwrap_or_default(),
        site: OnceLock::new(),
    });
    let mut trials = vec![];
    let mut add = |name: String, missing: Option<&str>, case: Case| {
        let python = python.clone();
        trials.push(unless(missing, Trial::test(name, move || case(&python))));
    };
    for job in ITS_OWN_TESTS {
        let name = format!("the tests of shmem4py pass, none skipped, with {}", job.join(" "));
        add(name, missing, Box::new(move |python| its_own_tests(python, job)));
    }
    for job in ARRAYS {
        let name = format!("NumPy arrays are in symmetric memory, with {}", job.join(" "));
        add(name, missing, Box::new(move |python| arrays(python, job)));
    }
    let no_hosts = missing.or_else(nodes::unavailable);
    let name = "NumPy arrays are in symmetric memory, on 2 hosts";
    add(name.into(), no_hosts, Box::new(|python| arrays(python, &ON_HOSTS)));
    let no_python = (!installed("python3")).then_some("needs python3");
    let name = "ctypes finds the library on 2 hosts";
    add(name.into(), no_python.or_else(nodes::unavailable), Box::new(by_ctypes));
    let no_mpirun = (!installed("mpirun.openmpi")).then_some("needs mpirun.openmpi");
    let no_mpich = (!Path::new(MPICH).exists()).then_some("needs libmpich.so.12");
    for order in ORDERS {
        let name = format!("mpi4py in one process under Open MPI's mpirun, {order} first");
        add(name, missing.or(no_mpirun), Box::new(move |python| with_mpi(python, order)));
        let name =
            format!("mpi4py with MPICH under oshrun is told why it cannot be, {order} first");
        add(name, missing.or(no_mpich), Box::new(move |python| refused(python, order)));
    }
    trials
}

type Case = Box<dyn FnOnce(&Python) -> Result<(), Failed> + Send>;

struct Python {
    prefix: PathBuf,
    folder: PathBuf,
    site: OnceLock<Result<PathBuf, String>>,
}

impl Python {
    /// A command that finds the tools of the installation and this Python before others.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap_or_default();
        let (tools, own) = (self.prefix.join("bin"), self.folder.join("bin"));
        command.env("PATH", format!("{}:{}:{path}", tools.display(), own.display()));
        command.env("SHMEM_SYMMETRIC_SIZE", "64m").env("SHMEM_TUNE_CACHE", scratch("tuning"));
        // One thread of NumPy for each PE, and compiled Python only where tests may write.
        command.env("OMP_NUM_THREADS", "1").env("OPENBLAS_NUM_THREADS", "1");
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// The folder of shmem4py's source.
    fn source(&self) -> Result<PathBuf, String> {
        let entries =
            fs::read_dir(self.folder.join("source")).map_err(|error| error.to_string())?;
        let mut places = entries.flatten().map(|entry| entry.path());
        places.find(|path| path.join("pyproject.toml").is_file()).ok_or("no source".into())
    }

    /// Where shmem4py is installed, compiled for this library: with `oshcc` in `PATH`, and no settings.
    fn site(&self) -> Result<PathBuf, String> {
        let install = || {
            let site = scratch("python").join("site");
            let _ = fs::remove_dir_all(&site);
            let mut pip = self.command("python3");
            pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation"]);
            pip.args(["--no-deps", "--no-cache-dir", "--target"]).arg(&site).arg(self.source()?);
            // It is compiled for longer than it runs here.
            pip.env("CFLAGS", "-O0 -g0");
            run(&mut pip, LONG_LIMIT).map_err(|error| error.to_string())?.succeeded()?;
            Ok(site)
        };
        self.site.get_or_init(install).clone()
    }

    /// A job of `launcher`, to which a Python program is to be added.
    fn job(&self, launcher: &str, options: &[&str]) -> Result<Command, String> {
        let site = self.site()?;
        let mut job = self.command(launcher);
        job.env("PYTHONPATH", site).args(options);
        if options == ON_HOSTS {
            let named: Vec<_> = job.get_envs().map(|(name, _)| name.to_owned()).collect();
            for name in &named {
                job.arg("-x").arg(name);
            }
            goes_to_hosts(&mut job)?;
        }
        job.arg("python3");
        Ok(job)
    }
}

/// Has `oshrun` start its job from the login host of [`HOSTS`], where no other network stands in for TCP.
fn goes_to_hosts(oshrun: &mut Command) -> Result<(), String> {
    oshrun.args(["-x", "SHMEM_TRANSPORTS=shm,tcp"]);
    HOSTS.as_ref().map_err(String::clone)?.enter(oshrun);
    Ok(())
}

fn program(name: &str) -> PathBuf {
    crate_dir().join("python").join(name)
}

fn its_own_tests(python: &Python, job: &[&str]) -> Result<(), Failed> {
    let mut tests = python.job("oshrun", job)?;
    tests.args(["-m", "unittest", "--quiet"]).current_dir(python.source()?.join("test"));
    let ran = run(&mut tests, LONG_LIMIT)?.succeeded()?;
    // Of each PE; skipped tests would stand behind the word.
    let passed = ran.stderr.lines().filter(|line| *line == "OK").count();
    let counted = ran.stderr.lines().filter(|line| line.starts_with("Ran 110 tests")).count();
    match passed == counted && job[1].parse() == Ok(passed) {
        true => Ok(()),
        false => Err(ran.account("expected 110 tests to pass on all PEs, and none skipped").into()),
    }
}

fn arrays(python: &Python, job: &[&str]) -> Result<(), Failed> {
    let ran = run(python.job("oshrun", job)?.arg(program("arrays.py")), LIMIT)?.succeeded()?;
    match ran.stdout == "arrays: 840 elements, sum 352380\n" {
        true => Ok(()),
        false => Err(ran.account("expected the sum").into()),
    }
}

/// As in the test of the tools on one host.
fn by_ctypes(python: &Python) -> Result<(), Failed> {
    let mut job = python.command("oshrun");
    goes_to_hosts(job.args(ON_HOSTS))?;
    job.arg("python3").arg(program("sums.py")).arg(python.prefix.join("lib/libtombolo.so.0"));
    let ran = run(&mut job, LIMIT)?.succeeded()?;
    match ran.stdout == "10\n" {
        true => Ok(()),
        false => Err(ran.account("expected the sum").into()),
    }
}

fn with_mpi(python: &Python, order: &str) -> Result<(), Failed> {
    let mut mpirun = python.job("mpirun.openmpi", &["--oversubscribe", "-n", "2"])?;
    mpirun.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    mpirun.env("MPI4PY_MPIABI", "openmpi").env("SHMEM_TRANSPORTS", "shm");
    let ran = run(mpirun.arg(program("with_mpi.py")).arg(order), LIMIT)?.succeeded()?;
    match ran.stdout.contains("both agree: 2") {
        true => Ok(()),
        false => Err(ran.account("expected both to have the same processes").into()),
    }
}

fn refused(python: &Python, order: &str) -> Result<(), Failed> {
    // mpi4py looks for MPICH's library by another name than that which Debian gives it.
    let place = scratch("python").join(format!("mpich-{order}"));
    let link = place.join("libmpi.so.12");
    fs::create_dir_all(&place)?;
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(MPICH, &link)?;
    let mut job = python.job("oshrun", &["-n", "2"])?;
    job.env("MPI4PY_MPIABI", "mpich").env("LD_LIBRARY_PATH", place);
    let ran: Ran = run(job.arg(program("with_mpi.py")).arg(order), LIMIT)?;
    let told = ran.stderr.contains("such as MPI") && ran.stderr.contains("mpirun");
    match ran.code.is_some_and(|code| code != 0) && told {
        true => Ok(()),
        false => Err(ran.account("expected the reason and a way").into()),
    }
}
