// SPDX-License-Identifier: Apache-2.0
//! The library defines the routines of the standard, each under both of its names, and nothing else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name and what `nm` calls its kind: `T` defined, `W` defined weakly.
type Symbols = BTreeMap<String, String>;

#[test]
fn the_shared_library_exports_the_standard_and_nothing_else() {
    let exported = symbols(&built("libtombolo.so"), &["-D", "--defined-only"]);
    let expected = expected();
    let missing: Vec<_> = expected.iter().filter(|(n, k)| exported.get(*n) != Some(k)).collect();
    let unknown: Vec<_> = exported.keys().filter(|name| !expected.contains_key(*name)).collect();
    assert!(missing.is_empty(), "missing or of another kind: {missing:?}");
    assert_eq!(unknown, EXTENSIONS, "not standard");
}

#[test]
fn the_shared_library_keeps_its_name_and_asks_for_no_version_of_its_symbols() {
    let library = built("libtombolo.so");
    let output = Command::new("readelf").args(["-d", "-V", "-W"]).arg(&library).output();
    let output = output.expect("binutils has readelf");
    let text = String::from_utf8_lossy(&output.stdout);
    // Programs that are linked ask for this name. What breaks them gets another one.
    assert!(text.contains("Library soname: [libtombolo.so.0]"), "{text}");
    // Programs linked against other libraries of the same routines ask for none.
    assert!(!text.contains("Version definition section"), "{text}");
}

#[test]
fn the_archive_defines_the_same_symbols() {
    let defined = symbols(&built("libtombolo.a"), &["--defined-only"]);
    let missing: Vec<_> =
        expected().into_iter().filter(|(name, kind)| defined.get(name) != Some(kind)).collect();
    assert!(missing.is_empty(), "missing or of another kind: {missing:?}");
}

/// Extensions, which have a prefix of their own. Programs may be linked with them: names are added
/// here, and never taken away.
const EXTENSIONS: [&str; 4] =
    ["shmemx_ctx_tune_hint", "shmemx_pe_is_lost", "shmemx_tune", "shmemx_tune_hint"];

/// Every routine of the standard, and its second name where its first has the prefix `shmem_`.
fn expected() -> Symbols {
    let list = include_str!("../../tests/data/openshmem-1.6-c-prototypes.tsv");
    let mut symbols = Symbols::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split('\t').next().expect("a line has fields");
        if name.starts_with("shmem_") {
            symbols.insert(name.into(), "W".into());
            symbols.insert(format!("p{name}"), "T".into());
        } else {
            symbols.insert(name.into(), "T".into());
        }
    }
    assert_eq!(symbols.values().filter(|kind| *kind == "T").count(), 1876);
    symbols
}

/// A library that cargo has built along with this test.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test is a file");
    let deps: &Path = test.parent().expect("it lies in a folder");
    deps.join(name)
}

fn symbols(file: &Path, options: &[&str]) -> Symbols {
    let output = Command::new("nm").args(options).arg(file).output().expect("binutils has nm");
    assert!(output.status.success(), "nm {}: {output:?}", file.display());
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().rev();
            let (name, kind) = (words.next()?, words.next()?);
            Some((name.to_owned(), kind.to_owned()))
        })
        .collect()
}
