// SPDX-License-Identifier: Apache-2.0
//! The installation as its users see it: compiler wrappers, package descriptions, manual pages,
//! the example.

mod oshinfo;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "shared with tests that use other parts of it")]
mod support;

use libtest_mimic::{Arguments, Failed, Trial};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use support::{installed, prefix, run, scratch, tool};
use tombolo_core::config::{CoreSettings, Variable};
use tombolo_tests::unless;

const PROGRAM: &str = r#"
#include <shmem.h>
#include <stdio.h>
int main(void) {
    static long sum;
    shmem_init();
    shmem_long_atomic_add(&sum, shmem_my_pe() + 1, 0);
    shmem_barrier_all();
    if (shmem_my_pe() == 0) printf("%ld\n", sum);
    shmem_finalize();
    return 0;
}
"#;

/// Name, a program that the case needs, and the case.
type Case = (&'static str, &'static str, fn(&Path) -> Result<(), Failed>);

const CASES: [Case; 14] = [
    ("wrappers_compile_c_and_cxx", "c++", wrappers_compile_c_and_cxx),
    ("wrappers_use_the_compiler_they_are_told", "clang", wrappers_use_another_compiler),
    ("a_moved_installation_works", "cp", a_moved_installation_works),
    ("the_library_has_its_other_names", "cc", the_library_has_its_other_names),
    ("short_routines_know_where_their_tables_are", "objdump", short_routines_are_short),
    ("pkg_config_finds_the_library", "pkg-config", pkg_config_finds_the_library),
    ("cmake_finds_the_library", "cmake", cmake_finds_the_library),
    ("python_programs_use_the_library", "python3", python_programs_use_the_library),
    ("the_manual_describes_every_variable", "sh", the_manual_describes_every_variable),
    ("manual_pages_are_well_formed", "groff", manual_pages_are_well_formed),
    ("tools_end_well_when_nobody_reads", "sh", tools_end_well_when_nobody_reads),
    ("links_are_served_when_nobody_reads", "sh", links_are_served_when_nobody_reads),
    ("tools_tell_of_a_full_disk", "sh", tools_tell_of_a_full_disk),
    ("the_example_draws_the_same_picture_on_any_number_of_pes", "cc", the_example_agrees),
];

fn main() {
    let arguments = Arguments::from_args();
    let trials = match prefix() {
        Ok(prefix) => {
            let prefix: Arc<Path> = prefix.into();
            CASES.iter().chain(&oshinfo::CASES).map(|case| trial(case, prefix.clone())).collect()
        }
        Err(missing) => vec![Trial::test("the_library_is_installed", || Err(missing.into()))],
    };
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial(&(name, needs, case): &Case, prefix: Arc<Path>) -> Trial {
    let missing = (!installed(needs)).then(|| format!("needs {needs}"));
    unless(missing, Trial::test(name, move || case(&prefix)))
}

/// The program's source in a folder for one case.
fn source(case: &str, name: &str) -> (PathBuf, PathBuf) {
    let folder = scratch(&format!("tools-{case}"));
    let source = folder.join(name);
    fs::write(&source, PROGRAM).expect("the folder is writable");
    (folder, source)
}

/// Runs the program on 3 PEs, which add up 1 to 3.
fn check(prefix: &Path, program: &Path) -> Result<(), Failed> {
    check_job(prefix, &[program.as_ref()])
}

/// As with `oshinfo | head`, where a tool writes after `head` has ended.
fn tools_end_well_when_nobody_reads(prefix: &Path) -> Result<(), Failed> {
    let lines = [
        "oshcc --help",
        "oshcc --showme:link",
        "oshinfo --version",
        "oshinfo --collectives",
        "oshinfo --man-environment",
        "oshrun --help",
        "oshrun --completions bash",
        "oshperf --help",
        "oshperf against --list",
        "oshperf paper ring --only list",
    ];
    for line in lines {
        let mut words = line.split(' ');
        let (from, to) = std::io::pipe()?;
        drop(from);
        let mut command = Command::new(prefix.join("bin").join(words.next().expect("a program")));
        let status = command.args(words).stdin(Stdio::null()).stdout(to).status()?;
        assert!(status.success(), "{line}: {status}");
    }
    Ok(())
}

/// As with `oshivshmem LINK 2>&1 | head -1`.
fn links_are_served_when_nobody_reads(prefix: &Path) -> Result<(), Failed> {
    let link = scratch("tools-link").join("link");
    let (from, to) = std::io::pipe()?;
    let mut command = Command::new(prefix.join("bin/oshivshmem"));
    command.args(["--size", "1m"]).arg(&link).stdout(to.try_clone()?).stderr(to);
    let mut server = command.stdin(Stdio::null()).spawn()?;
    drop(command);
    let mut said = BufReader::new(from);
    let served = said.read_line(&mut String::new()).and_then(|_| {
        drop(said);
        for _ in 0..2 {
            let mut side = UnixStream::connect(&link)?;
            side.set_read_timeout(Some(Duration::from_secs(20)))?;
            let mut version = [1; 8];
            side.read_exact(&mut version)?;
            assert_eq!(version, [0; 8], "the form of the protocol");
        }
        Ok(())
    });
    // It serves until then.
    let ended = server.try_wait()?;
    server.kill()?;
    server.wait()?;
    assert!(served.is_ok() && ended.is_none(), "{served:?} {ended:?}");
    Ok(())
}

/// What could not be written is missing: that is no success, as it is where nobody reads.
fn tools_tell_of_a_full_disk(prefix: &Path) -> Result<(), Failed> {
    for line in ["oshcc --showme:link", "oshinfo --collectives", "oshperf against --list"] {
        let mut words = line.split(' ');
        let name = words.next().expect("a program");
        let mut command = Command::new(prefix.join("bin").join(name));
        let full = fs::OpenOptions::new().write(true).open("/dev/full")?;
        let output = command.args(words).stdin(Stdio::null()).stdout(full).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        let begin = format!("{name}: cannot write to standard output: ");
        assert!(output.status.code() == Some(1) && said.starts_with(&begin), "{line}: {output:?}");
    }
    Ok(())
}

fn check_job(prefix: &Path, command: &[&OsStr]) -> Result<(), Failed> {
    let mut job = Command::new(prefix.join("bin/oshrun"));
    job.args(["-n", "3"]).args(command).env("SHMEM_TUNE_CACHE", scratch("tuning"));
    let ran = run(&mut job, Duration::from_secs(60))?.succeeded()?;
    match ran.stdout.as_str() {
        "6\n" => Ok(()),
        other => Err(format!("{command:?}: expected 6, found {other}").into()),
    }
}

fn wrappers_compile_c_and_cxx(prefix: &Path) -> Result<(), Failed> {
    for (wrapper, name) in
        [("oshcc", "a.c"), ("oshc++", "b.cpp"), ("oshCC", "c.cpp"), ("oshcxx", "d.cpp")]
    {
        let (folder, source) = source("wrappers", name);
        let wrapper = prefix.join("bin").join(wrapper);
        let (object, program) = (source.with_extension("o"), folder.join(format!("{name}.run")));
        tool(&wrapper, &["-c".as_ref(), source.as_os_str(), "-o".as_ref(), object.as_os_str()])?;
        tool(&wrapper, &[object.as_os_str(), "-o".as_ref(), program.as_os_str()])?;
        check(prefix, &program)?;
        let shown = tool(&wrapper, &["--showme:compile"])? + &tool(&wrapper, &["--showme:link"])?;
        assert!(shown.contains("/include\n") && shown.contains(" -ltombolo"), "{shown}");
        tool(&wrapper, &["--version"])?;
    }
    Ok(())
}

fn wrappers_use_another_compiler(prefix: &Path) -> Result<(), Failed> {
    let (folder, source) = source("clang", "a.c");
    let program = folder.join("a");
    let mut command = Command::new(prefix.join("bin/oshcc"));
    command.env("OSHCC_CC", "clang -O1").arg(&source).arg("-o").arg(&program);
    run(&mut command, Duration::from_secs(60))?.succeeded()?;
    check(prefix, &program)?;
    let mut command = Command::new(prefix.join("bin/oshcc"));
    let ran = run(command.env("OSHCC_CC", "no-such-compiler").arg("a.c"), Duration::from_secs(60))?;
    assert!(ran.code == Some(127) && ran.stderr.contains("OSHCC_CC"), "{ran:?}");
    Ok(())
}

fn a_moved_installation_works(prefix: &Path) -> Result<(), Failed> {
    let (folder, source) = source("moved", "a.c");
    let moved = folder.join("a place, with blanks");
    if moved.exists() {
        fs::remove_dir_all(&moved)?;
    }
    tool("cp", &["-a".as_ref(), prefix.as_os_str(), moved.as_os_str()])?;
    let program = folder.join("a");
    tool(moved.join("bin/oshcc"), &[source.as_os_str(), "-o".as_ref(), program.as_os_str()])?;
    check(&moved, &program)?;
    // Gone with its library, or the library would have been found elsewhere.
    fs::remove_dir_all(&moved)?;
    let gone = check(prefix, &program).expect_err("it runs without the library it was linked to");
    let said = gone.message().unwrap_or_default();
    assert!(said.contains("libtombolo.so.0: cannot open shared object file"), "{said}");
    Ok(())
}

fn the_library_has_its_other_names(prefix: &Path) -> Result<(), Failed> {
    let (folder, source) = source("names", "a.c");
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    for name in ["-lsma", "-loshmem"] {
        let program = folder.join(name);
        let mut command = Command::new("cc");
        command.arg(&source).arg("-I").arg(&include).arg("-L").arg(&lib).arg(name);
        command.arg("-Wl,-rpath").arg(format!("-Wl,{}", lib.display())).arg("-o").arg(&program);
        run(&mut command, Duration::from_secs(60))?.succeeded()?;
        check(prefix, &program)?;
    }
    Ok(())
}

/// A load of an address more or less is a good part of the time that these take.
fn short_routines_are_short(prefix: &Path) -> Result<(), Failed> {
    let library = prefix.join("lib/libtombolo.so");
    let table = addresses_of_tables(&library)?;
    for routine in ["long_p", "long_g", "putmem", "getmem", "long_atomic_fetch_add", "long_iput"] {
        let mut objdump = Command::new("objdump");
        objdump.args(["--no-show-raw-insn", &format!("--disassemble=pshmem_{routine}")]);
        let code = run(objdump.arg(&library), Duration::from_secs(60))?.succeeded()?.stdout;
        assert!(code.contains(&format!("<pshmem_{routine}>:")), "{code}");
        // "mov 0x1234(%rip),%rax  # 56789 <...>"; calls through the table are of other libraries.
        let address = |line: &&str| {
            let (_, place) = line.split_once("# ")?;
            u64::from_str_radix(place.split(' ').next()?, 16).ok()
        };
        let through_table: Vec<&str> = code
            .lines()
            .filter(|line| line.contains("mov "))
            .filter(|line| address(line).is_some_and(|place| table.contains(&place)))
            .collect();
        assert!(through_table.is_empty(), "{routine} loads addresses: {through_table:#?}");
        assert!(code.contains("TABLES"), "{routine} uses no table: {code}");
    }
    Ok(())
}

/// Where a library keeps the addresses that the loader fills in.
fn addresses_of_tables(library: &Path) -> Result<Range<u64>, Failed> {
    let mut readelf = Command::new("readelf");
    let text =
        run(readelf.args(["-S", "-W"]).arg(library), Duration::from_secs(60))?.succeeded()?.stdout;
    let (_, row) = text.split_once(" .got ").ok_or("no global offset table")?;
    let columns: Vec<&str> = row.split_whitespace().collect();
    let number = |column: usize| u64::from_str_radix(columns[column], 16);
    Ok(number(1)?..number(1)? + number(3)?)
}

fn pkg_config_finds_the_library(prefix: &Path) -> Result<(), Failed> {
    let (folder, source) = source("pkg-config", "a.c");
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    command.args(["--cflags", "--libs", "tombolo"]);
    let flags = run(&mut command, Duration::from_secs(60))?.succeeded()?.stdout;
    let program = folder.join("a");
    let mut compile = Command::new("cc");
    compile.arg(&source).args(flags.split_whitespace()).arg("-o").arg(&program);
    run(&mut compile, Duration::from_secs(60))?.succeeded()?;
    check(prefix, &program)
}

fn cmake_finds_the_library(prefix: &Path) -> Result<(), Failed> {
    let (folder, _) = source("cmake", "a.c");
    let project = "cmake_minimum_required(VERSION 3.16)\nproject(case C)\n\
        find_package(Tombolo 0.1 REQUIRED)\n\
        add_executable(shared a.c)\ntarget_link_libraries(shared PRIVATE Tombolo::Tombolo)\n\
        add_executable(static a.c)\ntarget_link_libraries(static PRIVATE Tombolo::Static)\n";
    fs::write(folder.join("CMakeLists.txt"), project)?;
    let build = folder.join("build");
    if build.exists() {
        fs::remove_dir_all(&build)?;
    }
    let root = format!("-DCMAKE_PREFIX_PATH={}", prefix.display());
    let [from, to] = [&folder, &build].map(|path| path.as_os_str());
    tool("cmake", &["-S".as_ref(), from, "-B".as_ref(), to, root.as_ref()])?;
    tool("cmake", &["--build".as_ref(), to])?;
    check(prefix, &build.join("shared"))?;
    check(prefix, &build.join("static"))
}

fn python_programs_use_the_library(prefix: &Path) -> Result<(), Failed> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/sums.py");
    let library = prefix.join("lib/libtombolo.so");
    check_job(prefix, &["python3".as_ref(), program.as_ref(), library.as_ref()])
}

fn variables() -> impl Iterator<Item = &'static Variable> {
    let transports = tombolo_transports::NAMES.iter().filter_map(|n| tombolo_transports::create(n));
    let of_transports = transports.flat_map(|transport| transport.settings().variables);
    CoreSettings::VARIABLES.iter().chain(of_transports)
}

fn the_manual_describes_every_variable(prefix: &Path) -> Result<(), Failed> {
    let page = fs::read_to_string(prefix.join("share/man/man3/intro_shmem.3"))?;
    for variable in variables() {
        assert!(page.contains(&format!(".It Ev {}\n", variable.name)), "{}", variable.name);
    }
    assert!(!page.contains('@'), "a place to be filled in was left");
    // What other pages say of variables must be true.
    for entry in fs::read_dir(prefix.join("share/man/man1"))? {
        let text = fs::read_to_string(entry?.path())?;
        let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
        let prefixes = ["SHMEM_", "TOMBOLO_"];
        // A prefix alone stands for all variables that begin with it.
        let named = |word: &&str| prefixes.iter().any(|p| word.starts_with(p) && word != p);
        for word in words.filter(named) {
            assert!(variables().any(|variable| variable.name == word), "{word}");
        }
    }
    Ok(())
}

/// The page of every program, by each of its names, and of the library.
fn manual_pages_are_well_formed(prefix: &Path) -> Result<(), Failed> {
    let mut pages = vec!["man3/intro_shmem.3".to_owned()];
    for program in fs::read_dir(prefix.join("bin"))? {
        pages.push(format!("man1/{}.1", program?.file_name().display()));
    }
    for page in pages {
        let mut command = Command::new("groff");
        // Pages that name another one name it from the folder of all.
        command.args(["-mdoc", "-Tascii", "-ww", "-z", &page]);
        command.current_dir(prefix.join("share/man"));
        let ran = run(&mut command, Duration::from_secs(60))?.succeeded()?;
        assert!(ran.stderr.is_empty(), "{page}: {}", ran.stderr);
    }
    Ok(())
}

fn the_example_agrees(prefix: &Path) -> Result<(), Failed> {
    let folder = scratch("tools-example");
    let (source, program) = (prefix.join("share/tombolo/examples/heat.c"), folder.join("heat"));
    let arguments = ["-O2", "-lm", "-o"].map(std::ffi::OsStr::new);
    let wrapper = prefix.join("bin/oshcc");
    tool(
        wrapper,
        &[arguments[0], source.as_os_str(), arguments[2], program.as_os_str(), arguments[1]],
    )?;
    let mut pictures = vec![];
    for pes in ["1", "3", "4", "7"] {
        let picture = folder.join(format!("{pes}.png"));
        let mut job = Command::new(prefix.join("bin/oshrun"));
        job.args(["-n", pes]).arg(&program).arg(&picture).args(["60", "300"]);
        job.env("SHMEM_TUNE_CACHE", scratch("tuning"));
        run(&mut job, Duration::from_secs(60))?.succeeded()?;
        pictures.push(fs::read(&picture)?);
    }
    assert!(pictures[0].starts_with(b"\x89PNG"), "not a picture");
    assert!(pictures.iter().all(|picture| *picture == pictures[0]), "pictures differ");
    Ok(())
}
