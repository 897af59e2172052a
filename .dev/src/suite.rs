// SPDX-License-Identifier: Apache-2.0
//! `cargo dev test`: every test there is, against an installed library.

use crate::Tree;
use crate::aarch64;
use crate::guests;
use crate::install::install;
use crate::python;
use crate::side_by_side::{self, Job, Queue};
use crate::steps::{Failure, announce, find, output};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;

/// Programs that some tests need, the Debian packages that bring them, and what cannot be tested
/// without.
const NEEDED: [(&str, &str, &str); 19] = [
    ("g++", "g++", "C++ programs"),
    ("mpiexec.hydra", "mpich", "the launcher against MPICH's clients, the library under mpiexec"),
    ("slurmctld", "slurm-wlm", "the library under Slurm's srun and sbatch"),
    (PMIX, "libpmix-dev", "the library under srun --mpi=pmix"),
    ("mpirun.openmpi", "openmpi-bin", "the library under Open MPI's mpirun"),
    (MPICC, "libmpich-dev", "the launcher against MPICH's clients"),
    ("clang", "clang", "headers and programs with a second compiler"),
    ("cmake", "cmake", "the CMake package"),
    ("pkg-config", "pkg-config", "the pkg-config file"),
    ("python3", "python3", "Python programs"),
    ("ip", "iproute2", "jobs on several hosts"),
    ("sshd", "openssh-server", "jobs on several hosts"),
    ("chromium", "chromium", "the page of oshperf in a browser"),
    (LIBFABRIC, "libfabric1", "the transport over libfabric"),
    (LIBIBVERBS, "ibverbs-providers", "the transport over verbs, in virtual machines"),
    ("lintian", "lintian", "faults of Debian packages"),
    (aarch64::COMPILER, "gcc-aarch64-linux-gnu", "the library for aarch64"),
    (aarch64::C_LIBRARY, "libc6-dev-arm64-cross", "the library for aarch64"),
    (aarch64::QEMU, "qemu-user-static", "the library for aarch64"),
];

/// MPICH's compiler wrapper. Its headers are in a package of their own.
const MPICC: &str = "mpicc.mpich";

/// The name under which Slurm's plug-in looks for the library of PMIx, a link for developers.
const PMIX: &str = "libpmix.so";
/// Libraries that are loaded at run time.
const LIBFABRIC: &str = "libfabric.so.1";
/// See `LIBFABRIC`.
const LIBIBVERBS: &str = "libibverbs.so.1";

/// Test programs that run alone. The PEs of their jobs wait for each other all the time: on two processors, beside
/// another program, they were seen to take one and a half to six times as long.
const ALONE: [&str; 6] = [
    "tests/tests/collectives.rs",
    "tests/tests/conformance.rs",
    "tests/tests/guests/main.rs",
    "tests/tests/programs.rs",
    "tests/tests/python.rs",
    "tests/tests/verbs.rs",
];

/// Test programs that spend most of their time waiting: for links that are cut, or until a limit of time is over. One of
/// them runs beside the others.
const WAITING: [&str; 4] = [
    "tests/tests/rails.rs",
    "tests/tests/hosts/main.rs",
    "tests/tests/network.rs",
    "tests/tests/launchers/main.rs",
];

pub fn test(tree: &Tree, args: &[String]) -> Result<(), Failure> {
    let prefix = &tree.target("tombolo");
    // Packages are fetched from the network while the processors compile. Two builds at a time, in folders of their own,
    // keep two processors busy where one alone waits for its last crates.
    let (told, has_tools) = mpsc::channel();
    let (installed, programs, (missing, python, no_guests)) = thread::scope(|scope| {
        let tools = scope.spawn(|| {
            let missing = provide_tools();
            drop(told);
            (missing, python::provide(tree), provide_guests(tree))
        });
        let installed = scope.spawn(move || {
            install(tree, prefix)?;
            // Nothing is sent: it ends when the tools are there.
            let _: Result<(), _> = has_tools.recv();
            aarch64::provide(tree)
        });
        let programs = args.is_empty().then(|| test_programs(tree));
        let installed = installed.join().expect("installing does not panic");
        (installed, programs, tools.join().expect("tools are provided without panics"))
    });
    let aarch64 = installed?;
    let programs = programs.transpose()?;
    announce("cargo test --workspace");
    let mut jobs = vec![model_checking(tree)];
    jobs.extend(programs.unwrap_or_else(|| vec![cargo_test(tree, args)]));
    for job in &mut jobs {
        job.command.env("TOMBOLO_PREFIX", prefix);
        if let Some(folder) = &python {
            job.command.env("TOMBOLO_PYTHON", folder);
        }
        if let Some(folder) = &aarch64 {
            job.command.env("TOMBOLO_AARCH64", folder);
        }
    }
    let mut totals = Totals::default();
    let mut ended = |job: &Job, printed: &[u8], status: ExitStatus| {
        announce(&format!("{}:", job.name));
        let printed = String::from_utf8_lossy(printed);
        print!("{printed}");
        printed.lines().for_each(|line| totals.add(line));
        if !status.success() {
            totals.failures.push(format!("{}: {status}\n{}", job.name, what_failed(&printed)));
        }
    };
    let (alone, others) = take(jobs, &ALONE);
    let (waiting, others) = take(others, &WAITING);
    side_by_side::run([Queue { jobs: alone, most: 1 }], &mut ended)?;
    let others = Queue { jobs: others, most: programs_at_a_time() };
    side_by_side::run([others, Queue { jobs: waiting, most: 1 }], &mut ended)?;
    announce(&format!(
        "{} passed, {} failed, {} ignored",
        totals.passed, totals.failed, totals.ignored
    ));
    for name in &totals.ignored_names {
        eprintln!("    ignored: {name}");
    }
    for (program, what) in missing {
        eprintln!("    {program} is not installed; not tested: {what}");
    }
    if python.is_none() {
        eprintln!("    shmem4py cannot be fetched; not tested: Python programs with NumPy and MPI");
    }
    if let Some(why) = no_guests {
        eprintln!("    no guests: {why}; not tested: devices in virtual machines");
    }
    match totals.failures.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(format!("tests failed\n  {}", totals.failures.join("\n  ")))),
    }
}

/// The jobs with these names, and the others.
fn take(jobs: Vec<Job>, names: &[&str]) -> (Vec<Job>, Vec<Job>) {
    jobs.into_iter().partition(|job| names.contains(&job.name.as_str()))
}

/// Two at least, because many programs wait now and then. Most run two tests at a time themselves. On two processors,
/// three programs at a time took longer.
fn programs_at_a_time() -> usize {
    thread::available_parallelism().map_or(2, |cpus| cpus.get().clamp(2, 4))
}

/// Makes what tests in guests need, where some of them are asked for; says why there is nothing.
fn provide_guests(tree: &Tree) -> Option<String> {
    std::env::var_os(guests::WANTED)?;
    guests::provide(tree, guests::Extent::Few)
}

/// The tests that check all ways in which threads of lock-free code may take turns.
fn model_checking(tree: &Tree) -> Job {
    let mut command = tree.cargo(&["test", "--lib"]);
    for package in ["tombolo-core", "tombolo-collectives", "tombolo-transports"] {
        command.args(["--package", package]);
    }
    command.arg("loom_");
    // Of its own, because the flag concerns every crate.
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", tree.target("loom"));
    // CI compiles with clippy, which refuses the sizes and times in these tests: they are as small as can be.
    command.env_remove("RUSTC_WORKSPACE_WRAPPER");
    // Optimised, these tests run 4 s faster and compile 100 s longer, on 2 processors.
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    Job { name: "model checking of lock-free code".into(), command }
}

/// `cargo test` with arguments.
fn cargo_test(tree: &Tree, args: &[String]) -> Job {
    let mut command = tree.cargo(&["test", "--workspace", "--no-fail-fast"]);
    command.args(args);
    Job { name: format!("cargo test {}", args.join(" ")), command }
}

/// Builds all test programs. Gives what runs each of them in its package's directory, as `cargo test` does, and what
/// runs the tests in documentation. The benchmarks are built too, to see that they compile.
fn test_programs(tree: &Tree) -> Result<Vec<Job>, Failure> {
    let mut build = tree.cargo(&["test", "--workspace", "--all-targets", "--no-run"]);
    build.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let messages = output(&mut build)?;
    let mut programs: Vec<TestProgram> = messages.lines().filter_map(TestProgram::of).collect();
    // The last by name come first: those of `tests`, which take longest.
    programs.sort_by(|a, b| b.source.cmp(&a.source));
    let job = |program: TestProgram| {
        let mut command = tree.command(Path::new(&program.executable));
        command.current_dir(program.package);
        let source = Path::new(&program.source);
        let name = source.strip_prefix(tree.path("")).unwrap_or(source).display().to_string();
        Job { name, command }
    };
    let mut jobs: Vec<Job> = programs.into_iter().map(job).collect();
    jobs.push(cargo_test(tree, &["--doc".into()]));
    Ok(jobs)
}

/// A test program that cargo has built.
#[derive(Debug, PartialEq)]
struct TestProgram {
    source: String,
    executable: String,
    package: PathBuf,
}

impl TestProgram {
    /// What a message of cargo tells of; none if it is about something else.
    fn of(message: &str) -> Option<TestProgram> {
        let message: Value = serde_json::from_str(message).ok()?;
        let target = &message["target"];
        // Cargo builds benchmarks as tests too.
        let is_test = message["profile"]["test"] == true && target["kind"][0] != "bench";
        let text = |value: &Value| value.as_str().map(str::to_owned);
        is_test.then_some(TestProgram {
            source: text(&target["src_path"])?,
            executable: text(&message["executable"])?,
            package: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    }
}

/// Installs what is missing where that is possible; returns what is missing still.
fn provide_tools() -> Vec<(&'static str, &'static str)> {
    let missing: Vec<_> = NEEDED.iter().filter(|(program, ..)| !is_there(program)).collect();
    let packages: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
    if !packages.is_empty() && is_root() && find("apt-get").is_some() {
        announce(&format!("installing {}", packages.join(", ")));
        // The lists of packages may be absent or old; the second attempt renews them.
        if !apt_get("install", &packages) && apt_get("update", &[]) {
            apt_get("install", &packages);
        }
    }
    let still = missing.into_iter().filter(|(program, ..)| !is_there(program));
    still.map(|(program, _, what)| (*program, *what)).collect()
}

/// Whether a program can be used: is found and, as a compiler wrapper, finds its headers.
fn is_there(program: &str) -> bool {
    if matches!(program, PMIX | LIBFABRIC | LIBIBVERBS) {
        // A program cannot ask the loader without loading.
        let own = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        let folders = [own.as_str(), "/usr/lib64", "/usr/lib", "/usr/local/lib"];
        return folders.iter().any(|folder| Path::new(folder).join(program).exists());
    }
    if program == aarch64::C_LIBRARY {
        return aarch64::has_c_library();
    }
    if program != MPICC {
        // Daemons are where root finds them only.
        return find(program).is_some() || Path::new("/usr/sbin").join(program).exists();
    }
    let mut preprocess = Command::new(program);
    preprocess.args(["-E", "-include", "mpi.h", "-x", "c", "/dev/null"]);
    preprocess.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    preprocess.status().is_ok_and(|status| status.success())
}

pub fn apt_get(action: &str, packages: &[&str]) -> bool {
    let mut command = Command::new("apt-get");
    command.args(["-qq", "-y", "--no-install-recommends", action]).args(packages);
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).stdout(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// What a test program says of the tests that failed, which it prints amid all others; everything, if it did not get
/// so far.
fn what_failed(printed: &str) -> &str {
    let begins = printed.find("\nfailures:\n").map_or(0, |at| at + 1);
    let ends = printed[begins..].find("\ntest result: ").map_or(printed.len(), |at| begins + at);
    printed[begins..ends].trim_end()
}

/// What all test programs report together.
#[derive(Default, Debug, PartialEq)]
struct Totals {
    passed: usize,
    failed: usize,
    ignored: usize,
    ignored_names: Vec<String>,
    failures: Vec<String>,
}

impl Totals {
    /// Takes one line of a test program's output.
    fn add(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            let count = |what: &str| -> usize {
                let words: Vec<&str> =
                    result.split([' ', ';', '.']).filter(|w| !w.is_empty()).collect();
                words.windows(2).find(|w| w[1] == what).and_then(|w| w[0].parse().ok()).unwrap_or(0)
            };
            self.passed += count("passed");
            self.failed += count("failed");
            self.ignored += count("ignored");
        } else if let Some((name, outcome)) =
            line.strip_prefix("test ").and_then(|test| test.rsplit_once(" ... "))
        {
            if outcome.starts_with("ignored") {
                let reason = outcome.strip_prefix("ignored, ").map(|why| format!(": {why}"));
                self.ignored_names.push(format!("{}{}", name.trim(), reason.unwrap_or_default()));
            } else if outcome.starts_with("FAILED") {
                self.failures.push(name.trim().to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_run_apart_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository");
        for name in ALONE.iter().chain(&WAITING) {
            assert!(root.join(name).is_file(), "{name}");
        }
    }

    #[test]
    fn messages_tell_of_test_programs() {
        let message = |profile: &str, executable: &str| {
            let target = r#""target":{"kind":["test"],"src_path":"/a/tests/x.rs","test":true}"#;
            let package = r#""reason":"compiler-artifact","manifest_path":"/a/Cargo.toml""#;
            format!("{{{package},{target},\"profile\":{{{profile}}},\"executable\":{executable}}}")
        };
        let told = message(r#""opt_level":"1","test":true"#, r#""/t/x-1""#);
        let program = TestProgram {
            source: "/a/tests/x.rs".into(),
            executable: "/t/x-1".into(),
            package: "/a".into(),
        };
        assert_eq!(TestProgram::of(&told), Some(program));
        assert_eq!(TestProgram::of(&message(r#""test":false"#, r#""/t/x-1""#)), None);
        assert_eq!(TestProgram::of(&message(r#""test":true"#, "null")), None);
        let benchmark = told.replace(r#"["test"]"#, r#"["bench"]"#);
        assert_eq!(TestProgram::of(&benchmark), None);
        assert_eq!(TestProgram::of(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn what_failed_is_told_once_more() {
        let own = "failures:\n\n---- b ----\nleft: 1\n\nfailures:\n    b";
        let printed =
            format!("test a ... ok\ntest b ... FAILED\n\n{own}\n\ntest result: FAILED. 1 passed");
        assert_eq!(what_failed(&printed), own);
        assert_eq!(what_failed("test a ... ok\nkilled\n"), "test a ... ok\nkilled");
    }

    #[test]
    fn results_of_several_programs_add_up() {
        let mut totals = Totals::default();
        for line in [
            "test a ... ok",
            "test b ... ignored, needs a switch",
            "test [needs mpicc] c   ... ignored",
            "test d ... FAILED",
            "test result: FAILED. 1 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out",
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ] {
            totals.add(line);
        }
        assert_eq!((totals.passed, totals.failed, totals.ignored), (6, 1, 2));
        assert_eq!(totals.ignored_names, ["b: needs a switch", "[needs mpicc] c"]);
        assert_eq!(totals.failures, ["d"]);
    }
}
