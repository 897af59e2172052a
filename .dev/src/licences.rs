// SPDX-License-Identifier: Apache-2.0
//! `cargo dev licences`: what the library and its tools contain of others, and under which terms.
//!
//! It needs nothing but cargo, and looks at our own sources too. `cargo dev deny` has cargo-deny look at
//! dependencies once more, by the same list of licences.

use crate::Tree;
use crate::steps::{Failure, output};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The settings of cargo-deny, which have the licences that are accepted.
const SETTINGS: &str = include_str!("../../.cargo/deny.toml");

/// What each source file says of itself.
const OWN: &str = "SPDX-License-Identifier: Apache-2.0";
/// Sources, by the end of their names. What is written for people, pictures and data say it as a whole.
const SOURCES: [&str; 17] = [
    ".rs",
    ".c",
    ".h",
    ".cc",
    ".py",
    ".sh",
    ".js",
    ".css",
    ".toml",
    ".cmake",
    ".map",
    ".pc",
    ".1",
    ".3",
    "Makefile",
    "CMakeLists.txt",
    ".ci/run",
];

/// Folders of this repository whose names begin with a point.
const OWN_FOLDERS: [&str; 3] = [".cargo", ".ci", ".dev"];

/// The only place that dependencies come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// What is installed, as arguments of cargo: without the simulator, which is a default of the benchmarks' package.
pub const INSTALLED: [&str; 7] = [
    "--package",
    "tombolo",
    "--package",
    "tombolo-benches",
    "--no-default-features",
    "--features",
    "tombolo/tools",
];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Crate {
    pub name: String,
    pub version: String,
    /// As the crate states it, in the terms of SPDX.
    pub licence: String,
}

/// What is installed of other projects.
pub fn installed(tree: &Tree) -> Result<BTreeSet<Crate>, Failure> {
    crates(tree, &[&["--edges=normal"], &INSTALLED[..]].concat())
}

pub fn print(tree: &Tree) -> Result<(), Failure> {
    for Crate { name, version, licence } in installed(tree)? {
        println!("{name} {version}: {licence}");
    }
    Ok(())
}

/// Every dependency, those of tests too, has accepted terms and comes from the registry.
pub fn check(tree: &Tree) -> Result<(), Failure> {
    let all = crates(tree, &["--workspace", "--edges=all"])?;
    let mut wrong: Vec<String> = all
        .iter()
        .filter(|dependency| !accepted(&dependency.licence))
        .map(|c| format!("{} {}: the licence '{}' is not accepted", c.name, c.version, c.licence))
        .collect();
    let file = tree.path("Cargo.lock");
    let lock = fs::read_to_string(&file)
        .map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
    wrong.extend(elsewhere(&lock).map(|source| format!("Cargo.lock: {source}")));
    wrong.extend(unmarked(&tree.path(""))?);
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(format!("licences\n  {}", wrong.join("\n  ")))),
    }
}

/// Sources in the tree that do not say under which licence they are.
fn unmarked(root: &Path) -> Result<Vec<String>, Failure> {
    let mut folders = vec![root.to_owned()];
    let mut found = vec![];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder)
            .map_err(|error| Failure::new(format!("{}: {error}", folder.display())))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            if path.is_dir() && !path.is_symlink() {
                // Others than ours with such names are tools' own, and cargo marks what it writes to.
                let hidden = name.starts_with('.') && !OWN_FOLDERS.contains(&name.as_str());
                if !hidden && !path.join("CACHEDIR.TAG").exists() {
                    folders.push(path);
                }
            } else if SOURCES.iter().any(|end| name.ends_with(end)) && !says_licence(&path) {
                found.push(format!("{name}: no line '{OWN}' at its beginning"));
            }
        }
    }
    Ok(found)
}

fn says_licence(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| text.lines().take(2).any(|line| line.contains(OWN)))
}

/// Sources of a lock file that are not the registry.
fn elsewhere(lock: &str) -> impl Iterator<Item = &str> {
    let sources = lock.lines().filter_map(|line| line.strip_prefix("source = "));
    sources.map(|source| source.trim_matches('"')).filter(|source| *source != REGISTRY)
}

fn crates(tree: &Tree, which: &[&str]) -> Result<BTreeSet<Crate>, Failure> {
    let mut command = tree.cargo(&["tree", "--prefix=none", "--format={p}|{l}|"]);
    let lines = output(command.args(which))?;
    let found = lines.lines().filter_map(row);
    Ok(found.filter(|found| !found.name.starts_with("tombolo")).collect())
}

/// "name v1.2.3 (proc-macro)|MIT| (*)"
fn row(line: &str) -> Option<Crate> {
    let mut columns = line.split('|');
    let mut words = columns.next()?.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let licence = columns.next()?.trim().to_owned();
    Some(Crate { name: name.to_owned(), version: version.to_owned(), licence })
}

/// The licences that are accepted.
fn licences() -> impl Iterator<Item = &'static str> {
    let list = SETTINGS.split_once("allow = [").and_then(|(_, rest)| rest.split_once(']'));
    let lines = list.map_or("", |(list, _)| list).lines();
    lines.map(|line| line.trim().trim_matches(['"', ','])).filter(|line| !line.is_empty())
}

/// Whether an expression can be met with accepted licences alone.
fn accepted(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(&mut rest) && rest.is_empty()
}

fn any(rest: &mut &[&str]) -> bool {
    let mut holds = all(rest);
    while let [word, after @ ..] = *rest
        && *word == "OR"
    {
        *rest = after;
        holds |= all(rest);
    }
    holds
}

fn all(rest: &mut &[&str]) -> bool {
    let mut holds = one(rest);
    while let [word, after @ ..] = *rest
        && *word == "AND"
    {
        *rest = after;
        holds &= one(rest);
    }
    holds
}

fn one(rest: &mut &[&str]) -> bool {
    let [word, after @ ..] = *rest else { return false };
    *rest = after;
    if *word == "(" {
        let holds = any(rest);
        let closed = rest.first() == Some(&")");
        *rest = rest.get(1..).unwrap_or_default();
        return holds && closed;
    }
    // An exception allows more than the licence alone.
    if let ["WITH", _, after @ ..] = *rest {
        *rest = after;
    }
    licences().any(|licence| licence == *word)
}

/// The list with the texts of all licences, each once, as binaries have to be passed on with them.
pub fn texts(tree: &Tree) -> Result<String, Failure> {
    let crates = installed(tree)?;
    let mut text = String::from(
        "The library and the tools of Tombolo contain the standard library of Rust (MIT OR \
         Apache-2.0,\nCopyright The Rust Project Contributors) and these crates:\n\n",
    );
    let mut texts: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    for Crate { name, version, licence } in &crates {
        text.push_str(&format!("  {name} {version}: {licence}\n"));
        for file in licence_files(&format!("{name}-{version}")) {
            let Ok(own) = fs::read_to_string(&file) else { continue };
            // Told apart by their words: lines are broken in many ways.
            let words = own.split_whitespace().collect::<Vec<_>>().join(" ");
            let users = &mut texts.entry(words).or_insert((own, vec![])).1;
            if !users.contains(name) {
                users.push(name.clone());
            }
        }
    }
    for (own, users) in texts.values() {
        let line = "-".repeat(78);
        text.push_str(&format!("\n{line}\n{}:\n\n{}\n", users.join(", "), own.trim_end()));
    }
    Ok(text)
}

/// Licences in the source of a crate, as cargo keeps it on this machine.
fn licence_files(of: &str) -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let cargo = std::env::var_os("CARGO_HOME")
        .map_or_else(|| Path::new(&home).join(".cargo"), PathBuf::from);
    let registries = fs::read_dir(cargo.join("registry/src")).into_iter().flatten().flatten();
    let folders = registries.map(|registry| registry.path().join(of));
    let files = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let is_licence = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let mut found: Vec<PathBuf> = files.map(|file| file.path()).filter(is_licence).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_by_accepted_licences_alone() {
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("GPL-3.0-only OR MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("Unlicense/MIT", true),
            ("(GPL-2.0 OR MIT) AND Unicode-3.0", true),
            ("GPL-2.0 AND MIT OR ISC", true),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", true),
            ("GPL-2.0 WITH Classpath-exception-2.0", false),
            ("(MIT", false),
            ("MIT ISC", false),
            ("", false),
        ] {
            assert_eq!(accepted(expression), expected, "{expression}");
        }
    }

    #[test]
    fn accepted_licences_are_those_of_the_settings() {
        let list: Vec<_> = licences().collect();
        assert!(list.len() > 5 && list.starts_with(&["Apache-2.0"]), "{list:?}");
        assert!(
            list.iter().all(|name| name.chars().all(|c| c.is_alphanumeric() || "-.".contains(c)))
        );
    }

    #[test]
    fn rows_of_the_tree_are_understood() {
        let parts = |line: &str| row(line).map(|c| (c.name, c.version, c.licence));
        let expected = ("syn".to_owned(), "3.0.9".to_owned(), "MIT OR Apache-2.0".to_owned());
        assert_eq!(parts("syn v3.0.9|MIT OR Apache-2.0| (*)"), Some(expected));
        assert_eq!(parts("derive v1.0.0 (proc-macro)|MIT|").map(|p| p.2), Some("MIT".to_owned()));
        assert_eq!(parts(""), None);
    }

    #[test]
    fn sources_that_do_not_say_their_licence_are_found() {
        let root = std::env::temp_dir().join(format!("tombolo-dev-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("a/marked.rs", &format!("// {OWN}\n"));
        write("a/b/late.c", &format!("\n\n// {OWN}\n"));
        write(".dev/Makefile", "all:\n");
        write("a/text.md", "");
        write(".idea/other.py", "");
        write("built/CACHEDIR.TAG", "");
        write("built/out/made.rs", "");
        let mut found = unmarked(&root).expect("a folder");
        found.sort();
        fs::remove_dir_all(&root).unwrap();
        let lines = [".dev/Makefile", "a/b/late.c"];
        assert_eq!(found, lines.map(|file| format!("{file}: no line '{OWN}' at its beginning")));
    }

    #[test]
    fn sources_other_than_the_registry_are_found() {
        let lock = format!("source = \"{REGISTRY}\"\nsource = \"git+https://example.org/a\"\n");
        assert_eq!(elsewhere(&lock).collect::<Vec<_>>(), ["git+https://example.org/a"]);
    }
}
