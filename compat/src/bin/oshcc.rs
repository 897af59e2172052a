// SPDX-License-Identifier: Apache-2.0
//! `oshcc`, `oshc++`, `oshCC`, `oshcxx`: the C and C++ compilers with the flags OpenSHMEM needs.
//!
//! One program under several names. It finds the installation it belongs to from its own place, so
//! that an installation can be moved, and replaces itself by the compiler.

#[path = "../tool.rs"]
mod tool;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const HELP: &str = "\
Compile and link OpenSHMEM programs.

Usage: oshcc [OWN OPTIONS] [OPTIONS OF THE COMPILER] FILE...     for C
       oshc++ [OWN OPTIONS] [OPTIONS OF THE COMPILER] FILE...    for C++ (also oshCC, oshcxx)

Own options:
@OPTIONS@
Environment:
  OSHCC_CC            the C compiler to use, default cc
  OSHCXX_CXX          the C++ compiler to use, default c++

Examples:
  oshcc -O2 app.c -o app
  oshc++ -std=c++20 -c part.cpp
  make CC=oshcc
";

/// Options that are not the compiler's.
const OWN: [(&str, &str); 6] = [
    ("showme", "print the command instead of running it (also -show)"),
    ("showme:compile", "print the flags for compiling"),
    ("showme:link", "print the flags for linking"),
    ("showme:version", "print the version of Tombolo"),
    ("static-tombolo", "link the library into the program; -static links everything into it"),
    ("help", "print this help"),
];

/// Names of this program, for C and for C++.
const NAMES: [&str; 4] = ["oshcc", "oshc++", "oshCC", "oshcxx"];

/// Libraries of the system that the static library refers to; see the linker's line that
/// `rustc --print native-static-libs` shows. The compiler adds libgcc and libc by itself.
const SYSTEM_LIBRARIES: [&str; 5] = ["-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

/// Options of compilers whose value is the next argument.
const WITH_VALUE: [&str; 30] = [
    "-o",
    "-I",
    "-L",
    "-D",
    "-U",
    "-l",
    "-x",
    "-T",
    "-u",
    "-z",
    "-B",
    "-e",
    "-A",
    "-G",
    "-MF",
    "-MT",
    "-MQ",
    "-include",
    "-imacros",
    "-isystem",
    "-iquote",
    "-idirafter",
    "-iprefix",
    "-isysroot",
    "-Xlinker",
    "-Xpreprocessor",
    "-Xassembler",
    "--param",
    "-target",
    "--sysroot",
];

/// Set for the compiler: who finds it set has been started as the compiler of another.
const MARK: &str = "OSHCC_COMPILES";

/// Options that stop the compiler before it links.
const WITHOUT_LINKING: [&str; 7] = ["-c", "-S", "-E", "-M", "-MM", "-fsyntax-only", "-r"];

fn main() -> ExitCode {
    if tool::completes(definition) {
        return ExitCode::SUCCESS;
    }
    let mut args = std::env::args_os();
    let name = args.next().unwrap_or_else(|| "oshcc".into());
    let language = Language::from_name(&name);
    let request = Request::from_args(args);
    let place = match Installation::find() {
        Ok(place) => place,
        Err(why) => return fail(1, &why),
    };
    let whole_line = || {
        let compiler = compiler(language)?;
        Ok::<_, String>([compiler, arguments(&request, &place)].concat())
    };
    let text = match request.action {
        Action::Help => help().trim_end().to_owned(),
        Action::ShowVersion => tool::VERSION.to_owned(),
        Action::ShowCompile => quoted(&compile_flags(&place)),
        Action::ShowLink => quoted(&link_flags(&place, request.linking)),
        Action::Show | Action::Run => match whole_line() {
            Ok(line) if request.action == Action::Run => return run(line, language),
            Ok(line) => quoted(&line),
            Err(why) => return fail(1, &why),
        },
    };
    tool::print(text + "\n");
    ExitCode::SUCCESS
}

fn help() -> String {
    let line = |(name, what): &(&str, &str)| format!("  --{name:17} {what}\n");
    HELP.replace("@OPTIONS@", &OWN.iter().map(line).collect::<String>())
}

/// Our own options in clap's terms, for shells; compilers' options are not ours to define.
fn definition() -> clap::Command {
    let own = std::env::args().next().unwrap_or_default();
    let own = Path::new(&own).file_name().and_then(OsStr::to_str);
    let name = NAMES.into_iter().find(|name| own == Some(name)).unwrap_or(NAMES[0]);
    let flag = |(name, what): &(&'static str, &'static str)| {
        clap::Arg::new(*name).long(*name).help(*what).action(clap::ArgAction::SetTrue)
    };
    let files = clap::Arg::new("FILE").num_args(0..).value_hint(clap::ValueHint::FilePath);
    clap::Command::new(name).disable_help_flag(true).args(OWN.iter().map(flag)).arg(files)
}

#[derive(Clone, Copy)]
enum Language {
    C,
    Cxx,
}

impl Language {
    fn from_name(name: &OsStr) -> Language {
        let name = Path::new(name).file_name().and_then(OsStr::to_str);
        // Where several libraries are installed, each has programs of its own name.
        match name.map(|name| name.strip_suffix(".tombolo").unwrap_or(name)) {
            Some(name) if name.ends_with("++") || name.ends_with("CC") || name.ends_with("cxx") => {
                Language::Cxx
            }
            _ => Language::C,
        }
    }

    /// Variable that names the compiler, and what is used without it.
    fn compiler(self) -> (&'static str, &'static str) {
        match self {
            Language::C => ("OSHCC_CC", "cc"),
            Language::Cxx => ("OSHCXX_CXX", "c++"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Run,
    Show,
    ShowCompile,
    ShowLink,
    ShowVersion,
    Help,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Linking {
    Shared,
    /// Tombolo into the program, the system's libraries shared.
    TomboloStatic,
    /// `-static` or `-static-pie`.
    AllStatic,
}

/// The command line: our own options, and what is the compiler's.
struct Request {
    action: Action,
    linking: Linking,
    /// Whether the compiler will link something.
    links: bool,
    args: Vec<OsString>,
}

impl Request {
    fn from_args(args: impl Iterator<Item = OsString>) -> Request {
        let mut request =
            Request { action: Action::Run, linking: Linking::Shared, links: true, args: vec![] };
        let mut seen = Seen::default();
        for arg in args {
            let text = arg.to_str().unwrap_or("");
            match text {
                _ if seen.is_value => {}
                "-show" | "--show" | "-showme" | "--showme" => {
                    request.action = Action::Show;
                    continue;
                }
                "-showme:compile" | "--showme:compile" => {
                    request.action = Action::ShowCompile;
                    continue;
                }
                "-showme:link" | "--showme:link" => {
                    request.action = Action::ShowLink;
                    continue;
                }
                "-showme:version" | "--showme:version" => {
                    request.action = Action::ShowVersion;
                    continue;
                }
                "--static-tombolo" | "-static-tombolo" => {
                    request.linking = Linking::TomboloStatic;
                    continue;
                }
                "--help" => {
                    request.action = Action::Help;
                    continue;
                }
                _ => {}
            }
            seen.see(text, FILES_IN_FILES);
            request.args.push(arg);
        }
        if seen.is_static {
            request.linking = Linking::AllStatic;
        }
        // Without an input, as in `oshcc --version`, libraries would make the compiler link them. A bare
        // `oshcc -show` runs nothing: build systems ask it for all flags.
        let is_bare_show = request.action == Action::Show && request.args.is_empty();
        request.links = (seen.has_input || is_bare_show) && !seen.stops;
        request
    }
}

/// How deep files of arguments may name others.
const FILES_IN_FILES: usize = 8;

/// What in the compiler's arguments decides about linking.
#[derive(Default)]
struct Seen {
    has_input: bool,
    /// The compiler stops before it links.
    stops: bool,
    is_static: bool,
    /// The next argument is the value of this one.
    is_value: bool,
}

impl Seen {
    /// Takes an argument, or a word of a file of arguments, into account.
    fn see(&mut self, text: &str, files_in_files: usize) {
        match text {
            _ if self.is_value => self.is_value = false,
            "-static" | "--static" | "-static-pie" => self.is_static = true,
            option if WITH_VALUE.contains(&option) => self.is_value = true,
            option if WITHOUT_LINKING.contains(&option) => self.stops = true,
            file if file.starts_with('@') && files_in_files > 0 => match words_of(&file[1..]) {
                Some(words) => words.iter().for_each(|word| self.see(word, files_in_files - 1)),
                // Compilers take it for the name of an input.
                None => self.has_input = true,
            },
            // "-" is standard input, a file name that is not UTF-8 reads as empty here.
            option if !option.starts_with('-') || option == "-" => self.has_input = true,
            _ => {}
        }
    }
}

/// The arguments in a file that the compiler is given as `@file`. From a pipe, only one can read them.
fn words_of(file: &str) -> Option<Vec<String>> {
    let is_file = std::fs::metadata(file).is_ok_and(|metadata| metadata.is_file());
    let bytes = is_file.then(|| std::fs::read(file).ok())??;
    shlex::split(&String::from_utf8_lossy(&bytes))
}

/// Where headers and libraries are.
struct Installation {
    include: PathBuf,
    lib: PathBuf,
    /// Whether programs find the shared library by themselves.
    found_by_loader: bool,
}

impl Installation {
    /// The installation that this program belongs to.
    fn find() -> Result<Installation, String> {
        let own = std::env::current_exe().map_err(|e| format!("cannot find its own place: {e}"))?;
        let prefix = own.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
        let places = [Installation::of_system(prefix), Installation::of_its_own(prefix)];
        let is_there = |place: &Installation| place.include.join("shmem.h").is_file();
        places.into_iter().find(is_there).ok_or_else(|| {
            let (own, prefix) = (own.display(), prefix.display());
            format!("{own} is not part of an installation: there is no {prefix}/include/shmem.h")
        })
    }

    /// A directory that holds bin, include and lib.
    fn of_its_own(prefix: &Path) -> Installation {
        let (include, lib) = (prefix.join("include"), prefix.join("lib"));
        Installation { include, lib, found_by_loader: false }
    }

    /// The places of Debian's packages: the library is among those of the system, and its other
    /// names, which other packages have as well, are in a folder of their own.
    fn of_system(prefix: &Path) -> Installation {
        let lib = prefix.join(format!("lib/{}-linux-gnu/tombolo", std::env::consts::ARCH));
        Installation { include: prefix.join("include/tombolo"), lib, found_by_loader: true }
    }
}

fn compile_flags(place: &Installation) -> Vec<OsString> {
    vec![joined("-I", &place.include)]
}

fn link_flags(place: &Installation, linking: Linking) -> Vec<OsString> {
    let lib = &place.lib;
    let mut flags = vec![joined("-L", lib)];
    if linking == Linking::Shared {
        if place.found_by_loader {
            // Nothing to tell programs.
        } else if lib.as_os_str().as_encoded_bytes().contains(&b',') {
            // The short form splits at commas.
            flags.extend(["-Xlinker", "-rpath", "-Xlinker"].map(OsString::from));
            flags.push(lib.into());
        } else {
            flags.push(joined("-Wl,-rpath,", lib));
        }
        flags.push("-ltombolo".into());
    } else {
        flags.push("-l:libtombolo.a".into());
        flags.extend(SYSTEM_LIBRARIES.map(OsString::from));
    }
    flags
}

/// The compiler, with the arguments that come before all others: OSHCC_CC="ccache gcc".
fn compiler(language: Language) -> Result<Vec<OsString>, String> {
    let (variable, default) = language.compiler();
    let text = std::env::var(variable).unwrap_or_default();
    match compiler_of(&text, default) {
        Some(words) => Ok(words),
        None => Err(format!(
            "{variable} = {text}: expected a compiler and its arguments, with an end for every quote"
        )),
    }
}

/// The words of a variable that names a compiler, as a shell cuts them; none if it would not.
fn compiler_of(text: &str, default: &str) -> Option<Vec<OsString>> {
    let words: Vec<OsString> = shlex::split(text)?.into_iter().map(OsString::from).collect();
    Some(if words.is_empty() { vec![default.into()] } else { words })
}

/// Our include directory comes first, lest another installation's shmem.h be found; our library
/// comes last, after the objects that refer to it.
fn arguments(request: &Request, place: &Installation) -> Vec<OsString> {
    let mut line = compile_flags(place);
    line.extend(request.args.iter().cloned());
    if request.links {
        line.extend(link_flags(place, request.linking));
    }
    line
}

/// Becomes the compiler; returns only if that fails.
fn run(line: Vec<OsString>, language: Language) -> ExitCode {
    let variable = language.compiler().0;
    if std::env::var_os(MARK).is_some() {
        return fail(1, &format!("calls itself: set {variable} to a compiler"));
    }
    let error = Command::new(&line[0]).args(&line[1..]).env(MARK, "1").exec();
    let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
    let compiler = line[0].display();
    fail(
        code,
        &format!("cannot run the compiler '{compiler}': {error} (set {variable} to another)"),
    )
}

fn fail(code: u8, why: &str) -> ExitCode {
    tool::complain(format_args!("oshcc: {why}"));
    ExitCode::from(code)
}

fn joined(flag: &str, path: &Path) -> OsString {
    let mut joined = OsString::from(flag);
    joined.push(path);
    joined
}

/// The words as one would type them to a shell.
fn quoted(words: &[OsString]) -> String {
    let quote = |word: &OsString| {
        let text = word.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%^".contains(c);
        match !text.is_empty() && text.chars().all(plain) {
            true => text.into_owned(),
            false => format!("'{}'", text.replace('\'', r"'\''")),
        }
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(args: &str) -> String {
        let request = Request::from_args(args.split_whitespace().map(OsString::from));
        quoted(&arguments(&request, &Installation::of_its_own(Path::new("/p"))))
    }

    #[test]
    fn programs_find_a_library_of_the_system_by_themselves() {
        let place = Installation::of_system(Path::new("/usr"));
        let line = quoted(&[compile_flags(&place), link_flags(&place, Linking::Shared)].concat());
        let folder = format!("/usr/lib/{}-linux-gnu/tombolo", std::env::consts::ARCH);
        assert_eq!(line, format!("-I/usr/include/tombolo -L{folder} -ltombolo"));
    }

    #[test]
    fn the_library_comes_after_the_objects() {
        assert_eq!(line("a.c -o a"), "-I/p/include a.c -o a -L/p/lib -Wl,-rpath,/p/lib -ltombolo");
    }

    #[test]
    fn nothing_is_linked_without_a_link_step() {
        for args in ["-c a.c", "-E a.c", "-MM a.c", "--version", "-v", "-o a", "-I a", "-show -v"] {
            assert!(!line(args).contains("tombolo"), "{args}");
        }
        for args in ["-x c -", "a.o", "-MD -MF a.d a.c", "@files"] {
            assert!(line(args).contains("tombolo"), "{args}");
        }
    }

    #[test]
    fn showing_nothing_but_the_flags_shows_all_of_them() {
        let all = "-I/p/include -L/p/lib -Wl,-rpath,/p/lib -ltombolo";
        assert_eq!([line("-show"), line("--showme")], [all; 2]);
        assert!(line("-show --static-tombolo").contains("-l:libtombolo.a -lutil"));
    }

    #[test]
    fn files_of_arguments_are_looked_into() {
        let folder = std::env::temp_dir().join(format!("tombolo-oshcc-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let argument = |name: &str, text: &str| {
            let file = folder.join(name);
            std::fs::write(&file, text).unwrap();
            format!("@{}", file.display())
        };
        let compiles = argument("compiles", "-O2\n-c 'a b.c'\n");
        let outer = argument("outer", &format!("-g {compiles}"));
        let values = argument("values", "-O2 -o out -I -c");
        let links = argument("links", "-static a.o \"-o\" a");
        let ends_in_option = argument("ends-in-option", "-o");
        let archive = format!("-I/p/include {links} -L/p/lib -l:libtombolo.a -lutil -lrt");
        for (args, expected) in [
            (compiles.clone(), format!("-I/p/include {compiles}")),
            (outer.clone(), format!("-I/p/include {outer}")),
            (values.clone(), format!("-I/p/include {values}")),
            (format!("{ends_in_option} a.c"), format!("-I/p/include {ends_in_option} a.c")),
            (format!("{values} a.c"), format!("-I/p/include {values} a.c -L/p/lib")),
            (links.clone(), archive),
        ] {
            let (line, is_whole) = (line(&args), !expected.contains("-L"));
            assert!(line.starts_with(&expected) && (!is_whole || line == expected), "{line}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn static_linking_takes_the_archive() {
        let archive = "-L/p/lib -l:libtombolo.a -lutil -lrt -lpthread -lm -ldl";
        assert_eq!(line("--static-tombolo a.c"), format!("-I/p/include a.c {archive}"));
        assert_eq!(line("-static a.c"), format!("-I/p/include -static a.c {archive}"));
    }

    #[test]
    fn own_options_are_not_the_compilers() {
        let parse =
            |arg: &str| Request::from_args(["-o", "--showme", arg].map(OsString::from).into_iter());
        assert_eq!(parse("-show").action, Action::Show);
        assert_eq!(parse("--showme:link").action, Action::ShowLink);
        assert_eq!(parse("a.c").args.len(), 3, "the value of -o is left alone");
    }

    #[test]
    fn the_name_decides_the_language() {
        for (name, cxx) in
            [("oshcc", false), ("/x/oshc++", true), ("oshCC", true), ("oshcxx.tombolo", true)]
        {
            assert_eq!(
                matches!(Language::from_name(OsStr::new(name)), Language::Cxx),
                cxx,
                "{name}"
            );
        }
    }

    #[test]
    fn quotes_keep_the_blanks_of_a_compiler() {
        let words = |text| compiler_of(text, "cc").map(|words| quoted(&words));
        assert_eq!(words("  "), Some("cc".into()));
        assert_eq!(words("ccache gcc"), Some("ccache gcc".into()));
        assert_eq!(words("'/a b/gcc' -DX=\"1 2\""), Some("'/a b/gcc' '-DX=1 2'".into()));
        assert_eq!(words("gcc '-DX"), None);
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(
            quoted(&["a b".into(), "it's".into(), "-DX=1".into()]),
            r"'a b' 'it'\''s' -DX=1"
        );
    }
}
