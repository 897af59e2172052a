// SPDX-License-Identifier: Apache-2.0
//! The installation as its users see it: compiler wrappers, package descriptions, manual pages,
//! the example.

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
use support::{Ran, installed, prefix, run, scratch, tool};
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

type Case = fn(&Path) -> Result<(), Failed>;

/// Name, a program that the case needs, and the case.
const CASES: [(&str, &str, Case); 28] = [
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
    ("oshinfo_shows_where_values_come_from", "sh", oshinfo_shows_where_values_come_from),
    ("oshinfo_says_what_is_wrong_with_values", "sh", oshinfo_says_what_is_wrong_with_values),
    ("oshinfo_says_why_nothing_is_kept", "sh", oshinfo_says_why_nothing_is_kept),
    ("oshinfo_refuses_options_of_another_kind", "sh", oshinfo_refuses_options_of_another_kind),
    ("oshinfo_shows_the_ring_of_its_job", "sh", oshinfo_shows_the_ring_of_its_job),
    ("oshinfo_shows_a_job_on_one_host", "sh", oshinfo_shows_a_job_on_one_host),
    ("oshinfo_measures_what_it_predicts", "sh", oshinfo_measures_what_it_predicts),
    ("oshinfo_lists_collectives_once", "sh", oshinfo_lists_collectives_once),
    ("oshinfo_compares_saved_tables", "sh", oshinfo_compares_saved_tables),
    ("jobs_that_map_static_data_measure_so", "sh", jobs_that_map_static_data_measure_so),
    ("tables_name_the_devices_they_hold_for", "sh", tables_name_the_devices_they_hold_for),
    ("rules_that_do_not_fit_are_told_once", "sh", rules_that_do_not_fit_are_told_once),
    ("oshinfo_refuses_what_has_no_meaning_in_a_job", "sh", oshinfo_refuses_in_a_job),
    ("oshinfo_finds_what_is_wrong_with_machines", "sh", oshinfo_finds_what_is_wrong),
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
            CASES.iter().map(|case| trial(case, prefix.clone())).collect()
        }
        Err(missing) => vec![Trial::test("the_library_is_installed", || Err(missing.into()))],
    };
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial((name, needs, case): &'static (&str, &str, Case), prefix: Arc<Path>) -> Trial {
    let missing = (!installed(needs)).then(|| format!("needs {needs}"));
    unless(missing, Trial::test(*name, move || case(&prefix)))
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

fn oshinfo_shows_where_values_come_from(prefix: &Path) -> Result<(), Failed> {
    let mut command = Command::new(prefix.join("bin/oshinfo"));
    command.env("SHMEM_SYMMETRIC_SIZE", "12m").env_remove("SHMEM_DEBUG").env("SMA_DEBUG", "1");
    let text = run(&mut command, Duration::from_secs(60))?.succeeded()?.stdout;
    for line in ["= 12m [from the environment]", "= on [from SMA_DEBUG]", "OpenSHMEM 1.6"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("Mistakes in environment variables"), "{text}");
    Ok(())
}

/// One wrong value hides neither the others nor what else there is to see.
fn oshinfo_says_what_is_wrong_with_values(prefix: &Path) -> Result<(), Failed> {
    let mut command = Command::new(prefix.join("bin/oshinfo"));
    for (name, value) in [
        ("SHMEM_SYMMETRIC_SIZE", "lots"),
        ("SHMEM_TRANSPORTS", "foo"),
        ("SHMEM_COLL", "reduce:bogus"),
        ("SHMEM_FOO", "1"),
    ] {
        command.env(name, value);
    }
    let text = run(&mut command, Duration::from_secs(60))?.succeeded()?.stdout;
    for line in [
        "Mistakes in environment variables\n",
        "SHMEM_SYMMETRIC_SIZE='lots': expected a number",
        "SHMEM_TRANSPORTS='foo': there is no transport 'foo'; expected one of shm",
        "SHMEM_COLL='reduce:bogus': 'bogus' is not an algorithm of reduce; expected one of",
        "there is no environment variable SHMEM_FOO",
        "= lots [from the environment, not valid]",
        "= foo [from the environment]",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    for variable in variables() {
        assert!(text.contains(&format!("  {}", variable.name)), "{}: {text}", variable.name);
    }
    Ok(())
}

/// Options that say nothing of what is asked for are not ignored.
fn oshinfo_refuses_options_of_another_kind(prefix: &Path) -> Result<(), Failed> {
    let oshinfo = |line: &str| {
        let mut command = Command::new(prefix.join("bin/oshinfo"));
        run(command.args(line.split(' ')), Duration::from_secs(60))
    };
    for line in [
        "--host n1 --tuning",
        "--host n1 --collectives",
        "--host n1 --predict gather",
        "--rsh ssh --host n1 --collectives",
        "--root / --collectives",
        "--form json --collectives",
        "--form json --doctor",
        "--form json --predict gather",
        "--by put --tuning",
        "--size 8 --doctor",
        "--pes 3 --size 8 --collectives",
        "--hosts 2 --collectives",
        "--topology ring --tuning",
    ] {
        let ran = oshinfo(line)?;
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert!(ran.stderr.contains("cannot be used with"), "{line}: {ran:?}");
    }
    for (line, why) in [
        ("--host n1", "--doctor"),
        ("--by put", "--predict"),
        ("--form json", "--tuning"),
        ("--doctor --host n1,,n2", "the list has an empty entry"),
        ("--doctor --host=-oProxyCommand=false", "is not a name of a host"),
        ("--doctor --host n1:x", "expected a number of PEs"),
        ("--doctor --root /nonexist", "expected a directory with copies of /proc and /sys"),
        ("--predict gather --pes 0", "expected a whole number, at least 1"),
        ("--predict gather --size 0", "expected 1 byte to 1 TiB"),
        ("--predict gather --size 9223372036854775808", "expected 1 byte to 1 TiB"),
    ] {
        let ran = oshinfo(line)?;
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert!(ran.stderr.contains(why), "{line}: {ran:?}");
    }
    let help = oshinfo("--help")?.succeeded()?.stdout;
    assert!(help.contains("--tuning=diff OLD NEW") && !help.contains("TABLE"), "{help}");
    Ok(())
}

fn oshinfo_says_why_nothing_is_kept(prefix: &Path) -> Result<(), Failed> {
    let refused = |variables: &[(&str, &str)]| -> Result<String, Failed> {
        let mut command = Command::new(prefix.join("bin/oshinfo"));
        for name in ["HOME", "XDG_CACHE_HOME", "SHMEM_TUNE_CACHE"] {
            command.env_remove(name);
        }
        command.arg("--tuning").envs(variables.iter().copied());
        let ran = run(&mut command, Duration::from_secs(60))?;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
        Ok(ran.stderr)
    };
    let homeless = "neither SHMEM_TUNE_CACHE nor XDG_CACHE_HOME nor HOME is the absolute path";
    for variables in [&[][..], &[("HOME", "")], &[("HOME", "here"), ("XDG_CACHE_HOME", "there")]] {
        let said = refused(variables)?;
        assert!(said.contains(homeless) && !said.contains("off"), "{said}");
    }
    let said = refused(&[("SHMEM_TUNE_CACHE", "off")])?;
    assert!(said.contains("SHMEM_TUNE_CACHE is off"), "{said}");
    Ok(())
}

/// `oshrun JOB oshinfo ARGUMENTS`, with measurements of its own, which have time on a busy machine.
fn oshinfo_in_a_job(prefix: &Path, job: &str, arguments: &str) -> Result<Ran, Failed> {
    let mut command = Command::new(prefix.join("bin/oshrun"));
    command.env("SHMEM_TUNE_CACHE", "off").env("SHMEM_TUNE_BUDGET", "600");
    for name in ["SHMEM_TUNE", "SHMEM_TRANSPORTS", "SHMEM_NTB_DIRECT", "SHMEM_NTB_PROFILE"] {
        command.env_remove(name);
    }
    command.args(job.split_whitespace()).arg(prefix.join("bin/oshinfo"));
    command.args(arguments.split_whitespace());
    // PEs that are more than the processors measure for a minute where other processes are busy.
    Ok(run(&mut command, Duration::from_secs(240))?)
}

/// The numbers, in hexadecimal, that stand behind `word`.
fn hex_behind(text: &str, word: &str) -> Vec<u64> {
    let parts = text.split(word).skip(1);
    let digits =
        parts.map(|rest| rest.trim_start_matches("0x").split(|c: char| !c.is_ascii_hexdigit()));
    let first = digits.map(|mut words| words.next().unwrap_or_default().to_owned());
    first.map(|word| u64::from_str_radix(&word, 16).expect("a number")).collect()
}

fn oshinfo_shows_the_ring_of_its_job(prefix: &Path) -> Result<(), Failed> {
    for (job, hosts, pes) in [("-n 4 --hosts 4", 4, 4), ("-n 5 --hosts 2 --placement cyclic", 2, 5)]
    {
        let text = oshinfo_in_a_job(prefix, job, "")?.succeeded()?.stdout;
        let count = |part: &str| text.matches(part).count();
        assert!(text.contains(&format!("{pes} on {hosts} hosts")), "{text}");
        // Once for the whole job, once per host, once per link end, once per PE.
        for (part, times) in [
            ("Environment variables\n", 1),
            ("\nJob\n", 1),
            ("\nRoutes to and between PEs\n", 1),
            ("\nHost ", hosts),
            (&format!("of a ring of {hosts}, epoch 0x"), hosts),
            ("  window 0 of each port: 64 MiB in 128 slots of 512 KiB", hosts),
            ("  window 1 of each port: 4 GiB in 128 slots of 32 MiB", hosts),
            ("doorbells: 16 bits, interrupt vectors: 1", hosts),
            ("right: link up, Gen3 x", hosts),
            ("left: link up, Gen3 x", hosts),
            ("right: counters bytes=", hosts),
            ("\nPE ", pes),
            ("lanes in use: right ", pes),
            ("direct windows: ", pes),
            ("ring: packets injected ", pes),
        ] {
            assert_eq!(count(part), times, "{part:?} in {job}: {text}");
        }
        let epochs = hex_behind(&text, "epoch ");
        assert_eq!(epochs.len(), 3 * hosts, "{text}");
        assert!(epochs.iter().all(|epoch| *epoch >= 1), "{epochs:?}: {text}");
        let ways = |class: &str| {
            let lines = text.lines().filter_map(|line| line.trim().strip_prefix(class));
            lines.map(str::trim_start).map(str::to_owned).collect::<Vec<_>>()
        };
        let far = ways("PEs of a neighbouring host ");
        assert!(far.len() == 1 && far[0].starts_with("put ntb at every size; get ntb"), "{text}");
        // PEs of one host share a cache, a NUMA node, or no more than the host.
        let near = ways("PEs that share ").len() + ways("PEs of the same ").len();
        assert_eq!(near, usize::from(pes > hosts), "{text}");
    }
    Ok(())
}

fn oshinfo_shows_a_job_on_one_host(prefix: &Path) -> Result<(), Failed> {
    let text = oshinfo_in_a_job(prefix, "-n 2", "")?.succeeded()?.stdout;
    for part in ["2 on 1 host\n", "mapped of other PEs: 1 heaps", "\n  itself ", "broadcast"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("epoch"), "a ring where there is none: {text}");
    let text =
        oshinfo_in_a_job(prefix, "-n 2 -x SHMEM_INFO=1", "--collectives")?.succeeded()?.stdout;
    // The same facts are printed at start.
    for part in ["2 on 1 host\n", "mapped of other PEs: 1 heaps", "SHMEM_INFO (or SMA_INFO) = on"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    Ok(())
}

fn oshinfo_measures_what_it_predicts(prefix: &Path) -> Result<(), Failed> {
    let check = |job: &str, arguments: &str, rows: usize| -> Result<(), Failed> {
        let text = oshinfo_in_a_job(prefix, job, arguments)?.succeeded()?.stdout;
        // Where PEs outnumber processors no range is said.
        let is_row = |line: &&str| line.contains(" to ") || line.contains("not known");
        let table = text.lines().filter(|line| line.contains(" %  ")).filter(is_row);
        assert_eq!(table.count(), rows, "{job} {arguments}: {text}");
        let within = format!("over {rows} estimate");
        let mean = text.lines().filter(|line| line.starts_with("Mean error ")).count();
        let counted = text.contains(" measurements were in the stated range");
        assert!(text.contains(&within) && (counted || text.contains("not known")), "{text}");
        assert!(mean == 1 && text.contains("All received bytes were checked."), "{text}");
        Ok(())
    };
    check("-n 3", "--predict gather", 12)?;
    check("-n 2 --hosts 2", "--predict broadcast --by put --size 64k", 1)?;
    check("-n 3 --hosts 2", "--predict alltoall --size 100", 3)?;
    check("-n 3 --hosts 3", "--predict ring-shift --by staged", 4)?;
    let text = oshinfo_in_a_job(prefix, "-n 2 -x SHMEM_TUNE=off", "--predict gather --by get")?;
    let text = text.succeeded()?.stdout;
    assert!(text.matches("unknown").count() == 4 && text.contains("Nothing is known"), "{text}");
    let alone = oshinfo_in_a_job(prefix, "-n 1", "--predict gather")?;
    assert!(alone.code == Some(1) && alone.stderr.contains("several PEs"), "{alone:?}");
    Ok(())
}

fn oshinfo_lists_collectives_once(prefix: &Path) -> Result<(), Failed> {
    let alone = tool(prefix.join("bin/oshinfo"), &["--collectives"])?;
    let operations =
        ["sync", "broadcast", "collect", "fcollect", "alltoall", "alltoalls", "reduce", "scan"];
    for operation in operations {
        let line = |line: &str| line.split_whitespace().next() == Some(operation);
        assert_eq!(alone.lines().filter(|text| line(text)).count(), 1, "{operation}: {alone}");
    }
    let job = oshinfo_in_a_job(prefix, "-n 3", "--collectives")?.succeeded()?.stdout;
    let chosen = |operation: &str| {
        let row = |line: &&str| line.split_whitespace().next() == Some(operation);
        job.lines().find(row).is_some_and(|row| row.ends_with(" above") || row.ends_with(" size"))
    };
    assert!(chosen("broadcast") && chosen("reduce"), "{job}");
    let share = job.lines().find(|line| line.trim_start().starts_with("share  "));
    let share: Vec<&str> = share.unwrap_or("").split_whitespace().collect();
    assert!(share.len() == 19 && share[2] == "/" && share[17] == "/", "{share:?}: {job}");
    let time = share[18].parse::<f64>()?;
    assert!(time > 0.0 && time < 60e6, "4 MiB took {time} us: {job}");
    let losses = job.lines().filter(|line| line.trim_start().starts_with("taken / fastest "));
    let losses: Vec<f64> = losses
        .flat_map(|line| line.split_whitespace().skip(3).map(str::parse::<f64>))
        .collect::<Result<_, _>>()?;
    // One size of a barrier, six of each of the seven that move data.
    assert!(losses.len() == 43 && losses.iter().all(|loss| *loss >= 1.0), "{losses:?}: {job}");
    let asked = "-n 3 -x SHMEM_COLL=broadcast:tree";
    let asked = oshinfo_in_a_job(prefix, asked, "--collectives")?.succeeded()?.stdout;
    assert!(asked.contains("broadcast  tree at every size"), "{asked}");
    let refused = "-n 2 -x SHMEM_COLL=sync:hosts,reduce:ringg";
    let refused = oshinfo_in_a_job(prefix, refused, "--collectives")?;
    let why = "'ringg' is not an algorithm of reduce; expected one of publish, share,";
    assert!(refused.code == Some(1) && refused.stderr.contains(why), "{}", refused.stderr);
    let whole = tool(prefix.join("bin/oshinfo"), &["--predict"]).expect_err("no pattern is named");
    assert!(whole.contains("exit code 2") && whole.contains("--predict <PATTERN>"), "{whole}");
    Ok(())
}

fn oshinfo_compares_saved_tables(prefix: &Path) -> Result<(), Failed> {
    let cache = scratch("tools-tables");
    let _ = std::fs::remove_dir_all(&cache);
    let mut command = Command::new(prefix.join("bin/oshrun"));
    command.args(["-n", "2"]).arg(prefix.join("bin/oshinfo")).arg("--collectives");
    command.env("SHMEM_TUNE_CACHE", &cache).env_remove("SHMEM_TUNE");
    run(&mut command, Duration::from_secs(240))?.succeeded()?;
    let table = std::fs::read_dir(&cache)?.next().ok_or("no table was kept")??.path();
    let table = table.to_str().ok_or("a path in UTF-8")?;
    // Estimates go by what was measured over the transports that the environment asks for, not by what came last.
    let mut by_cma = Command::new(prefix.join("bin/oshrun"));
    by_cma.args(["-n", "2", "-x", "SHMEM_TRANSPORTS=cma"]).arg(prefix.join("bin/oshinfo"));
    by_cma.env("SHMEM_TUNE_CACHE", &cache).env_remove("SHMEM_TUNE");
    run(&mut by_cma, Duration::from_secs(240))?.succeeded()?;
    for (transports, told) in [("shm,cma", "over shm+cma\n"), ("cma", "over cma\n")] {
        let mut predict = Command::new(prefix.join("bin/oshinfo"));
        predict.args(["--predict", "gather", "--pes", "2", "--size", "8", "--by", "put"]);
        predict.env("SHMEM_TUNE_CACHE", &cache).env("SHMEM_TRANSPORTS", transports);
        let text = run(&mut predict, Duration::from_secs(60))?.succeeded()?.stdout;
        assert!(text.contains(told), "{transports}: {text}");
    }
    let compare =
        |old: &str, new: &str| tool(prefix.join("bin/oshinfo"), &["--tuning=diff", old, new]);
    let same = compare(table, table)?;
    assert!(same.contains("  0 differ, ") && same.contains("both take the same ones"), "{same}");
    let absent = compare(table, "/no/such/table.json").expect_err("a table that is not there");
    assert!(absent.contains("oshinfo: /no/such/table.json: No such file"), "{absent}");
    let other = cache.join("one-class.json");
    let text = std::fs::read_to_string(table)?;
    let (head, _) = text.split_once("\"curves\":[").ok_or("a table has curves")?;
    std::fs::write(&other, format!("{head}\"curves\":[]}}"))?;
    let other = other.to_str().ok_or("a path in UTF-8")?;
    for both in [compare(table, other)?, compare(other, table)?] {
        assert!(both.contains("not measured") && !both.contains("same ones"), "{both}");
    }
    for arguments in [
        &["--tuning=diff"][..],
        &["--tuning=diff", table],
        &["--tuning", table, table, table],
        &["collectives"],
        &["--collectives", table],
    ] {
        let mut command = Command::new(prefix.join("bin/oshinfo"));
        let ran = run(command.args(arguments), Duration::from_secs(60))?;
        assert_eq!(ran.code, Some(2), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("two saved tables"), "{ran:?}");
    }
    Ok(())
}

/// A job whose static data are copied by the kernel leaves no table to jobs that map them.
fn jobs_that_map_static_data_measure_so(prefix: &Path) -> Result<(), Failed> {
    let cache = scratch("tools-statics");
    let _ = std::fs::remove_dir_all(&cache);
    let gets_by = |how: &str| {
        let mut command = Command::new(prefix.join("bin/oshrun"));
        command.args(["-n", "2"]).arg(prefix.join("bin/oshinfo")).arg("--tuning");
        command.env("SHMEM_TUNE_CACHE", &cache).env("SHMEM_STATIC", how);
        command.env("SHMEM_TUNE_BUDGET", "600").env_remove("SHMEM_TUNE");
        command.env_remove("SHMEM_TRANSPORTS");
        let text = run(&mut command, Duration::from_secs(60))?.succeeded()?.stdout;
        let heading = text.lines().find(|line| line.contains(", static buffers: "));
        Ok::<String, Failed>(heading.ok_or("gets from static data were not measured")?.to_owned())
    };
    let copied = gets_by("cma")?;
    assert!(copied.ends_with("static buffers: cma at every size"), "{copied}");
    let mapped = gets_by("remap")?;
    assert!(mapped.contains("static buffers: cached"), "{mapped}");
    Ok(())
}

/// Another network interface, or another bridge, is measured anew.
fn tables_name_the_devices_they_hold_for(prefix: &Path) -> Result<(), Failed> {
    let mut command = Command::new(prefix.join("bin/oshrun"));
    command.args(["-n", "2", "--hosts", "2"]).arg(prefix.join("bin/oshinfo")).arg("--tuning");
    command.env("SHMEM_TUNE", "always").env("SHMEM_TUNE_CACHE", "off");
    command.env("SHMEM_TUNE_BUDGET", "5").env("SHMEM_TRANSPORTS", "shm,ntb,tcp");
    let ran = run(&mut command, Duration::from_secs(60))?.succeeded()?;
    assert!(ran.stdout.contains("; shm+ntb (plx8749)+tcp (lo)"), "{}", ran.stdout);
    Ok(())
}

fn rules_that_do_not_fit_are_told_once(prefix: &Path) -> Result<(), Failed> {
    let said = |rules: &str| {
        let mut command = Command::new(prefix.join("bin/oshrun"));
        command.args(["-n", "3", "--hosts", "2"]).arg(prefix.join("bin/oshinfo"));
        command.env("SHMEM_TUNE", "off").env("SHMEM_ROUTE", rules).env_remove("SHMEM_TRANSPORTS");
        Ok::<String, Failed>(run(&mut command, Duration::from_secs(60))?.succeeded()?.stderr)
    };
    // One PE is alone on its host: it has no use for the rule.
    let used = said("put:heap:>=64K=cma")?;
    assert!(!used.contains("SHMEM_ROUTE"), "{used}");
    let unused = said("far-node:put=cma")?;
    assert_eq!(unused.matches("'far-node:put=cma' is not used").count(), 1, "{unused}");
    let many = said("put:8..16=cma,put:100..200=streaming")?;
    assert_eq!(many.matches("more than 4 ranges of sizes").count(), 1, "{many}");
    assert!(many.contains("'put:100..200=streaming'"), "{many}");
    Ok(())
}

fn oshinfo_refuses_in_a_job(prefix: &Path) -> Result<(), Failed> {
    for (arguments, word) in [
        ("--predict gather --hosts 2", "this job has the hosts"),
        ("--predict gather --pes 2", "this job has the hosts"),
        ("--predict gather --topology ring", "this job has the hosts"),
        ("--tuning /no/such/table.json", "takes no file"),
        ("--tuning=diff /no/such/a.json /no/such/b.json", "without oshrun"),
        ("--doctor", "examines machines"),
    ] {
        let ran = oshinfo_in_a_job(prefix, "-n 2", arguments)?;
        assert_eq!(ran.code, Some(2), "{arguments}: {ran:?}");
        assert_eq!(ran.stderr.matches(word).count(), 1, "{arguments}: {ran:?}");
        assert!(ran.stdout.is_empty(), "{ran:?}");
    }
    let routes = oshinfo_in_a_job(prefix, "-n 2", "--tuning")?.succeeded()?.stdout;
    assert_eq!(routes.matches("Routes\n").count(), 1, "{routes}");
    let much = oshinfo_in_a_job(
        prefix,
        "-n 2 -x SHMEM_SYMMETRIC_SIZE=4m",
        "--predict gather --by put --size 1g",
    )?;
    assert!(much.code == Some(1) && much.stderr.contains("SHMEM_SYMMETRIC_SIZE"), "{much:?}");
    let mut estimate = Command::new(prefix.join("bin/oshinfo"));
    estimate.args(["--predict", "gather", "--hosts", "100", "--pes", "100"]);
    let ran = run(&mut estimate, Duration::from_secs(60))?;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    Ok(())
}

fn oshinfo_finds_what_is_wrong(prefix: &Path) -> Result<(), Failed> {
    let oshinfo = |arguments: &[&str]| {
        let mut command = Command::new(prefix.join("bin/oshinfo"));
        command.arg("--doctor").args(arguments).env_remove("SHMEM_SYMMETRIC_SIZE");
        run(&mut command, Duration::from_secs(60))
    };
    let here = oshinfo(&[])?;
    assert!(matches!(here.code, Some(0 | 3 | 4)) && here.stderr.is_empty(), "{here:?}");
    for subject in ["processors", "huge pages", "CMA", "locked memory", "libfabric", "PMIx", "ssh"]
    {
        let told = here
            .stdout
            .lines()
            .filter(|line| line.get(9..).is_some_and(|l| l.starts_with(subject)));
        assert_eq!(told.count(), 1, "{subject}: {here:?}");
    }
    // Jobs run here, or these tests would not.
    assert!(here.code != Some(4), "{here:?}");

    let other = scratch("tools-doctor");
    for (path, text) in [
        ("proc/meminfo", "MemTotal: 8388608 kB\n"),
        ("proc/self/cgroup", "0::/a\n"),
        ("sys/fs/cgroup/a/memory.max", "1048576\n"),
        ("proc/sys/kernel/yama/ptrace_scope", "3\n"),
        ("proc/sys/kernel/hostname", "far\n"),
    ] {
        let path = other.join(path);
        fs::create_dir_all(path.parent().expect("below the folder"))?;
        fs::write(path, text)?;
    }
    let there = oshinfo(&["--root", other.to_str().ok_or("not UTF-8")?])?;
    assert_eq!(there.code, Some(4), "{there:?}");
    for part in ["impossible on far ", "echo max > /sys/fs/cgroup/a/memory.max", "ptrace_scope=1"] {
        assert!(there.stdout.contains(part), "{part}: {there:?}");
    }

    // Another machine, as far as the command that reaches it says so.
    let rsh = other.join("rsh");
    fs::write(&rsh, "#!/bin/sh\nshift\nexec sh -c \"$*\"\n")?;
    tool("chmod", &["+x".as_ref(), rsh.as_os_str()])?;
    let both = oshinfo(&["--host", "n1:4,n1", "--rsh", rsh.to_str().ok_or("not UTF-8")?])?;
    assert_eq!(both.code, here.code, "{both:?}");
    assert_eq!(
        both.stdout.matches("What makes jobs slow or impossible on ").count(),
        2,
        "{both:?}"
    );
    let away = oshinfo(&["--host", "n1", "--rsh", "false"])?;
    assert!(away.code == Some(4) && away.stdout.contains("no job starts"), "{away:?}");
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
