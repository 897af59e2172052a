// SPDX-License-Identifier: Apache-2.0
//! The installed library defines the routines of the standard, each under both of its names, its predefined handles, and
//! nothing else.

use std::collections::BTreeMap;

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::{Routine, prefix, routines, tool};

/// Name and what `nm` calls its kind: `T` a function, `W` one that others may replace, `R` constant data.
type Symbols = BTreeMap<String, String>;

#[test]
fn the_shared_library_exports_the_standard_and_nothing_else() {
    let exported = symbols(&library("libtombolo.so"), &["-D", "--defined-only"]);
    let expected = expected();
    let missing: Vec<_> = expected.iter().filter(|(n, k)| exported.get(*n) != Some(k)).collect();
    let unknown: Vec<_> = exported.keys().filter(|name| !expected.contains_key(*name)).collect();
    assert!(missing.is_empty(), "missing or of another kind: {missing:?}");
    assert_eq!(unknown, EXTENSIONS, "not standard");
}

#[test]
fn the_shared_library_keeps_its_name_and_asks_for_no_version_of_its_symbols() {
    let text = tool("readelf", &["-d", "-V", "-W", &library("libtombolo.so")])
        .expect("binutils has readelf");
    // Programs that are linked ask for this name. What breaks them gets another one.
    assert!(text.contains("Library soname: [libtombolo.so.0]"), "{text}");
    // Programs linked against other libraries of the same routines ask for none.
    assert!(!text.contains("Version definition section"), "{text}");
}

#[test]
fn the_archive_defines_the_same_symbols() {
    let defined = symbols(&library("libtombolo.a"), &["--defined-only"]);
    let missing: Vec<_> =
        expected().into_iter().filter(|(name, kind)| defined.get(name) != Some(kind)).collect();
    assert!(missing.is_empty(), "missing or of another kind: {missing:?}");
}

/// Extensions, which have a prefix of their own. Programs may be linked with them: names are added
/// here, and never taken away.
const EXTENSIONS: [&str; 4] =
    ["shmemx_ctx_tune_hint", "shmemx_pe_is_lost", "shmemx_tune", "shmemx_tune_hint"];

const HANDLES: [&str; 5] = [
    "SHMEM_CTX_DEFAULT",
    "SHMEM_CTX_INVALID",
    "SHMEM_TEAM_INVALID",
    "SHMEM_TEAM_SHARED",
    "SHMEM_TEAM_WORLD",
];

/// The predefined handles and every routine of the standard, with its second name where its first has the prefix
/// `shmem_`.
fn expected() -> Symbols {
    let mut symbols: Symbols = HANDLES.map(|name| (name.into(), "R".into())).into();
    for Routine { name, .. } in routines() {
        if name.starts_with("shmem_") {
            symbols.insert(format!("p{name}"), "T".into());
            symbols.insert(name, "W".into());
        } else {
            symbols.insert(name, "T".into());
        }
    }
    symbols
}

/// Where a library is installed.
fn library(name: &str) -> String {
    let prefix = prefix().expect("the library is installed");
    prefix.join("lib").join(name).display().to_string()
}

fn symbols(library: &str, options: &[&str]) -> Symbols {
    let text = tool("nm", &[options, &[library]].concat()).expect("binutils has nm");
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().rev();
            let (name, kind) = (words.next()?, words.next()?);
            Some((name.to_owned(), kind.to_owned()))
        })
        .collect()
}
