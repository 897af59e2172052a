// SPDX-License-Identifier: Apache-2.0
//! The library under launchers of others: Slurm's `srun` and `sbatch`, Open MPI's `mpirun`, MPICH's
//! Hydra. Programs check their own results; here it is checked that they form one job and end as
//! they should.

mod hosts;
mod mpi;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod support;

use libtest_mimic::{Arguments, Failed, Trial};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use support::losses::{GOING_ON, UNTUNED};
use support::program::{LIMIT, Program};
use support::{Ran, crate_dir, installed, prefix, run, scratch};
use tombolo_tests::slurm::{self, Slurm};
use tombolo_tests::unless;

/// Programs run under each launcher.
const PROGRAMS: [&str; 4] = ["setup", "rma", "collectives", "static_data"];

fn main() {
    let mut arguments = Arguments::from_args();
    // Slurm gives its nodes to one job after the other.
    arguments.test_threads.get_or_insert(1);
    let prefix = match prefix() {
        Ok(prefix) => prefix,
        Err(why) => {
            eprintln!("{why}");
            std::process::exit(1);
        }
    };
    let cluster = match (slurm::missing(), arguments.list) {
        (None, false) => Some(Slurm::start(&scratch("slurm"), 2).map(Arc::new)),
        _ => None,
    };
    let programs = Programs::new(&prefix);
    let mut trials = under_slurm(&programs, cluster.clone());
    trials.extend(under_mpirun(&programs));
    trials.extend(under_hydra(&programs));
    trials.extend(by_itself(&programs));
    trials.extend(hosts::trials(&programs, |mpi| cannot_speak(&cluster, mpi)));
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop(cluster);
    conclusion.exit();
}

#[derive(Clone)]
struct Programs {
    prefix: PathBuf,
    checks: Vec<Arc<Program>>,
    global_exit: Arc<Program>,
    killed: Arc<Program>,
    deaths: Arc<Program>,
    waiting: Arc<Program>,
}

impl Programs {
    fn new(prefix: &Path) -> Programs {
        let program = |name: &str| program(prefix, name);
        Programs {
            prefix: prefix.to_owned(),
            checks: PROGRAMS.iter().map(|name| program(name)).collect(),
            global_exit: program("special/global_exit"),
            killed: program("special/killed"),
            deaths: program("special/deaths"),
            waiting: program("special/waiting"),
        }
    }

    fn tool(&self, name: &str) -> PathBuf {
        self.prefix.join("bin").join(name)
    }
}

fn program(prefix: &Path, name: &str) -> Arc<Program> {
    let source = crate_dir().join("c").join(format!("{name}.c"));
    Program::new(prefix, &source, "", &[])
}

/// Runs a launcher whose programs have a small heap and a cache of their own.
fn launch(launcher: &mut Command) -> Result<Ran, String> {
    launcher.env("SHMEM_SYMMETRIC_SIZE", "16m").env("SHMEM_TUNE_CACHE", scratch("tuning"));
    // Of a launcher around the tests.
    for name in ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMIX_RANK", "PMIX_NAMESPACE", "SHMEM_HOST"] {
        launcher.env_remove(name);
    }
    run(launcher, LIMIT).map_err(|error| format!("{launcher:?}: {error}"))
}

/// A trial, ignored where something is missing.
fn trial(
    name: String,
    missing: Option<&str>,
    body: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    unless(missing, Trial::test(name, body))
}

/// Fails unless the program succeeded and its output has the line `launcher NAME`.
fn says_launcher(ran: Ran, name: &str) -> Result<(), Failed> {
    let ran = ran.succeeded()?;
    let mut lines = ran.stdout.lines().map(str::trim).filter_map(|l| l.strip_prefix("launcher "));
    match lines.next().map(str::trim) == Some(name) && lines.next().is_none() {
        true => Ok(()),
        false => Err(ran.account(&format!("expected one job with launcher {name}")).into()),
    }
}

fn fails(ran: Ran) -> Result<Ran, Failed> {
    match ran.code {
        Some(code) if code != 0 => Ok(ran),
        _ => Err(ran.account("expected a failure, and no hang").into()),
    }
}

/// One of three PEs was killed: the others have gone on, or waited for it in vain for as long as that may last.
fn check_survivors(ran: Ran, goes_on: bool) -> Result<(), Failed> {
    let warned = ran.stderr.matches("PE 1, has ended without finalizing").count();
    let went_on = (0..3).filter(|pe| ran.stdout.contains(&format!("PE {pe} went on")));
    let went_on: Vec<usize> = went_on.collect();
    let limited = ran.stderr.contains("this wait has lasted 10 s since");
    let expected: &[usize] = if goes_on { &[0, 2] } else { &[] };
    match warned == 1 && went_on == expected && limited != goes_on {
        true => Ok(()),
        false => Err(ran.account("expected PEs 0 and 2 to go on without PE 1").into()),
    }
}

/// By default srun leaves the other PEs alone when one ends badly; with -K it does not.
const ALONE: &str = "--kill-on-bad-exit=0";

/// The cluster, or why it did not start.
type Cluster = Option<Result<Arc<Slurm>, String>>;

/// Why `srun` cannot speak a protocol with PEs here, if so.
fn cannot_speak(cluster: &Cluster, mpi: &str) -> Option<&'static str> {
    match cluster {
        Some(Ok(slurm)) if !slurm.offers(mpi) => Some("srun --mpi=list does not have it"),
        _ => slurm::missing(),
    }
}

fn under_slurm(programs: &Programs, cluster: Cluster) -> Vec<Trial> {
    let missing = slurm::missing();
    let (pmi2, pmix) = (cannot_speak(&cluster, "pmi2"), cannot_speak(&cluster, "pmix"));
    let srun = move |options: &[&str], environment: &[(&str, &str)]| -> Result<Command, String> {
        let slurm = cluster.clone().ok_or("there is no cluster")??;
        let mut srun = slurm.command("srun");
        srun.args(["-Q", "-K"]).args(options).envs(environment.iter().copied());
        Ok(srun)
    };
    let mut trials = mpi::with_mpi(programs, &srun, pmix);
    // Where PEs are, the protocol asked for, what it is called, and what may be missing for it.
    let ways: [(&str, &'static [&str], &str, &str, _); 5] = [
        ("on 4 PEs", &["-N1", "-n4", "--mpi=pmi2"], "auto", "PMI-2", pmi2),
        ("on 4 PEs", &["-N1", "-n4", "--mpi=pmi2"], "pmi1", "PMI-1", pmi2),
        ("on 4 PEs", &["-N1", "-n4", "--mpi=pmix"], "auto", "PMIx", pmix),
        ("on 5 PEs of 2 nodes", &["-N2", "-n5", "--mpi=pmi2"], "auto", "PMI-2", pmi2),
        ("on 5 PEs of 2 nodes", &["-N2", "-n5", "--mpi=pmix"], "auto", "PMIx", pmix),
    ];
    for (place, options, wanted, called, missing) in ways {
        for program in &programs.checks {
            let (program, srun) = (program.clone(), srun.clone());
            let name = format!("{} {place}, started by srun with {called}", program.name);
            trials.push(trial(name, missing, move || {
                // The nodes are one machine, and say so.
                let mut srun =
                    srun(options, &[("SHMEM_PMI", wanted), ("SHMEM_TRANSPORTS", "shm")])?;
                launch(srun.arg(program.executable()?))?.succeeded()?;
                Ok(())
            }));
        }
        let (oshinfo, srun) = (programs.tool("oshinfo"), srun.clone());
        let name = format!("srun {} makes one job with {called}", options.join(" "));
        trials.push(trial(name, missing, move || {
            let mut srun = srun(options, &[("SHMEM_PMI", wanted)])?;
            says_launcher(launch(srun.arg(oshinfo))?, called)
        }));
    }
    for (mpi, missing) in [("--mpi=pmi2", pmi2), ("--mpi=pmix", pmix)] {
        let (program, srun_) = (programs.global_exit.clone(), srun.clone());
        trials.push(trial(format!("global_exit ends a job of srun {mpi}"), missing, move || {
            let mut srun = srun_(&["-n3", mpi], &[])?;
            let ran = fails(launch(srun.arg(program.executable()?).args(["7", "wait"]))?)?;
            match ran.stdout.contains("output of PE 2 before the end") {
                true => Ok(()),
                false => Err(ran.account("expected the output of PE 2").into()),
            }
        }));
        // By default srun leaves the other PEs alone.
        let ways = [("-K", ""), (ALONE, ""), (ALONE, "variable"), (ALONE, "lock")];
        for (option, tests) in ways {
            let (program, srun) = (programs.killed.clone(), srun.clone());
            let name = format!("a killed PE ends a job of srun {mpi} {option} {tests}");
            trials.push(trial(name, missing, move || {
                let mut srun = srun(&["-n3", mpi, option], &[])?;
                fails(launch(srun.arg(program.executable()?).arg(tests))?).map(drop)
            }));
        }
        let (oshrun, oshinfo) = (programs.tool("oshrun"), programs.tool("oshinfo"));
        let srun = srun.clone();
        trials.push(trial(
            format!("oshrun within srun {mpi} starts its own job"),
            missing,
            move || {
                let mut srun = srun(&["-N1", "-n1", mpi], &[])?;
                says_launcher(launch(srun.arg(oshrun).args(["-n", "2"]).arg(oshinfo))?, "PMI-1")
            },
        ));
    }
    // With --mpi=pmix, Slurm itself ends a job of which a process has died.
    for (what, goes_on) in [("go-on", true), ("barrier", false)] {
        let (program, srun) = (programs.deaths.clone(), srun.clone());
        let name = format!("PEs of srun that ask for it go on without a killed one: {what}");
        trials.push(trial(name, pmi2, move || {
            let mut srun = srun(&["-n3", "--mpi=pmi2", ALONE], &[GOING_ON, UNTUNED])?;
            check_survivors(
                launch(srun.arg(program.executable()?).args(["1", "kill", what]))?,
                goes_on,
            )
        }));
    }
    let (program, srun_) = (programs.checks[0].clone(), srun.clone());
    trials.push(trial("srun --mpi=none is refused with what helps".into(), missing, move || {
        let mut srun = srun_(&["-n3", "--mpi=none"], &[])?;
        let ran = fails(launch(srun.arg(program.executable()?))?)?;
        let helps = |line: &str| line.contains("--mpi=pmi2") && line.contains("--mpi=pmix");
        match ran.stderr.lines().any(helps) {
            true => Ok(()),
            false => Err(ran.account("expected to be told of --mpi=pmi2 and --mpi=pmix").into()),
        }
    }));
    let (programs, srun) = (programs.clone(), srun.clone());
    trials.push(trial("a batch script runs single PEs and oshrun".into(), missing, move || {
        let (script, output) =
            (scratch("slurm").join("batch.sh"), scratch("slurm").join("batch.out"));
        let (oshrun, oshinfo) = (programs.tool("oshrun"), programs.tool("oshinfo"));
        let (oshrun, oshinfo) = (oshrun.display(), oshinfo.display());
        let setup = programs.checks[0].executable()?;
        let text = format!(
            "#!/bin/sh\nset -e\n{} && echo alone\n{oshrun} -n 3 {oshinfo}\n",
            setup.display()
        );
        fs::write(&script, text)?;
        // Made like `srun`, for its environment.
        let srun = srun(&[], &[])?;
        let mut sbatch = Command::new("sbatch");
        sbatch.envs(srun.get_envs().filter_map(|(name, value)| Some((name, value?))));
        sbatch.args(["--wait", "-n", "4", "-o"]).arg(&output).arg(&script);
        let ran = launch(&mut sbatch)?.succeeded()?;
        let stdout = fs::read_to_string(&output)?;
        let told = Ran { stdout, ..ran };
        if !told.stdout.contains("alone") {
            return Err(told.account("expected a program without oshrun to be one PE").into());
        }
        says_launcher(told, "PMI-1")
    }));
    trials
}

/// Open MPI's launcher.
const MPIRUN: &str = "mpirun.openmpi";

fn no_mpirun() -> Option<&'static str> {
    (!installed(MPIRUN)).then_some("Open MPI (openmpi-bin) is not installed")
}

fn mpirun(pes: &str) -> Command {
    let mut mpirun = Command::new(MPIRUN);
    mpirun.args(["--oversubscribe", "-n", pes]);
    // Tests may run as root, in a container.
    mpirun.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    mpirun
}

fn under_mpirun(programs: &Programs) -> Vec<Trial> {
    let missing = no_mpirun();
    let mut trials = vec![];
    for program in programs.checks.clone() {
        let name = format!("{} on 4 PEs, started by Open MPI's mpirun", program.name);
        trials.push(trial(name, missing, move || {
            let mut mpirun = mpirun("4");
            launch(mpirun.env("SHMEM_TRANSPORTS", "shm").arg(program.executable()?))?
                .succeeded()?;
            Ok(())
        }));
    }
    let oshinfo = programs.tool("oshinfo");
    trials.push(trial("mpirun makes one job with PMIx".into(), missing, move || {
        says_launcher(launch(mpirun("3").arg(oshinfo))?, "PMIx")
    }));
    let program = programs.global_exit.clone();
    trials.push(trial(
        "global_exit ends a job of mpirun with its code".into(),
        missing,
        move || {
            let ran = launch(mpirun("3").arg(program.executable()?).args(["7", "wait"]))?;
            match ran.code {
                Some(7) => Ok(()),
                _ => Err(ran.account("expected exit code 7").into()),
            }
        },
    ));
    let program = programs.killed.clone();
    trials.push(trial("a killed PE ends a job of mpirun".into(), missing, move || {
        fails(launch(mpirun("3").arg(program.executable()?))?).map(drop)
    }));
    let program = programs.deaths.clone();
    trials.push(trial(
        "PEs of mpirun that ask for it go on without a killed one".into(),
        missing,
        move || {
            let mut mpirun = mpirun("3");
            mpirun.arg("--enable-recovery").arg(program.executable()?).args(["1", "kill", "go-on"]);
            check_survivors(launch(mpirun.envs([GOING_ON, UNTUNED]))?, true)
        },
    ));
    let program = programs.waiting.clone();
    trials.push(trial("PEs end when mpirun is killed".into(), missing, move || {
        let pids = scratch("launchers").join("pids");
        // The watchdog does not reach PEs that have lost their launcher: the script ends them.
        let script = "rm -f $PIDS; \"$@\" > $PIDS & launcher=$!; tries=600; \
            until [ \"$(wc -l < $PIDS)\" = 3 ] || [ $tries = 0 ]; do \
                sleep 0.05; tries=$((tries - 1)); done; \
            kill -KILL $launcher; \
            for pid in $(cat $PIDS); do while kill -0 $pid 2>&-; do \
                sleep 0.05; tries=$((tries - 1)); \
                [ $tries -gt 0 ] || { kill -KILL $(cat $PIDS); exit 1; }; done; done; \
            echo all ended";
        let mpirun = mpirun("3");
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(mpirun.get_program()).args(mpirun.get_args());
        shell.envs(mpirun.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let ran = launch(shell.env("PIDS", pids).arg(program.executable()?))?.succeeded()?;
        match ran.stdout.contains("all ended") {
            true => Ok(()),
            false => Err(ran.account("expected the PEs to end").into()),
        }
    }));
    let (oshrun, oshinfo) = (programs.tool("oshrun"), programs.tool("oshinfo"));
    let (outer, inner) = ((oshrun.clone(), oshinfo.clone()), (oshrun, oshinfo));
    trials.push(trial("oshrun within mpirun starts its own job".into(), missing, move || {
        let (oshrun, oshinfo) = inner;
        let mut mpirun = mpirun("1");
        says_launcher(launch(mpirun.arg(oshrun).args(["-n", "2"]).arg(oshinfo))?, "PMI-1")
    }));
    trials.push(trial("mpirun within oshrun starts its own job".into(), missing, move || {
        let (oshrun, oshinfo) = outer;
        let mpirun = mpirun("3");
        let mut job = Command::new(oshrun);
        job.args(["-n", "1"]).arg(mpirun.get_program()).args(mpirun.get_args()).arg(oshinfo);
        job.envs(mpirun.get_envs().filter_map(|(name, value)| Some((name, value?))));
        says_launcher(launch(&mut job)?, "PMIx")
    }));
    trials
}

/// MPICH's launcher.
const HYDRA: &str = "mpiexec.hydra";

fn no_hydra() -> Option<&'static str> {
    (!installed(HYDRA)).then_some("mpiexec.hydra of MPICH is not installed")
}

fn under_hydra(programs: &Programs) -> Vec<Trial> {
    let missing = no_hydra();
    let mut trials = vec![];
    for (wanted, called) in [("auto", "PMI-1"), ("pmi2", "PMI-2")] {
        let (program, oshinfo) = (programs.checks[1].clone(), programs.tool("oshinfo"));
        trials.push(trial(format!("Hydra makes one job with {called}"), missing, move || {
            let hydra = || {
                let mut hydra = Command::new(HYDRA);
                hydra.args(["-n", "4"]).env("SHMEM_PMI", wanted);
                hydra
            };
            launch(hydra().arg(program.executable()?))?.succeeded()?;
            says_launcher(launch(hydra().arg(oshinfo))?, called)
        }));
    }
    let (oshrun, oshinfo) = (programs.tool("oshrun"), programs.tool("oshinfo"));
    trials.push(trial("Hydra within oshrun starts its own job".into(), missing, move || {
        let mut job = Command::new(oshrun);
        job.args(["-n", "1", HYDRA, "-n", "3"]).arg(oshinfo);
        says_launcher(launch(&mut job)?, "PMI-1")
    }));
    let program = programs.checks[0].clone();
    trials.push(trial(
        "Hydra without descriptors makes no jobs of one PE".into(),
        missing,
        move || {
            let mut hydra = Command::new(HYDRA);
            let ran =
                fails(launch(hydra.args(["-pmi-port", "-n", "2"]).arg(program.executable()?))?)?;
            match ran.stderr.contains("without -pmi-port") {
                true => Ok(()),
                false => Err(ran.account("expected to be told what to leave out").into()),
            }
        },
    ));
    trials
}

/// What needs no launcher of others.
fn by_itself(programs: &Programs) -> Vec<Trial> {
    let program = programs.checks[0].clone();
    let executable = program.clone();
    // `launch` removes these variables: they are set for the program alone.
    let traces = ["env", "PMIX_RANK=0", "PMIX_NAMESPACE=gone"];
    let unserved = Trial::test("traces of a PMIx launcher that is gone are an error", move || {
        let mut alone = Command::new(traces[0]);
        let ran = fails(launch(alone.args(&traces[1..]).arg(executable.executable()?))?)?;
        // One or the other, as the library is installed or not.
        let says = ["PMIx_Init of libpmix failed", "install libpmix2"];
        match says.iter().any(|what| ran.stderr.contains(what)) {
            true => Ok(()),
            false => Err(ran.account(&format!("expected one of {says:?}")).into()),
        }
    });
    let library = library_of_pmix();
    let covers = Command::new("unshare").args(["--mount", "true"]).output();
    let covers = covers.is_ok_and(|covers| covers.status.success());
    let missing = match (&library, covers) {
        (None, _) => Some("libpmix2 is not installed, so that it cannot be hidden"),
        (_, false) => Some("mount namespaces cannot be made here"),
        _ => None,
    };
    let name = "a PMIx launcher without libpmix is an error that names it".into();
    let unloaded = trial(name, missing, move || {
        let mut hidden = Command::new("unshare");
        hidden.args(["--mount", "sh", "-c", "mount --bind /dev/null $0 && exec \"$@\""]);
        hidden.arg(library.unwrap_or_default()).args(traces).arg(program.executable()?);
        let ran = fails(launch(&mut hidden)?)?;
        match ran.stderr.contains("install libpmix2") {
            true => Ok(()),
            false => Err(ran.account("expected to be told to install libpmix2").into()),
        }
    });
    let (program, programs) = (programs.checks[1].clone(), programs.clone());
    let apart = Command::new("unshare").args(["--pid", "--fork", "true"]).output();
    let missing = (!apart.is_ok_and(|apart| apart.status.success()))
        .then_some("process namespaces cannot be made here");
    let name = "PEs in process namespaces of their own share memory".into();
    let apart = trial(name, missing, move || {
        let job = || {
            let mut job = Command::new(programs.tool("oshrun"));
            job.args(["-n", "3", "unshare", "--pid", "--fork", "--kill-child"]);
            job
        };
        launch(job().env("SHMEM_TRANSPORTS", "shm").arg(program.executable()?))?.succeeded()?;
        let ran = launch(job().arg(programs.tool("oshinfo")))?.succeeded()?;
        match ran.stdout.contains("another process namespace") {
            true => Ok(()),
            false => Err(ran.account("expected cma to say why it is not used").into()),
        }
    });
    vec![unserved, unloaded, apart]
}

/// Where the loader finds `libpmix.so.2`.
fn library_of_pmix() -> Option<String> {
    let listed = Command::new("/sbin/ldconfig").arg("-p").output().ok()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let line = listed.lines().find(|line| line.trim_start().starts_with("libpmix.so.2 "))?;
    line.split(" => ").nth(1).map(str::to_owned)
}
