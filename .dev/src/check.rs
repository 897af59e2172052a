// SPDX-License-Identifier: Apache-2.0
//! `cargo dev check`: what can be said of the sources without running them.

use crate::Tree;
use crate::deny;
use crate::licences;
use crate::steps::{Failure, announce, run};
use std::fs;
use std::path::{Path, PathBuf};

/// Which crates of the workspace each crate may know. `tests` and `benches` may know all, and
/// nothing knows them; `.dev` knows none.
const MAY_KNOW: [(&str, &[&str]); 6] = [
    ("core", &[]),
    ("transports", &["tombolo-core"]),
    ("selector", &["tombolo-core"]),
    ("collectives", &["tombolo-core"]),
    ("compat", &["tombolo-core", "tombolo-transports", "tombolo-selector", "tombolo-collectives"]),
    (".dev", &[]),
];

/// What back ends share; it knows none of them.
const SHARED: &str = "network";

/// The option that leaves out what compiles.
const QUICK: &str = "--quick";

pub fn check(tree: &Tree, args: &[String]) -> Result<(), Failure> {
    let quick = match args {
        [] => false,
        [option] if option == QUICK => true,
        _ => return Err(Failure::new(format!("usage: cargo dev check [{QUICK}]"))),
    };
    announce("formatting");
    run(&mut tree.cargo(&["fmt", "--all", "--check"]))?;
    announce("layering");
    layering(tree)?;
    announce("licences");
    licences::check(tree)?;
    if !quick {
        clippy(tree)?;
    }
    deny::check(tree)
}

fn clippy(tree: &Tree) -> Result<(), Failure> {
    announce("clippy");
    // The whole workspace has the features that tests need; what programs get has none.
    for parts in [&["--workspace", "--all-targets"][..], &["--package", "tombolo"]] {
        let clippy = [&["clippy", "--quiet"], parts, &["--", "--deny", "warnings"]].concat();
        run(&mut tree.cargo(&clippy))?;
    }
    Ok(())
}

/// Dependencies between crates, and between the back ends of the transports.
fn layering(tree: &Tree) -> Result<(), Failure> {
    let mut wrong = vec![];
    for (name, may_know) in MAY_KNOW {
        let manifest = read(&tree.path(name).join("Cargo.toml"))?;
        for known in dependencies(&manifest) {
            if !may_know.contains(&known.as_str()) {
                wrong.push(format!("{name}/Cargo.toml: {name} must not depend on {known}"));
            }
        }
    }
    let transports = tree.path("transports/src");
    let back_ends: Vec<String> = entries(&transports)?
        .into_iter()
        .filter(|path| path.is_dir())
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .filter(|name| name != SHARED)
        .collect();
    for back_end in back_ends.iter().map(String::as_str).chain([SHARED]) {
        for file in sources(&transports.join(back_end))? {
            let text = read(&file)?;
            for (line, other) in foreign_uses(&text, back_end, &back_ends) {
                let file = file.strip_prefix(tree.path("")).unwrap_or(&file).display();
                wrong.push(format!("{file}:{line}: {back_end} uses back end {other}"));
            }
        }
    }
    for file in sources(&tree.path("core/src"))? {
        for (line, back_end) in back_ends_named(&read(&file)?, &back_ends) {
            let file = file.strip_prefix(tree.path("")).unwrap_or(&file).display();
            wrong.push(format!("{file}:{line}: the core names back end {back_end}"));
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(format!("layering broken\n  {}", wrong.join("\n  ")))),
    }
}

/// Crates of this workspace among the dependencies of a manifest, of whatever kind.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut section = String::new();
    let mut found = vec![];
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = header.trim_matches(['[', ']']).to_owned();
            // [dependencies.name]
            if let Some((_, name)) = section.split_once("dependencies.") {
                found.push(name.to_owned());
            }
        } else if section.ends_with("dependencies")
            && let Some(end) = line.find(['.', '=', ' '])
        {
            found.push(line[..end].to_owned());
        }
    }
    found.retain(|name| name == "tombolo" || name.starts_with("tombolo-"));
    found
}

/// Lines of `text`, a source of `own`, whose paths lead into another back end.
fn foreign_uses(text: &str, own: &str, back_ends: &[String]) -> Vec<(usize, String)> {
    let mut found = vec![];
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        for other in back_ends.iter().filter(|other| *other != own) {
            let mut after =
                code.match_indices("crate::").map(|(at, path)| &code[at + path.len()..]);
            if after.any(|path| names(path, other)) {
                found.push((index + 1, other.clone()));
            }
        }
    }
    found
}

/// Lines of `text`, a source of the core, that name a back end or one of its variables; comments and
/// tests may.
fn back_ends_named(text: &str, back_ends: &[String]) -> Vec<(usize, String)> {
    // Also what the kernel calls the way in which SHMEM_STATIC has data copied.
    let others = back_ends.iter().filter(|name| *name != "cma");
    let names: Vec<(&String, [String; 3])> = others
        .map(|name| {
            let upper = name.to_uppercase();
            let as_text = format!("\"{name}\"");
            (name, [as_text, format!("SHMEM_{upper}_"), format!("TOMBOLO_{upper}")])
        })
        .collect();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let mut found = vec![];
    for (index, line) in code.lines().enumerate() {
        let line = line.split("//").next().unwrap_or("");
        let named = names.iter().find(|(_, forms)| forms.iter().any(|form| line.contains(form)));
        found.extend(named.map(|(name, _)| (index + 1, name.to_string())));
    }
    found
}

/// Whether `path` begins with the module `name`, also as one of several in braces.
fn names(path: &str, name: &str) -> bool {
    let first = |item: &str| {
        let item = item.trim();
        let end = item.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(item.len());
        item[..end] == *name
    };
    match path.strip_prefix('{') {
        Some(items) => items.split([',', '{']).any(first),
        None => first(path),
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let list = fs::read_dir(directory)
        .map_err(|error| Failure::new(format!("{}: {error}", directory.display())))?;
    Ok(list.flatten().map(|entry| entry.path()).collect())
}

/// All Rust sources below `directory`.
fn sources(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = vec![];
    for path in entries(directory)? {
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_found_in_every_form() {
        let manifest = "[package]\nname = \"tombolo\"\n[dependencies]\ntombolo-core.workspace = true\n\
            libc = \"1\"\ntombolo-a = { path = \"a\" }\n[dev-dependencies]\ntombolo = {}\n\
            [target.'cfg(unix)'.dependencies]\ntombolo-b.workspace = true\n[dependencies.tombolo-c]\n";
        let found = ["tombolo-core", "tombolo-a", "tombolo", "tombolo-b", "tombolo-c"];
        assert_eq!(dependencies(manifest), found);
    }

    #[test]
    fn a_core_that_names_a_back_end_is_found() {
        let back_ends = ["shm".to_owned(), "cma".to_owned()];
        let lines = |text: &str| back_ends_named(text, &back_ends).len();
        assert_eq!(lines("let name = \"shm\";\nlet x = \"SHMEM_SHM_SIZE\";"), 2);
        assert_eq!(
            lines("let how = \"cma\"; // \"shm\"\n/// \"shm,cma\"\nlet shm = \"shmem\";"),
            0
        );
        assert_eq!(lines("fn f() {}\n#[cfg(test)]\nmod tests {\n    \"shm\"\n}"), 0);
    }

    #[test]
    fn uses_of_another_back_end_are_found() {
        let back_ends = ["shm".to_owned(), "cma".to_owned()];
        let lines = |text: &str| foreign_uses(text, "shm", &back_ends).len();
        assert_eq!(lines("use crate::cma::Peer;\nlet x = crate::cma();"), 2);
        assert_eq!(lines("use crate::{shm::A, cma::B};"), 1);
        assert_eq!(lines("use crate::shm::Peer;\nuse crate::cmabc;\n// see crate::cma\n"), 0);
    }
}
