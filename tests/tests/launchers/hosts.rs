// SPDX-License-Identifier: Apache-2.0
//! Jobs on two hosts that have nothing in common but files and a network, two PEs on each: what PEs tell
//! each other through the launcher takes them to those of the other host.

use super::{HYDRA, Programs, fails, launch, no_hydra, no_mpirun, says_launcher, trial};
use crate::support::program::Program;
use crate::support::{Ran, ends_with_this, scratch};
use libtest_mimic::{Failed, Trial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use tombolo_tests::nodes::{self, Nodes};
use tombolo_tests::slurm::{self, Slurm};
use tombolo_tests::watchdog::Watchdog;

/// Programs run by each launcher.
const PROGRAMS: [&str; 2] = ["rma", "collectives"];

/// Jobs leave the hosts as they are.
static HOSTS: LazyLock<Result<Nodes, String>> = LazyLock::new(|| Nodes::start(2));
static CLUSTER: LazyLock<Result<Slurm, String>> =
    LazyLock::new(|| Slurm::start_on(&scratch("slurm-hosts"), hosts()?, 2));

fn hosts() -> Result<&'static Nodes, String> {
    HOSTS.as_ref().map_err(String::clone)
}

fn cluster() -> Result<&'static Slurm, String> {
    CLUSTER.as_ref().map_err(String::clone)
}

/// How the launcher deals out PEs.
#[derive(Clone, Copy)]
enum Order {
    /// The first two to the first host.
    Blocks,
    /// One to each host in turn.
    Turns,
}

/// What starts the PEs, and what it says to them.
#[derive(Clone, Copy)]
struct Way {
    /// For people.
    name: &'static str,
    launcher: Launcher,
    /// Value of `SHMEM_PMI`.
    wanted: &'static str,
    /// What `oshinfo` calls it.
    called: &'static str,
    /// Exit code of a job that `shmem_global_exit` has ended with 7, where the launcher passes it on.
    code: Option<i32>,
}

#[derive(Clone, Copy)]
enum Launcher {
    Srun(&'static str),
    Mpirun,
    Hydra,
}

const SRUN_PMI2: Way = Way {
    name: "srun --mpi=pmi2",
    launcher: Launcher::Srun("pmi2"),
    wanted: "auto",
    called: "PMI-2",
    code: None,
};
const WAYS: [Way; 5] = [
    SRUN_PMI2,
    Way {
        name: "srun --mpi=pmix",
        launcher: Launcher::Srun("pmix"),
        called: "PMIx",
        code: Some(7),
        ..SRUN_PMI2
    },
    Way {
        name: "Open MPI's mpirun",
        launcher: Launcher::Mpirun,
        wanted: "auto",
        called: "PMIx",
        code: Some(7),
    },
    HYDRA_PMI1,
    Way { name: "Hydra with PMI-2", wanted: "pmi2", called: "PMI-2", code: None, ..HYDRA_PMI1 },
];
const HYDRA_PMI1: Way = Way {
    name: "Hydra with PMI-1",
    launcher: Launcher::Hydra,
    wanted: "auto",
    called: "PMI-1",
    code: Some(7),
};

impl Way {
    /// A launcher of four PEs, on the login host; it takes settings to the hosts as its users have it do.
    fn job(&self, order: Order, settings: &[(&str, &str)]) -> Result<Command, String> {
        let tuning = scratch("tuning").display().to_string();
        let own = [
            ("SHMEM_PMI", self.wanted),
            ("SHMEM_SYMMETRIC_SIZE", "16m"),
            ("SHMEM_TUNE_CACHE", &tuning),
        ];
        let settings = [&own, settings].concat();
        let mut job = match self.launcher {
            Launcher::Srun(mpi) => {
                let mut srun = cluster()?.command("srun");
                srun.args(["-Q", "-K", "-N2", "-n4", &format!("--mpi={mpi}")]);
                srun.args(match order {
                    Order::Blocks => ["-m", "block"],
                    Order::Turns => ["-m", "cyclic"],
                });
                srun
            }
            Launcher::Mpirun => {
                let mut mpirun = super::mpirun("4");
                mpirun.args(["--mca", "plm", "rsh", "--host", "n1:2,n2:2"]);
                mpirun.args(match order {
                    Order::Blocks => ["--map-by", "slot"],
                    Order::Turns => ["--map-by", "node"],
                });
                // Over ssh it takes along what it is told to.
                for (name, value) in &settings {
                    mpirun.args(["-x", &format!("{name}={value}")]);
                }
                mpirun
            }
            Launcher::Hydra => {
                let mut hydra = Command::new(HYDRA);
                hydra.args(["-launcher", "ssh", "-n", "4"]).args(match order {
                    Order::Blocks => ["-hosts", "n1,n2", "-ppn", "2"],
                    Order::Turns => ["-hosts", "n1,n2", "-ppn", "1"],
                });
                hydra
            }
        };
        job.envs(settings);
        hosts()?.enter(&mut job);
        Ok(job)
    }

    /// Like [`launch`], over the named transports alone: none is to stand in for another.
    fn runs(&self, program: &Program, arguments: &[&str]) -> Result<Ran, String> {
        let settings = [("SHMEM_TRANSPORTS", "shm,tcp"), ("CHECK_APART", "1")];
        let mut job = self.job(Order::Blocks, &settings)?;
        launch(job.arg(program.executable()?).args(arguments))
    }
}

/// `no_srun` says why `srun` cannot speak a protocol.
pub fn trials(programs: &Programs, no_srun: impl Fn(&str) -> Option<&'static str>) -> Vec<Trial> {
    let mut trials = vec![];
    for way in WAYS {
        let missing = match way.launcher {
            Launcher::Srun(mpi) => no_srun(mpi),
            Launcher::Mpirun => no_mpirun(),
            Launcher::Hydra => no_hydra(),
        };
        let missing = missing.or_else(nodes::unavailable);
        let name = |what: &str| format!("{what} on 2 hosts, started by {}", way.name);
        let oshinfo = programs.tool("oshinfo");
        trials.push(trial(name("one job"), missing, move || {
            for order in [Order::Blocks, Order::Turns] {
                is_one_job(&way, order, launch(way.job(order, &[])?.arg(&oshinfo))?)?;
            }
            Ok(())
        }));
        for program in PROGRAMS {
            let program = super::program(&programs.prefix, program);
            trials.push(trial(name(&program.name), missing, move || {
                way.runs(&program, &[])?.succeeded()?;
                Ok(())
            }));
        }
        let program = programs.global_exit.clone();
        trials.push(trial(name("global_exit ends a job"), missing, move || {
            let ran = fails(way.runs(&program, &["7", "wait"])?)?;
            match way.code.is_none_or(|code| ran.code == Some(code)) {
                true => Ok(()),
                false => Err(ran.account("expected exit code 7").into()),
            }
        }));
        let program = programs.killed.clone();
        trials.push(trial(name("a killed PE ends a job"), missing, move || {
            fails(way.runs(&program, &[])?).map(drop)
        }));
        let program = programs.waiting.clone();
        trials.push(trial(name("PEs end when the launcher is killed"), missing, move || {
            ends_with_launcher(&way, &program)
        }));
    }
    let program = programs.killed.clone();
    let name = "PEs of another host miss a killed PE that srun leaves out of account".into();
    trials.push(trial(name, no_srun("pmi2").or_else(nodes::unavailable), move || {
        let mut srun = SRUN_PMI2.job(Order::Blocks, &[("SHMEM_TRANSPORTS", "shm,tcp")])?;
        // The last PE is then alone on its host.
        srun.args(["-n3", "--kill-on-bad-exit=0"]);
        let ran = fails(launch(srun.arg(program.executable()?))?)?;
        match ran.stderr.contains("shmem_barrier_all: PE 2 on n2 cannot be reached any more") {
            true => Ok(()),
            false => Err(ran.account("expected to be told of PE 2").into()),
        }
    }));
    trials.push(with_allocations(programs));
    let missing = slurm::missing().or_else(nodes::unavailable);
    let (program, oshrun) = (programs.waiting.clone(), programs.tool("oshrun"));
    let name = "PEs end when an oshrun is killed that salloc has started".into();
    trials.push(trial(name, missing, move || ends_with_oshrun(&program, &oshrun)));
    trials
}

/// Whether `oshinfo` tells of one job in which PEs of a host share memory and reach all others by TCP.
fn is_one_job(way: &Way, order: Order, ran: Ran) -> Result<(), Failed> {
    let ran = ran.succeeded()?;
    let expected = match order {
        Order::Blocks => ["n1: PE 0, 1", "n2: PE 2, 3"],
        Order::Turns => ["n1: PE 0, 2", "n2: PE 1, 3"],
    };
    // Of those on its own host it tells the processes as well.
    let places = ran.stdout.lines().filter_map(|line| {
        let (host, place) = line.trim().strip_prefix("host ")?.split_once("  ")?;
        host.parse::<usize>().ok()?;
        let words = place.split(" (process ").map(|part| match part.split_once(')') {
            Some((pid, rest)) if pid.parse::<u32>().is_ok() => rest,
            _ => part,
        });
        Some(words.collect::<String>().trim().to_owned())
    });
    let routes = |line: &str| {
        line.contains("PEs of other hosts in the network")
            && ["put tcp", "get tcp", "amo tcp"].iter().all(|route| line.contains(route))
    };
    if !places.eq(expected) || !ran.stdout.lines().any(routes) {
        return Err(ran.account(&format!("expected {expected:?} and TCP between them")).into());
    }
    if ran.stdout.matches("shm  mapped of other PEs: 1 heaps").count() != 4 {
        return Err(ran.account("expected each PE to map the heap of one other").into());
    }
    says_launcher(ran, way.called)
}

/// Ends the launcher at the latest when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ends_with_launcher(way: &Way, program: &Program) -> Result<(), Failed> {
    let _watched = Watchdog::start(format!("{} that is killed", way.name), 60);
    let executable = program.executable()?;
    let mut job = way.job(Order::Blocks, &[])?;
    job.arg(&executable).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut job = Killed(ends_with_this(&mut job).spawn()?);
    // Each PE says its number.
    let lines = BufReader::new(job.0.stdout.take().ok_or("no pipe")?).lines();
    assert_eq!(lines.take(4).filter_map(Result::ok).count(), 4, "the job starts");
    let executable = executable.display().to_string();
    let left = || -> Result<usize, String> {
        let all = [1, 2].map(|host| hosts().map(|hosts| hosts.processes(host)));
        let all: Vec<_> = all.into_iter().collect::<Result<_, _>>()?;
        // The command line of a helper of the launcher may have the program further on.
        Ok(all.iter().flatten().filter(|process| process.command == executable).count())
    };
    assert_eq!(left()?, 4, "the PEs are seen");
    drop(job);
    nobody_is_left(left)
}

/// PEs end soon after their launcher; `left` counts them.
fn nobody_is_left(left: impl Fn() -> Result<usize, String>) -> Result<(), Failed> {
    let begun = Instant::now();
    while left()? > 0 {
        if begun.elapsed() > Duration::from_secs(30) {
            return Err(format!("{} PEs go on without their launcher", left()?).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Agents are told by srun, and need not find out by silence.
fn ends_with_oshrun(program: &Program, oshrun: &Path) -> Result<(), Failed> {
    let _watched = Watchdog::start("an oshrun in an allocation that is killed", 60);
    let executable = program.executable()?;
    let script =
        format!("{} --silence 600 {} & echo pid $!; wait", oshrun.display(), executable.display());
    let mut job = cluster()?.command("salloc");
    hosts()?.enter(&mut job);
    job.args(["-Q", "-N2", "-n4", "sh", "-c", &script]).env("SHMEM_SYMMETRIC_SIZE", "16m");
    job.env("PATH", without_ssh(&scratch("slurm-hosts"))?);
    job.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut job = Killed(ends_with_this(&mut job).spawn()?);
    // Each PE says its number.
    let lines = BufReader::new(job.0.stdout.take().ok_or("no pipe")?).lines();
    let lines: Vec<String> = lines.take(5).collect::<Result<_, _>>()?;
    assert_eq!(lines.len(), 5, "the job starts");
    // Commands of the login host have the numbers that they have here.
    let pid = lines.iter().find_map(|line| line.strip_prefix("pid ")).ok_or("no pid")?.parse()?;
    let executable = executable.display().to_string();
    let left = || -> Result<usize, String> {
        let all = [1, 2].map(|host| hosts().map(|hosts| hosts.processes(host)));
        let all: Vec<_> = all.into_iter().collect::<Result<_, _>>()?;
        Ok(all.iter().flatten().filter(|process| process.command == executable).count())
    };
    assert_eq!(left()?, 4, "the PEs are seen");
    kill(Pid::from_raw(pid), Signal::SIGKILL)?;
    nobody_is_left(left)
}

/// What finds an `ssh` first that logs in nowhere.
fn without_ssh(directory: &Path) -> Result<OsString, Failed> {
    let folder = directory.join("no-ssh");
    fs::create_dir_all(&folder)?;
    let ssh = folder.join("ssh");
    fs::write(&ssh, "#!/bin/sh\necho nobody logs in here >&2\nexit 1\n")?;
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder).chain(std::env::split_paths(&path));
    Ok(std::env::join_paths(folders)?)
}

/// `oshrun` without options takes hosts and numbers of PEs from an allocation of several hosts.
fn with_allocations(programs: &Programs) -> Trial {
    let programs = programs.clone();
    let missing = slurm::missing().or_else(nodes::unavailable);
    let name = "oshrun without options runs on the hosts that salloc and sbatch give it";
    let body = move || {
        let (hosts, cluster, directory) = (hosts()?, cluster()?, scratch("slurm-hosts"));
        let oshrun = programs.tool("oshrun");
        let tell = directory.join("tell.sh");
        fs::write(&tell, "echo PE $PMI_RANK of $PMI_SIZE on $(hostname)\n")?;
        let expected = ["PE 0 of 4 on n1", "PE 1 of 4 on n1", "PE 2 of 4 on n2", "PE 3 of 4 on n2"];
        let is_expected = |ran: Ran| -> Result<(), Failed> {
            let mut lines: Vec<&str> =
                ran.stdout.lines().filter(|line| line.starts_with("PE ")).collect();
            lines.sort_unstable();
            match lines == expected {
                true => Ok(()),
                false => Err(ran.account("expected two PEs on each host").into()),
            }
        };
        // Nobody may log in: Slurm alone starts what runs on the hosts.
        let path = without_ssh(&directory)?;
        let allocated = || {
            let mut salloc = cluster.command("salloc");
            hosts.enter(&mut salloc);
            salloc.args(["-Q", "-N2", "-n4"]).env("PATH", &path);
            salloc
        };
        is_expected(launch(allocated().arg(&oshrun).arg("sh").arg(&tell))?.succeeded()?)?;
        let mut job = allocated();
        job.arg(&oshrun).args(["-x", "CHECK_APART=1"]);
        launch(job.arg(programs.checks[1].executable()?))?.succeeded()?;
        let ran = launch(allocated().arg(&oshrun).args(["--rsh", "ssh", "sh"]).arg(&tell))?;
        if ran.code == Some(0) || !ran.stderr.contains("nobody logs in here") {
            return Err(ran.account("expected --rsh to be what is called").into());
        }
        // Whatever bytes, and more than are under way at a time; srun would put labels before lines.
        let (bytes, back) = (directory.join("bytes"), directory.join("back"));
        let noise: Vec<u8> = (0..3_000_000u64).map(|i| ((i * i) >> 7) as u8).collect();
        fs::write(&bytes, &noise)?;
        let script = format!(
            "{} sh -c 'test $PMI_RANK != 0 || exec cat' < {} > {}",
            oshrun.display(),
            bytes.display(),
            back.display()
        );
        launch(allocated().args(["sh", "-c", &script]).env("SLURM_LABELIO", "1"))?.succeeded()?;
        assert!(fs::read(&back)? == noise, "what PE 0 read and wrote is not what it was given");

        let (script, output) = (directory.join("batch.sh"), directory.join("batch.out"));
        let line = format!("{} sh {}", oshrun.display(), tell.display());
        fs::write(&script, format!("#!/bin/sh\n{line}\n"))?;
        let mut sbatch = cluster.command("sbatch");
        hosts.enter(&mut sbatch);
        sbatch.env("PATH", &path);
        sbatch.args(["--wait", "-N2", "-n4", "-o"]).arg(&output).arg(&script);
        let ran = launch(&mut sbatch)?.succeeded()?;
        is_expected(Ran { stdout: fs::read_to_string(&output)?, ..ran })
    };
    trial(name.into(), missing, body)
}
