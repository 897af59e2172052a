// SPDX-License-Identifier: Apache-2.0
//! The samples in the README and in the guide.
//!
//! The word after the backquotes that begin a sample is its language, a second one the name of its file. A comment on the
//! line before, which readers do not see, tells what the sample does not:
//!
//! - `<!-- with: PARAMETERS -->`: a part of a C program is the body of a function that has these.
//! - `<!-- not run: REASON -->`: commands that need what tests do not have.

use super::crate_dir;
use std::fs;
use std::path::PathBuf;

/// What stands between two lines of backquotes.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Where it is, for people: `01-first-program.md, line 7`.
    pub place: String,
    /// The same as the name of a program: `01-first-program-7`.
    pub name: String,
    /// `c`, `rust`, `python`, `sh`, or a language of no program.
    pub language: String,
    /// The name of its file, where it has one.
    pub file: Option<String>,
    /// What the comment before it says.
    pub note: String,
    pub text: String,
}

impl Sample {
    /// What follows `kind` in the comment before it.
    pub fn note(&self, kind: &str) -> Option<&str> {
        self.note.strip_prefix(kind)
    }

    /// Whether it is a program, rather than a part of one.
    pub fn is_whole(&self) -> bool {
        self.text.contains("main(")
    }
}

/// All samples, those of the guide in the order of its chapters.
pub fn samples() -> Vec<Sample> {
    let root = crate_dir().parent().expect("the root of the repository");
    let entries = fs::read_dir(root.join("compat/man/guide")).expect("the guide is there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a chapter").path()).collect();
    files.push(root.join("README.md"));
    files.sort();
    let samples: Vec<Sample> = files.iter().flat_map(samples_of).collect();
    assert!(samples.iter().any(Sample::is_whole), "the guide begins with a program");
    samples
}

fn samples_of(path: &PathBuf) -> Vec<Sample> {
    let text = fs::read_to_string(path).expect("a readable chapter");
    let [file, stem] = [path.file_name(), path.file_stem()]
        .map(|name| name.expect("a file").to_string_lossy().into_owned());
    let lines: Vec<&str> = text.lines().collect();
    let mut found = vec![];
    let mut at = 0;
    while at < lines.len() {
        let Some(words) = lines[at].strip_prefix("```") else {
            at += 1;
            continue;
        };
        let len = lines[at + 1..].iter().position(|line| *line == "```").expect("samples end");
        let mut words = words.split(' ').map(str::to_owned);
        let before = at.checked_sub(1).map_or("", |before| lines[before]);
        let note = before.strip_prefix("<!-- ").and_then(|note| note.strip_suffix(" -->"));
        found.push(Sample {
            place: format!("{file}, line {}", at + 1),
            name: format!("{stem}-{}", at + 1),
            language: words.next().unwrap_or_default(),
            file: words.next(),
            note: note.unwrap_or_default().to_owned(),
            text: lines[at + 1..at + 1 + len].join("\n") + "\n",
        });
        at += len + 2;
    }
    found
}
