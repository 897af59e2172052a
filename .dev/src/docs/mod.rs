// SPDX-License-Identifier: Apache-2.0
//! `cargo dev docs`: manual pages and a reference site from the pages in `compat/man`.

mod html;
mod man;
mod page;

use crate::Tree;
use crate::steps::{Failure, announce};
use html::Chapter;
use page::{Page, Tables};
use std::fs;
use std::path::Path;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub fn docs(tree: &Tree) -> Result<(), Failure> {
    let folder = tree.target("docs");
    site(tree, &folder)?;
    announce(&format!(
        "the guide and the reference are in {}",
        folder.join("index.html").display()
    ));
    Ok(())
}

/// Writes the site: it needs nothing but a browser.
pub fn site(tree: &Tree, folder: &Path) -> Result<(), Failure> {
    let (pages, tables) = source(tree)?;
    write_all(folder, html::site(&pages, &chapters(tree)?, &tables, VERSION))
}

/// A manual page that is another name of a page of the same section.
pub fn page_of(section: u8, other: &str) -> String {
    man::link(section, other)
}

/// Writes the manual pages, and a link for every other name under which people look for one.
pub fn manual(tree: &Tree, folder: &Path) -> Result<(), Failure> {
    let (pages, tables) = source(tree)?;
    let mut files = vec![];
    for page in &pages {
        files.push((format!("{}.3", page.name), man::render(page, &tables, VERSION)));
        for name in page.names(&tables).iter().filter(|name| **name != page.name) {
            files.push((format!("{name}.3"), man::link(3, &page.name)));
        }
    }
    write_all(folder, files)
}

fn source(tree: &Tree) -> Result<(Vec<Page>, Tables), Failure> {
    let header = tree.path("compat/include/tombolo/types.h");
    let text = fs::read_to_string(&header)
        .map_err(|error| Failure::new(format!("{}: {error}", header.display())))?;
    Ok((page::pages(&tree.path("compat/man"))?, page::tables(&text)))
}

/// The chapters of the guide, in the order of their numbers.
fn chapters(tree: &Tree) -> Result<Vec<Chapter>, Failure> {
    let folder = tree.path("compat/man/guide");
    let place = |error: std::io::Error| Failure::new(format!("{}: {error}", folder.display()));
    let mut found = vec![];
    for entry in fs::read_dir(&folder).map_err(place)?.flatten() {
        let name = entry.path().file_stem().and_then(|s| s.to_str()).unwrap_or_default().to_owned();
        found.push(Chapter { name, text: fs::read_to_string(entry.path()).map_err(place)? });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn write_all(folder: &Path, files: Vec<html::File>) -> Result<(), Failure> {
    let place = |error: std::io::Error| Failure::new(format!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(place)?;
    for (name, text) in files {
        fs::write(folder.join(name), text).map_err(place)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use page::Kind;
    use std::collections::{BTreeMap, BTreeSet};

    fn list() -> BTreeMap<String, String> {
        let tree = Tree::find();
        let text = fs::read_to_string(tree.path("tests/data/openshmem-1.6-c-prototypes.tsv"));
        let text = text.expect("the standard's routines");
        let rows = text.lines().filter(|line| !line.starts_with('#'));
        let row = |line: &str| {
            let mut columns = line.split('\t').map(str::to_owned);
            let name = columns.next().expect("a name");
            (name, columns.nth(1).expect("a prototype"))
        };
        rows.map(row).collect()
    }

    #[test]
    fn every_routine_is_on_one_page_with_its_prototype() {
        let (pages, tables) = source(&Tree::find()).expect("pages");
        let mut on_pages = BTreeMap::new();
        for page in &pages {
            for (name, prototype) in page.routines(&tables) {
                let before = on_pages.insert(name.clone(), prototype);
                assert!(
                    before.is_none(),
                    "{name} is described twice, the second time in {}",
                    page.name
                );
            }
        }
        on_pages.retain(|name, _| !name.starts_with("shmemx_"));
        let list = list();
        let missing: Vec<_> = list.keys().filter(|name| !on_pages.contains_key(*name)).collect();
        assert!(missing.is_empty(), "without a page: {missing:?}");
        for (name, prototype) in &on_pages {
            assert_eq!(list.get(name), Some(prototype), "{name}");
        }
    }

    #[test]
    fn every_generic_form_is_on_one_page_as_the_standard_declares_it() {
        let tree = Tree::find();
        let text = fs::read_to_string(tree.path("tests/data/openshmem-1.6-c11-generics.tsv"));
        let text = text.expect("the standard's generic forms");
        let mut wanted = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let [name, state, prototype] = line.splitn(4, '\t').collect::<Vec<_>>()[..3] else {
                panic!("{line}");
            };
            let prototype = prototype.trim_end_matches(';');
            let plain = prototype.replace("shmem_ctx_t ctx, ", "");
            // Of the two forms of a routine, the one with a context has both names in one line.
            let shown = match prototype == plain {
                true => plain,
                false => plain.replacen('(', "([shmem_ctx_t ctx,] ", 1),
            };
            if line.contains("TYPE") {
                wanted.insert(name, (state == "deprecated", shown));
            }
        }
        let (pages, tables) = source(&tree).expect("pages");
        let mut found = BTreeMap::new();
        for page in &pages {
            let generic = |kind| matches!(kind, Kind::Generic | Kind::DeprecatedGeneric);
            for line in page.synopsis.iter().filter(|line| generic(line.kind)) {
                let name = line.text.split('(').next().and_then(|text| text.rsplit(' ').next());
                let name = name.expect("a name");
                assert!(page.names(&tables).contains(name), "{name} does not lead to its page");
                let old = line.kind == Kind::DeprecatedGeneric;
                found.insert(name, (old, line.text.clone()));
            }
        }
        found.retain(|name, _| *name != "shmem_sync");
        assert_eq!(found, wanted);
    }

    #[test]
    fn pages_are_complete_and_name_their_arguments() {
        let (pages, _) = source(&Tree::find()).expect("pages");
        for page in &pages {
            for title in page::SECTIONS.iter().filter(|title| **title != "Arguments") {
                assert!(!page.section(title).is_empty(), "{}: no section {title}", page.name);
            }
            let used: BTreeSet<String> =
                page.synopsis.iter().flat_map(page::Prototype::arguments).collect();
            let explained: BTreeSet<String> =
                page.arguments.iter().map(|(name, _)| name.clone()).collect();
            assert_eq!(used, explained, "{}", page.name);
        }
    }

    #[test]
    fn no_link_is_dead() {
        let tree = Tree::find();
        let (pages, tables) = source(&tree).expect("pages");
        let files = html::site(&pages, &chapters(&tree).expect("chapters"), &tables, VERSION);
        let names: BTreeSet<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        for (file, text) in &files {
            for target in text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
                assert!(names.contains(target), "{file} links to {target}");
            }
        }
        let known: BTreeSet<&str> = pages.iter().map(|page| page.name.as_str()).collect();
        for page in &pages {
            for other in page.see_also() {
                assert!(known.contains(other), "{} refers to {other}, which is no page", page.name);
            }
        }
    }

    #[test]
    fn manual_pages_hold_no_stray_macros() {
        let (pages, tables) = source(&Tree::find()).expect("pages");
        for page in &pages {
            for line in man::render(page, &tables, VERSION).lines() {
                let macros = [
                    "Dd", "Dt", "Os", "Sh", "Nm", "Nd", "In", "Pp", "Bd", "Ed", "Bl", "It", "El",
                    "Xr",
                ];
                if let Some(rest) = line.strip_prefix('.') {
                    assert!(
                        macros.iter().any(|name| rest.starts_with(name)),
                        "{}: {line}",
                        page.name
                    );
                }
            }
        }
    }
}
