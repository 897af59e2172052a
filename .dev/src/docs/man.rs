// SPDX-License-Identifier: Apache-2.0
//! Pages as manual pages, in mdoc.

use super::page::{Kind, Page, Tables};

/// The page in mdoc; `version` goes to its foot.
pub fn render(page: &Page, tables: &Tables, version: &str) -> String {
    let mut text = format!(
        ".Dd November 22, 2026\n.Dt {} 3\n.Os \"Tombolo {version}\"\n.Sh NAME\n.Nm {}\n.Nd {}\n",
        page.name.to_uppercase(),
        page.name,
        roff(&page.brief)
    );
    text += &format!(".Sh SYNOPSIS\n.In {}\n", page.header());
    for (kind, heading) in [
        (Kind::Plain, ""),
        (Kind::Context, "Each also as shmem_ctx_..., with the argument shmem_ctx_t ctx first:"),
        (Kind::Extension, ""),
        (Kind::Generic, "In C11 and C++, for all these types:"),
        (Kind::Deprecated, "Deprecated:"),
        (Kind::DeprecatedGeneric, "Deprecated, in C11 and C++, for all these types:"),
    ] {
        let lines: Vec<_> = page.synopsis.iter().filter(|line| line.kind == kind).collect();
        if lines.is_empty() {
            continue;
        }
        if !heading.is_empty() {
            text += &format!(".Pp\n{heading}\n");
        }
        text += ".Bd -literal -compact\n";
        lines.iter().for_each(|line| text += &format!("{};\n", literal(&line.shown())));
        text += ".Ed\n";
    }
    for (names, choices) in families(page, tables) {
        text += &format!(".Pp\nTYPENAME in {}: {}.\n", roff(&names), roff(&choices));
    }
    if !page.arguments.is_empty() {
        text += ".Sh ARGUMENTS\n.Bl -tag -width Ds\n";
        for (name, meaning) in &page.arguments {
            text += &format!(".It Fa {name}\n{}\n", roff(meaning));
        }
        text += ".El\n";
    }
    for title in ["Description", "On return", "Errors", "In Tombolo"] {
        text += &format!(".Sh {}\n", title.to_uppercase());
        let paragraphs: Vec<String> = page.section(title).split("\n\n").map(roff).collect();
        text += &(paragraphs.join("\n.Pp\n") + "\n");
    }
    text += ".Sh EXAMPLE\n.Bd -literal -offset indent\n";
    page.section("Example").lines().for_each(|line| text += &(literal(line) + "\n"));
    text += ".Ed\n.Pp\nOn 2 PEs it prints\n.Bd -literal -offset indent\n";
    page.section("Output").lines().for_each(|line| text += &(literal(line) + "\n"));
    text += ".Ed\n.Sh SEE ALSO\n";
    let see = page.see_also().chain(["intro_shmem"]).map(|name| format!(".Xr {name} 3"));
    text += &(see.collect::<Vec<_>>().join(" ,\n") + "\n");
    if page.header() == "shmem.h" {
        text += ".Sh STANDARDS\nOpenSHMEM Application Programming Interface, version 1.6.\n";
    }
    text
}

/// The names that stand for different types on a page, with these types.
pub fn families(page: &Page, tables: &Tables) -> Vec<(String, String)> {
    let mut families: Vec<(String, String)> = vec![];
    for line in page.synopsis.iter().filter(|line| line.shown().contains("TYPENAME")) {
        let Some(choices) = line.choices(tables) else { continue };
        let shown = line.shown();
        let name = shown.split('(').next().and_then(|text| text.rsplit([' ', '*']).next());
        let name = name.unwrap_or_default().to_owned();
        match families.iter_mut().find(|(_, known)| *known == choices) {
            Some((names, _)) if names.split(", ").any(|known| known == name) => {}
            Some((names, _)) => *names += &format!(", {name}"),
            None => families.push((name, choices)),
        }
    }
    families
}

/// The page of a name that another page describes.
pub fn link(section: u8, page: &str) -> String {
    format!(".so man{section}/{page}.{section}\n")
}

/// Running text: nothing in it is a macro or an escape.
fn roff(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    guarded(&words.join(" ").replace('\\', "\\e").replace('^', "\\(ha"))
}

/// A line of a program.
fn literal(line: &str) -> String {
    guarded(&line.replace('\\', "\\e").replace('^', "\\(ha").replace('-', "\\-"))
}

fn guarded(text: &str) -> String {
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text.to_owned() }
}
