// SPDX-License-Identifier: Apache-2.0
//! The pages of `compat/man`, one per family of routines, and the routines they describe.
//!
//! A page is text in sections headed by `== NAME`. A line of its synopsis is a kind, if it is not the
//! plain one, and a prototype. `{RMA}` in a routine's name stands for the names of a type table of the
//! headers, `{32,64}` for what it lists, and `TYPE` for the C type that goes with the name.

use crate::steps::Failure;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Sections that every page has, in this order; `Arguments` only where there are some.
pub const SECTIONS: [&str; 9] = [
    "Synopsis",
    "Arguments",
    "Description",
    "On return",
    "Errors",
    "In Tombolo",
    "Example",
    "Output",
    "See also",
];

/// One page.
#[derive(Debug)]
pub struct Page {
    /// Name of the page: that of its first routine or of its family.
    pub name: String,
    /// What it is about, in a few words.
    pub brief: String,
    pub synopsis: Vec<Prototype>,
    /// Name and meaning.
    pub arguments: Vec<(String, String)>,
    sections: BTreeMap<String, String>,
}

/// A line of a synopsis.
#[derive(Debug, PartialEq)]
pub struct Prototype {
    pub kind: Kind,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// As it stands.
    Plain,
    /// With a second routine that has a context as its first argument.
    Context,
    /// C11 and C++: no routine of its own.
    Generic,
    Deprecated,
    DeprecatedGeneric,
    /// Not part of the standard.
    Extension,
}

impl Kind {
    fn is_generic(self) -> bool {
        matches!(self, Kind::Generic | Kind::DeprecatedGeneric)
    }
}

/// Type tables by name: names of types, and types.
pub type Tables = BTreeMap<String, Vec<(String, String)>>;

impl Page {
    pub fn parse(name: &str, text: &str) -> Result<Page, Failure> {
        let wrong = |what: &str| Failure::new(format!("compat/man/{name}.txt: {what}"));
        let mut parts = text.split("\n== ");
        let title = parts.next().unwrap_or_default();
        let (_, brief) = title.split_once(" - ").ok_or_else(|| wrong("no title"))?;
        let mut sections = BTreeMap::new();
        for part in parts {
            let (title, body) = part.split_once('\n').unwrap_or((part, ""));
            if !SECTIONS.contains(&title) {
                return Err(wrong(&format!("unknown section '{title}'")));
            }
            sections.insert(title.to_owned(), body.trim_end().to_owned());
        }
        let lines = |title: &str| -> Vec<String> {
            let body: &str = sections.get(title).map_or("", String::as_str);
            body.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
        };
        let synopsis = lines("Synopsis").iter().map(|line| Prototype::parse(line)).collect();
        let argument = |line: &String| {
            let (name, meaning) = line.split_once(": ").ok_or_else(|| wrong(line))?;
            Ok((name.to_owned(), meaning.to_owned()))
        };
        let arguments = lines("Arguments").iter().map(argument).collect::<Result<_, Failure>>()?;
        let (name, brief) = (name.to_owned(), brief.trim().to_owned());
        Ok(Page { name, brief, synopsis, arguments, sections })
    }

    /// The text of a section; empty if there is none.
    pub fn section(&self, title: &str) -> &str {
        self.sections.get(title).map_or("", String::as_str)
    }

    /// Names of the pages and routines to see also.
    pub fn see_also(&self) -> impl Iterator<Item = &str> {
        self.section("See also").split_whitespace()
    }

    /// Name and prototype of every routine it describes.
    pub fn routines(&self, tables: &Tables) -> Vec<(String, String)> {
        self.synopsis.iter().flat_map(|line| line.expand(tables)).collect()
    }

    /// Every name under which people look for the page: its own, those of its routines, and those of C11.
    pub fn names(&self, tables: &Tables) -> BTreeSet<String> {
        let generics = self.synopsis.iter().filter(|line| line.kind.is_generic());
        let generics = generics.map(|line| name_of(&line.text).to_owned());
        let routines = self.routines(tables).into_iter().map(|(name, _)| name);
        routines.chain(generics).chain([self.name.clone()]).collect()
    }

    /// The header to include.
    pub fn header(&self) -> &'static str {
        let extends = self.synopsis.iter().any(|line| line.kind == Kind::Extension);
        if extends { "shmemx.h" } else { "shmem.h" }
    }
}

impl Prototype {
    fn parse(line: &str) -> Prototype {
        let kinds = [
            ("ctx ", Kind::Context),
            ("generic ", Kind::Generic),
            ("deprecated generic ", Kind::DeprecatedGeneric),
            ("deprecated ", Kind::Deprecated),
            ("extension ", Kind::Extension),
        ];
        for (word, kind) in kinds {
            if let Some(text) = line.strip_prefix(word) {
                return Prototype { kind, text: text.to_owned() };
            }
        }
        Prototype { kind: Kind::Plain, text: line.to_owned() }
    }

    /// Every routine that the line stands for.
    pub fn expand(&self, tables: &Tables) -> Vec<(String, String)> {
        if self.kind.is_generic() {
            return vec![];
        }
        let texts = match self.text.split_once('{').and_then(|(before, rest)| {
            rest.split_once('}').map(|(choices, after)| (before, choices, after))
        }) {
            None => vec![self.text.clone()],
            Some((before, choices, after)) => {
                let pick = |(name, ty): &(String, String)| {
                    format!("{before}{name}{after}").replace("TYPE", ty)
                };
                choices_of(choices, tables).iter().map(pick).collect()
            }
        };
        let mut all = vec![];
        for text in texts {
            if self.kind == Kind::Context {
                all.push(with_context(&text));
            }
            all.push(text);
        }
        all.into_iter().map(|text| (name_of(&text).to_owned(), text + ";")).collect()
    }

    /// The line as people read it: with the family of names in capitals.
    pub fn shown(&self) -> String {
        let Some((before, rest)) = self.text.split_once('{') else { return self.text.clone() };
        let (choices, after) = rest.split_once('}').unwrap_or((rest, ""));
        let stands = if choices == "SIZE" || choices.starts_with(|c: char| c.is_ascii_digit()) {
            "SIZE"
        } else {
            "TYPENAME"
        };
        format!("{before}{stands}{after}")
    }

    /// What the placeholder of the line stands for, in words.
    pub fn choices(&self, tables: &Tables) -> Option<String> {
        let (_, rest) = self.text.split_once('{')?;
        let names = choices_of(rest.split_once('}')?.0, tables);
        Some(names.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", "))
    }

    /// Names of the arguments.
    #[cfg(test)]
    pub fn arguments(&self) -> Vec<String> {
        let (_, rest) = self.text.split_once('(').expect("a prototype has arguments");
        let list = rest.trim_end_matches(')').replace(['[', ']'], "");
        let words = list.split(',').map(|argument| {
            let name = argument.trim().rsplit([' ', '*']).next().unwrap_or_default();
            name.to_owned()
        });
        let mut names: Vec<String> =
            words.filter(|name| !matches!(name.as_str(), "void" | "..." | "")).collect();
        if self.kind == Kind::Context {
            names.insert(0, "ctx".to_owned());
        }
        names
    }
}

fn choices_of(choices: &str, tables: &Tables) -> Vec<(String, String)> {
    if let Some(table) = tables.get(choices) {
        return table.clone();
    }
    let choice = |choice: &str| {
        let (name, ty) = choice.split_once('=').unwrap_or((choice, ""));
        (name.to_owned(), ty.to_owned())
    };
    choices.split(',').map(choice).collect()
}

fn with_context(text: &str) -> String {
    let text = text.replacen("shmem_", "shmem_ctx_", 1);
    match text.contains("(void)") {
        true => text.replacen("(void)", "(shmem_ctx_t ctx)", 1),
        false => text.replacen('(', "(shmem_ctx_t ctx, ", 1),
    }
}

/// The name that a prototype declares.
fn name_of(text: &str) -> &str {
    let before = text.split('(').next().unwrap_or_default();
    before.rsplit([' ', '*']).next().unwrap_or_default()
}

/// All pages, by name.
pub fn pages(folder: &Path) -> Result<Vec<Page>, Failure> {
    let place = |error: std::io::Error| Failure::new(format!("{}: {error}", folder.display()));
    let mut found = vec![];
    for entry in fs::read_dir(folder).map_err(place)?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            found.push(Page::parse(name, &fs::read_to_string(&path).map_err(place)?)?);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The type tables of the header `tombolo/types.h`.
pub fn tables(header: &str) -> Tables {
    let mut tables = Tables::new();
    let joined = header.replace("\\\n", " ");
    for line in joined.lines() {
        let Some(rest) = line.strip_prefix("#define TOMBOLO_") else { continue };
        let Some((name, body)) = rest.split_once("_TYPES(X)") else { continue };
        let mut rows = vec![];
        for item in body.split(')').map(str::trim).filter(|item| !item.is_empty()) {
            if let Some(row) = item.strip_prefix("X(") {
                let (name, ty) = row.split_once(", ").unwrap_or((row, row));
                rows.push((name.to_owned(), c_type(ty)));
            } else if let Some(other) =
                item.strip_prefix("TOMBOLO_").and_then(|item| item.strip_suffix("_TYPES(X"))
            {
                rows.extend(tables.get(other).cloned().unwrap_or_default());
            }
        }
        tables.insert(name.to_owned(), rows);
    }
    // Tables may name others that follow them.
    let complex = tables.get("COMPLEX").cloned().unwrap_or_default();
    if let Some(rows) = tables.get_mut("ARITH_REDUCE") {
        rows.extend(complex);
    }
    let sizes = ["8", "16", "32", "64", "128"].map(|size| (size.to_owned(), String::new()));
    tables.insert("SIZE".to_owned(), sizes.into());
    tables
}

fn c_type(name: &str) -> String {
    name.replace("tombolo_complexd", "double _Complex")
        .replace("tombolo_complexf", "float _Complex")
}
