// SPDX-License-Identifier: Apache-2.0
//! The headers against the standard, the compilers and the library.
//!
//! Every C routine of the standard's list is declared with exactly its prototype, under both names;
//! every generic routine works for every type of its table; compilers accept the headers without a
//! remark; constants mean the same to C and Rust.

use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tombolo_tests::unless;

#[path = "../../compat/src/abi.rs"]
mod abi;
#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::{include_dir, installed, routines, rows, run, scratch, tool};

const HEADERS: [&str; 6] =
    ["shmem.h", "shmemx.h", "pshmem.h", "mpp/shmem.h", "mpp/shmemx.h", "mpp/pshmem.h"];
const C: [&str; 2] = ["gcc", "clang"];
const CXX: [&str; 2] = ["g++", "clang++"];
const C_STANDARDS: [&str; 4] = ["c99", "c11", "c17", "c2x"];
const CXX_STANDARDS: [&str; 4] = ["c++11", "c++17", "c++20", "c++2b"];
/// Those with generic routines, the oldest and the newest of either language: headers ask for nothing but C11 or C++.
const OF_GENERICS: [&str; 4] = ["c11", "c2x", "c++11", "c++2b"];
/// Where generic routines are functions of the header, GCC looks only as it generates code whether each returns what it
/// is to return.
const WITH_CODE: &str = "c++2b";
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// Remarks that careful programs ask for as well.
const CAREFUL: [&str; 7] = [
    "-Wconversion",
    "-Wsign-conversion",
    "-Wcast-qual",
    "-Wshadow",
    "-Wredundant-decls",
    "-Wundef",
    "-Wdouble-promotion",
];
/// Of compilers for C only: what would not compile as C++.
const CAREFUL_C: [&str; 1] = ["-Wc++-compat"];
/// Of compilers for C++ only.
const CAREFUL_CXX: [&str; 2] = ["-Wold-style-cast", "-Wzero-as-null-pointer-constant"];

/// Initialises variables with all predefined handles.
const HANDLES: &str = "\
extern shmem_ctx_t contexts[];
shmem_ctx_t contexts[] = {SHMEM_CTX_INVALID, SHMEM_CTX_DEFAULT};
extern shmem_team_t teams[];
shmem_team_t teams[] = {SHMEM_TEAM_INVALID, SHMEM_TEAM_WORLD, SHMEM_TEAM_SHARED};
";

/// TYPENAME and TYPE of every type of the standard.
const TYPES: [(&str, &str); 26] = [
    ("float", "float"),
    ("double", "double"),
    ("longdouble", "long double"),
    ("char", "char"),
    ("schar", "signed char"),
    ("short", "short"),
    ("int", "int"),
    ("long", "long"),
    ("longlong", "long long"),
    ("uchar", "unsigned char"),
    ("ushort", "unsigned short"),
    ("uint", "unsigned int"),
    ("ulong", "unsigned long"),
    ("ulonglong", "unsigned long long"),
    ("int8", "int8_t"),
    ("int16", "int16_t"),
    ("int32", "int32_t"),
    ("int64", "int64_t"),
    ("uint8", "uint8_t"),
    ("uint16", "uint16_t"),
    ("uint32", "uint32_t"),
    ("uint64", "uint64_t"),
    ("size", "size_t"),
    ("ptrdiff", "ptrdiff_t"),
    ("complexf", "float _Complex"),
    ("complexd", "double _Complex"),
];

fn main() {
    let mut trials = Vec::new();
    for (compilers, standards) in [(C, &C_STANDARDS[..]), (CXX, &CXX_STANDARDS[..])] {
        for compiler in compilers {
            for standard in standards {
                trials.extend(trials_of(compiler, standard));
            }
        }
    }
    trials.push(Trial::test("a_wrong_prototype_is_noticed", a_wrong_prototype_is_noticed));
    trials.push(Trial::test("nothing_else_is_declared", nothing_else_is_declared));
    trials.push(Trial::test(
        "deprecated_routines_are_remarked_on_only_when_asked",
        deprecated_routines_are_remarked_on_only_when_asked,
    ));
    for compiler in C {
        let name = format!("{compiler}: generics survive macros and side effects of the program");
        trials.push(unless(absent(compiler), Trial::test(name, || survives_a_program(compiler))));
    }
    for compiler in [C, CXX].concat() {
        let name = format!("{compiler}: the header survives macros with names of types");
        let trial = Trial::test(name, || survives_macros(compiler));
        trials.push(unless(absent(compiler), trial));
        let name =
            format!("{compiler}: those who ask are told of the deprecated routines they use");
        let trial = Trial::test(name, || those_who_ask_are_told_of_what_they_use(compiler));
        trials.push(unless(absent(compiler), trial));
        let name = format!("{compiler}: variables that are waited for and locks may be volatile");
        let trial = Trial::test(name, || volatile_variables_are_taken(compiler));
        trials.push(unless(absent(compiler), trial));
    }
    trials.push(Trial::test(
        "the_header_and_the_library_agree_on_values",
        the_header_and_the_library_agree_on_values,
    ));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Why nothing can be tested with a compiler, if it is not there.
fn absent(compiler: &str) -> Option<String> {
    (!installed(compiler)).then(|| format!("needs {compiler}"))
}

/// Everything that depends on compiler and standard, ignored with the reason in its name when the
/// compiler is not there.
fn trials_of(compiler: &'static str, standard: &'static str) -> Vec<Trial> {
    let absent = absent(compiler);
    let name = |what: &str| format!("{compiler} {standard}: {what}");
    let mut trials = Vec::new();
    for header in HEADERS {
        trials.push(Trial::test(name(&format!("{header} compiles alone, and twice")), move || {
            let source = format!("#include <{header}>\n#include <{header}>\nint main(void);\n");
            compiles(compiler, standard, "alone", &source, &STRICT)
        }));
    }
    if standard.starts_with("c++") {
        trials.push(Trial::test(name("headers compile within extern \"C\""), move || {
            let include = |header: &str| format!("extern \"C\" {{\n#include <{header}>\n}}\n");
            let source = HEADERS.map(include).concat() + "void p(long *d) { shmem_p(d, 1L, 0); }\n";
            compiles(compiler, standard, "within", &source, &STRICT)
        }));
    } else {
        trials.push(Trial::test(name("every prototype is the standard's"), move || {
            compiles(compiler, standard, "prototypes", &redeclarations(), &STRICT)
        }));
    }
    if OF_GENERICS.contains(&standard) {
        trials.push(Trial::test(
            name("every generic works for every type, and every handle"),
            move || {
                // Not pedantic: in C++, _Complex is an extension that the generated calls name.
                let source = generic_calls() + HANDLES;
                let flags = [&["-Wall", "-Wextra", "-Werror"][..], &CAREFUL];
                let of_language =
                    if standard.starts_with("c++") { &CAREFUL_CXX[..] } else { &CAREFUL_C };
                let flags = [flags.concat(), of_language.into()].concat();
                if standard == WITH_CODE {
                    compile(compiler, standard, "generics", &source, &flags)?;
                    return Ok(());
                }
                compiles(compiler, standard, "generics", &source, &flags)
            },
        ));
    }
    trials.into_iter().map(|trial| unless(absent.as_ref(), trial)).collect()
}

/// Has a compiler check `source`; generating code takes most of the time of compiling.
fn compiles(
    compiler: &str,
    standard: &str,
    name: &str,
    source: &str,
    flags: &[&str],
) -> Result<(), Failed> {
    let path = written(standard, name, source)?;
    given(compiler, standard, &path, &[flags, &["-fsyntax-only"]].concat())?;
    Ok(())
}

/// Compiles `source` to an object file, and returns where that is.
fn compile(
    compiler: &str,
    standard: &str,
    name: &str,
    source: &str,
    flags: &[&str],
) -> Result<PathBuf, String> {
    let path = written(standard, name, source)?;
    let object = path.with_extension("o");
    let output = object.display().to_string();
    given(compiler, standard, &path, &[flags, &["-c", "-o", &output]].concat())?;
    Ok(object)
}

/// A file of its own with `source`.
fn written(standard: &str, name: &str, source: &str) -> Result<PathBuf, String> {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let extension = if standard.starts_with("c++") { "cc" } else { "c" };
    let path = scratch("headers").join(format!("{name}-{number}.{extension}"));
    fs::write(&path, source).map_err(|error| error.to_string())?;
    Ok(path)
}

/// Runs a compiler with a file.
fn given(compiler: &str, standard: &str, path: &Path, flags: &[&str]) -> Result<(), String> {
    let mut args = vec![
        format!("-std={standard}"),
        format!("-I{}", include_dir().display()),
        path.display().to_string(),
    ];
    args.extend(flags.iter().map(|flag| flag.to_string()));
    tool(compiler, &args)?;
    Ok(())
}

/// A C file that takes the address of every routine, so that it must be declared, and then declares
/// it again with the standard's prototype, so that a different declaration is an error.
fn redeclarations() -> String {
    let mut declared = String::from("void (*const declared[])(void) = {\n");
    let mut again = String::new();
    for routine in routines() {
        let twin = routine.name.starts_with("shmem_").then(|| format!("p{}", routine.name));
        for name in [Some(routine.name.clone()), twin].into_iter().flatten() {
            writeln!(declared, "    (void (*)(void)){name},").unwrap();
            // In parentheses: some names are also C11 macros.
            let prototype =
                routine.prototype.replacen(&format!("{}(", routine.name), &format!("({name})("), 1);
            writeln!(again, "{prototype}").unwrap();
        }
    }
    format!("#include <shmem.h>\n#include <pshmem.h>\n{declared}}};\n{again}")
}

/// Without this the test above could pass for the wrong reason.
fn a_wrong_prototype_is_noticed() -> Result<(), Failed> {
    let source = redeclarations();
    for (right, wrong) in [
        ("(shmem_int_p)(int *dest, int value", "(shmem_int_p)(int *dest, long value"),
        ("(pshmem_size_g)(const size_t", "(pshmem_size_g)(size_t"),
        ("(void (*)(void))shmem_fence,", "(void (*)(void))shmem_fense,"),
    ] {
        let wrong_source = source.replacen(right, wrong, 1);
        if wrong_source == source {
            return Err(format!("{right} is not in the generated file").into());
        }
        if compiles("gcc", "c11", "wrong", &wrong_source, &[]).is_ok() {
            return Err(format!("{wrong} compiles").into());
        }
    }
    Ok(())
}

/// The standard: shmem.h contains only what it defines.
fn nothing_else_is_declared() -> Result<(), Failed> {
    let path = scratch("headers").join("declared.c");
    fs::write(&path, "#include <shmem.h>\n#include <pshmem.h>\n")?;
    let include = format!("-I{}", include_dir().display());
    let text = tool("gcc", &["-std=c99", "-E", "-P", &include, &path.display().to_string()])?;
    let declared: BTreeSet<&str> = text
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("shmem_") || word.starts_with("pshmem_"))
        .filter(|word| !word.ends_with("_t"))
        .collect();
    let list = routines();
    let known: BTreeSet<&str> = list.iter().map(|routine| routine.name.as_str()).collect();
    let unknown: Vec<_> =
        declared.into_iter().filter(|name| !known.contains(name.trim_start_matches('p'))).collect();
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(format!("not in the standard: {unknown:?}").into()),
    }
}

/// One C function per generic routine and type, with the routine's own parameters, that calls it.
fn generic_calls() -> String {
    let list = routines();
    let names: BTreeSet<&str> = list.iter().map(|routine| routine.name.as_str()).collect();
    let mut source = String::from("#include <shmem.h>\n#include <stdint.h>\n");
    for (number, row) in rows("openshmem-1.6-c11-generics.tsv").iter().enumerate() {
        let (generic, prototype) = (&row[0], &row[2]);
        if !prototype.contains("TYPE") {
            // The noreturn of shmem_global_exit concerns its declaration, not the call.
            let prototype = prototype.replace("_Noreturn ", "");
            source += &call(&format!("call_{number}"), &prototype, generic);
            continue;
        }
        let verb = generic.strip_prefix("shmem_").expect("generic names start with shmem_");
        let of_type = |(typename, _): &&(&str, &str)| {
            names.contains(format!("shmem_{typename}_{verb}").as_str())
        };
        let types: Vec<_> = TYPES.iter().filter(of_type).collect();
        assert!(types.len() >= 7, "{generic} has its types: {types:?}");
        for (typename, ctype) in types {
            let function = format!("call_{number}_{typename}");
            source += &call(&function, &prototype.replace("TYPE", ctype), generic);
        }
    }
    source
}

/// `RETURNS function(PARAMETERS)` that passes its parameters to `generic`, and in C checks the type
/// that comes back.
fn call(function: &str, prototype: &str, generic: &str) -> String {
    let (head, rest) = prototype.split_once('(').expect("a prototype");
    let parameters = rest.trim_end_matches(");");
    let returns = head.trim().strip_suffix(generic).expect("the name ends the head").trim();
    let arguments: Vec<&str> = parameters
        .split(',')
        .map(|parameter| parameter.rsplit([' ', '*']).next().expect("a name"))
        .collect();
    let call = format!("{generic}({})", arguments.join(", "));
    let same = format!("__builtin_types_compatible_p(__typeof__({call}), {returns})");
    let body = match returns {
        "void" => format!("{call};"),
        _ => format!("return {call};"),
    };
    format!(
        "{returns} {function}({parameters});\n{returns} {function}({parameters}) {{\n\
         #ifndef __cplusplus\n    _Static_assert({same}, \"return type\");\n#endif\n    \
         {body}\n}}\n"
    )
}

fn deprecated_routines_are_remarked_on_only_when_asked() -> Result<(), Failed> {
    let source = "#include <shmem.h>\nint main(void) { start_pes(0); return _my_pe(); }\n";
    compiles("gcc", "c11", "deprecated", source, &["-Wall", "-Wextra", "-Werror"])?;
    remarks("gcc", "c11", &[("start_pes(0);", "use shmem_init")])
}

/// A program that is told of deprecated routines: of those that it uses, where it uses them, and of no others.
fn those_who_ask_are_told_of_what_they_use(compiler: &str) -> Result<(), Failed> {
    let standard = if C.contains(&compiler) { "c11" } else { "c++17" };
    let current = [
        "shmem_wait_until(&word, SHMEM_CMP_EQ, 1L);",
        "shmem_long_wait_until(&word, SHMEM_CMP_EQ, 1L);",
        "shmem_test(&word, SHMEM_CMP_EQ, 1L);",
        "shmem_sync(SHMEM_TEAM_WORLD);",
        "shmem_atomic_swap(&word, 1L, 0);",
    ];
    let asked = [&STRICT[..], &["-DTOMBOLO_WARN_DEPRECATED"]].concat();
    compiles(compiler, standard, "current", &using(&current), &asked)?;
    let mut deprecated = vec![
        ("shmem_swap(&word, 1L, 0);", "atomic_swap"),
        ("shmem_inc(&word, 0);", "atomic_inc"),
        ("shmem_long_wait(&word, 1L);", "SHMEM_CMP_NE"),
        ("shmem_sync(0, 0, 1, &word);", "shmem_team_sync"),
    ];
    if standard == "c++17" {
        deprecated.push((
            "std::complex<float> c; shmem_complexf_sum_to_all(&c, &c, 1, 0, 0, 1, &c, &word);",
            "_reduce",
        ));
    }
    remarks(compiler, standard, &deprecated)
}

/// A program of statements, each in a line of its own.
fn using(statements: &[&str]) -> String {
    format!(
        "#include <shmem.h>\nstatic long word;\nint main(void) {{\n{}\n}}\n",
        statements.join("\n")
    )
}

/// Asked for deprecated routines, a compiler gives the advice for each of the statements, and speaks of no other line.
fn remarks(compiler: &str, standard: &str, statements: &[(&str, &str)]) -> Result<(), Failed> {
    const BEFORE: usize = 3;
    let source = using(&statements.iter().map(|(statement, _)| *statement).collect::<Vec<_>>());
    let path = written(standard, "deprecated", &source)?;
    let mut command = Command::new(compiler);
    command.arg(format!("-std={standard}")).arg("-I").arg(include_dir()).arg(&path);
    command.args(["-Werror", "-DTOMBOLO_WARN_DEPRECATED", "-fsyntax-only"]);
    let said = run(&mut command, Duration::from_secs(120))?.stderr;
    let place = |number: usize| format!("{}:{}:", path.display(), BEFORE + 1 + number);
    let errors: Vec<&str> = said.lines().filter(|line| line.contains("error: ")).collect();
    for (number, (statement, advice)) in statements.iter().enumerate() {
        let is_it = |line: &&str| line.contains(&place(number)) && line.contains(advice);
        if !errors.iter().any(is_it) {
            return Err(format!("{statement}: expected '{advice}' in {said}").into());
        }
    }
    let is_told_of = |line: &str| (0..statements.len()).any(|n| line.contains(&place(n)));
    match errors.iter().find(|line| !is_told_of(line)) {
        None => Ok(()),
        Some(line) => Err(format!("about no line of the program: {line}").into()),
    }
}

/// What programs do to generic macros: names of their own, increments in arguments, calls in calls,
/// qualified pointers, structure members.
fn survives_a_program(compiler: &str) -> Result<(), Failed> {
    let source = "
#include <iso646.h>
#define g 9.81
#define p 3
#define put 4
#include <shmem.h>
#define int8 5
#define add 7
#define size 77
struct { long array[4]; int matrix[2][3]; } data;
int main(void) {
    int i = 0;
    const int constant = 4;
    shmem_ctx_t ctx = SHMEM_CTX_DEFAULT;
    shmem_p(&data.array[i++], 5, 0);
    shmem_p(ctx, data.array + 1, shmem_g(&data.array[shmem_g(&i, 0)], 1), shmem_my_pe());
    shmem_atomic_add(data.matrix[1], 2, 0);
    void (*function)(long *, int, long) = shmem_wait_until;
    function(data.array, SHMEM_CMP_EQ, shmem_g(ctx, &data.array[0], 0));
    shmem_sync(SHMEM_TEAM_WORLD);
    return shmem_g(&constant, 0);
}
";
    compiles(compiler, "c11", "program", source, &STRICT)
}

/// As OpenSHMEM 1.3 had them. Compilers for C remark on that.
fn volatile_variables_are_taken(compiler: &str) -> Result<(), Failed> {
    let mut source =
        String::from("#include <shmem.h>\nstatic volatile long lock;\nint main(void) {\n");
    let list = routines();
    let has_wait =
        |name: &str| list.iter().any(|routine| routine.name == format!("shmem_{name}_wait"));
    for (name, c_type) in TYPES.iter().filter(|(name, _)| has_wait(name)) {
        writeln!(
            source,
            "    {{\n        static volatile {c_type} word; {c_type} value = 0;\n        \
             shmem_{name}_wait(&word, value); shmem_{name}_wait_until(&word, SHMEM_CMP_EQ, value);\n        \
             shmem_wait_until(&word, SHMEM_CMP_EQ, value);\n        \
             if (shmem_{name}_test(&word, SHMEM_CMP_EQ, value)) return 1;\n        \
             if (shmem_test(&word, SHMEM_CMP_EQ, value)) return 1;\n    }}"
        )?;
    }
    source += "    shmem_wait(&lock, 0);\n    shmem_set_lock(&lock);\n    shmem_clear_lock(&lock);\n    \
        void (*function)(long *) = shmem_set_lock;\n    \
        return function != 0 && shmem_test_lock(&lock);\n}\n";
    if C.contains(&compiler) {
        return compiles(compiler, "c11", "volatile", &source, &["-Wall", "-Wextra"]);
    }
    compiles(compiler, "c++11", "volatile", &source, &STRICT)?;
    compiles(compiler, "c++2b", "volatile", &source, &STRICT)
}

/// Old programs have macros such as `ulong`. The words of C and its types are not theirs to define.
fn survives_macros(compiler: &str) -> Result<(), Failed> {
    // Headers of the C++ library and of the system use these names.
    const OF_THE_SYSTEM: [&str; 4] = ["size", "uint", "ulong", "ushort"];
    let mut source = String::new();
    for (name, c_type) in TYPES.iter().filter(|(name, c_type)| name != c_type) {
        writeln!(source, "#define {name} {c_type}")?;
    }
    if C.contains(&compiler) {
        source += &redeclarations();
        return compiles(compiler, "c11", "named", &source, &STRICT);
    }
    let in_cxx =
        |line: &&str| !OF_THE_SYSTEM.iter().any(|name| line.contains(&format!(" {name} ")));
    let cxx: Vec<&str> = source.lines().filter(in_cxx).collect();
    let cxx = cxx.join("\n") + "\n#include <shmem.h>\n#include <pshmem.h>\n";
    compiles(compiler, "c++17", "named", &cxx, &["-Wall", "-Wextra", "-Werror"])
}

fn the_header_and_the_library_agree_on_values() -> Result<(), Failed> {
    let mut print = String::new();
    for (name, _) in abi::CONSTANTS {
        writeln!(print, "    printf(\"{name} %lld\\n\", (long long){name});")?;
    }
    let old: Vec<&str> = OLD_CONSTANTS.split_whitespace().collect();
    for name in &old {
        writeln!(print, "    printf(\"{name} %lld\\n\", (long long)_{name});")?;
    }
    let source = format!(
        "#include <shmem.h>\n#include <stdio.h>\nint main(void) {{\n{print}    \
         printf(\"text %s %s\\n\", SHMEM_VENDOR_STRING, _SHMEM_VENDOR_STRING);\n    \
         printf(\"sizes %zu %zu\\n\", sizeof(shmem_team_config_t), \
         sizeof(shmem_ctx_session_config_t));\n    return 0;\n}}\n"
    );
    let object = compile("gcc", "c11", "values", &source, &["-Wall", "-Werror"])?;
    let program = object.with_extension("");
    let paths = [&object, &program].map(|path| path.display().to_string());
    tool("gcc", &[&paths[0], "-o", &paths[1]])?;
    let printed = tool(&program, &[""; 0])?;

    let constant = |name: &str| {
        let found = abi::CONSTANTS.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| *value).ok_or(format!("{name} is not in abi::CONSTANTS"))
    };
    let mut expected = String::new();
    for (name, value) in abi::CONSTANTS {
        writeln!(expected, "{name} {value}")?;
    }
    for name in old {
        writeln!(expected, "{name} {}", constant(name)?)?;
    }
    let vendor = abi::SHMEM_VENDOR_STRING;
    assert!(vendor.len() < abi::SHMEM_MAX_NAME_LEN, "with its null, the name fits");
    writeln!(expected, "text {vendor} {vendor}")?;
    let sizes = (size_of::<abi::TeamConfig>(), size_of::<abi::SessionConfig>());
    writeln!(expected, "sizes {} {}", sizes.0, sizes.1)?;
    let defaults = (abi::TeamConfig::default(), abi::SessionConfig::default());
    assert_eq!((defaults.0.num_contexts, defaults.1.total_ops), (0, usize::MAX));
    match printed == expected {
        true => Ok(()),
        false => Err(format!("C has\n{printed}\nRust has\n{expected}").into()),
    }
}

/// Constants that the standard also has, deprecated, with a leading underscore.
const OLD_CONSTANTS: &str = "SHMEM_MAJOR_VERSION SHMEM_MINOR_VERSION SHMEM_MAX_NAME_LEN \
    SHMEM_CMP_EQ SHMEM_CMP_NE SHMEM_CMP_GT SHMEM_CMP_LE SHMEM_CMP_LT SHMEM_CMP_GE \
    SHMEM_SYNC_VALUE SHMEM_BARRIER_SYNC_SIZE SHMEM_BCAST_SYNC_SIZE SHMEM_COLLECT_SYNC_SIZE \
    SHMEM_REDUCE_SYNC_SIZE SHMEM_REDUCE_MIN_WRKDATA_SIZE";
