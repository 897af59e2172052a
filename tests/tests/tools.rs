//! The installation as its users see it: compiler wrappers, package descriptions, manual pages,
//! the example.

#[allow(dead_code, reason = "shared with tests that use other parts of it")]
mod support;

use libtest_mimic::{Arguments, Failed, Trial};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use support::{installed, prefix, run, scratch, tool};
use tombolo_core::config::VARIABLES;

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
const CASES: [(&str, &str, Case); 11] = [
    ("wrappers_compile_c_and_cxx", "c++", wrappers_compile_c_and_cxx),
    ("wrappers_use_the_compiler_they_are_told", "clang", wrappers_use_another_compiler),
    ("a_moved_installation_works", "cp", a_moved_installation_works),
    ("the_library_has_its_other_names", "cc", the_library_has_its_other_names),
    ("pkg_config_finds_the_library", "pkg-config", pkg_config_finds_the_library),
    ("cmake_finds_the_library", "cmake", cmake_finds_the_library),
    ("python_programs_use_the_library", "python3", python_programs_use_the_library),
    ("the_manual_describes_every_variable", "sh", the_manual_describes_every_variable),
    ("manual_pages_are_well_formed", "groff", manual_pages_are_well_formed),
    ("oshinfo_shows_where_values_come_from", "sh", oshinfo_shows_where_values_come_from),
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
    let missing = !installed(needs);
    let reason = if missing { format!("needs {needs}") } else { String::new() };
    Trial::test(*name, move || case(&prefix)).with_kind(reason).with_ignored_flag(missing)
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

fn check_job(prefix: &Path, command: &[&OsStr]) -> Result<(), Failed> {
    let mut job = Command::new(prefix.join("bin/oshrun"));
    job.args(["-n", "3"]).args(command);
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
    assert!(check(prefix, &program).is_err(), "runs without the library it was linked to");
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

fn the_manual_describes_every_variable(prefix: &Path) -> Result<(), Failed> {
    let page = fs::read_to_string(prefix.join("share/man/man3/intro_shmem.3"))?;
    for variable in VARIABLES {
        assert!(page.contains(&format!(".It Ev {}\n", variable.name)), "{}", variable.name);
    }
    assert!(!page.contains('@'), "a place to be filled in was left");
    // What other pages say of variables must be true.
    for entry in fs::read_dir(prefix.join("share/man/man1"))? {
        let text = fs::read_to_string(entry?.path())?;
        let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
        for word in words.filter(|word| word.starts_with("SHMEM_")) {
            assert!(VARIABLES.iter().any(|variable| variable.name == word), "{word}");
        }
    }
    Ok(())
}

fn manual_pages_are_well_formed(prefix: &Path) -> Result<(), Failed> {
    for page in ["man1/oshrun.1", "man1/oshcc.1", "man1/oshinfo.1", "man3/intro_shmem.3"] {
        let path = prefix.join("share/man").join(page);
        let mut command = Command::new("groff");
        command.args(["-mdoc", "-Tascii", "-ww", "-z"]).arg(&path);
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
    let mut command = Command::new(prefix.join("bin/oshinfo"));
    let text = run(command.env("SHMEM_SYMMETRIC_SIZE", "lots"), Duration::from_secs(60))?.stdout;
    assert!(text.contains("SHMEM_SYMMETRIC_SIZE='lots'"), "{text}");
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
        run(&mut job, Duration::from_secs(60))?.succeeded()?;
        pictures.push(fs::read(&picture)?);
    }
    assert!(pictures[0].starts_with(b"\x89PNG"), "not a picture");
    assert!(pictures.iter().all(|picture| *picture == pictures[0]), "pictures differ");
    Ok(())
}
