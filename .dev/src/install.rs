// SPDX-License-Identifier: Apache-2.0
//! `cargo dev install`: the library, its headers, tools and manual pages in a directory.

use crate::Tree;
use crate::docs;
use crate::licences;
use crate::steps::{Failure, announce, output};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Programs whose options shells complete.
const COMPLETED: [&str; 8] =
    ["oshrun", "oshinfo", "oshperf", "oshivshmem", "oshcc", "oshc++", "oshCC", "oshcxx"];
/// Shells, where they look, and what they put before and after a program's name.
const SHELLS: [(&str, &str, &str, &str); 3] = [
    ("bash", "share/bash-completion/completions", "", ""),
    ("zsh", "share/zsh/site-functions", "_", ""),
    ("fish", "share/fish/vendor_completions.d", "", ".fish"),
];
/// The licence of Tombolo, which goes with every copy of it.
pub const LICENCE: &str = "share/doc/tombolo/LICENSE";
/// Licences of what the library contains of others.
pub const LICENCES: &str = "share/doc/tombolo/THIRD-PARTY.txt";
const TOOLS: [&str; 5] = ["oshrun", "oshcc", "oshinfo", "oshivshmem", "oshperf"];
/// Other names: of the C++ compiler wrapper, and of the library that other software looks for.
const LINKS: [(&str, &str); 8] = [
    ("bin/oshc++", "oshcc"),
    ("bin/oshCC", "oshcc"),
    ("bin/oshcxx", "oshcc"),
    ("lib/libtombolo.so", "libtombolo.so.0"),
    ("lib/libsma.so", "libtombolo.so"),
    ("lib/liboshmem.so", "libtombolo.so"),
    ("lib/libsma.a", "libtombolo.a"),
    ("lib/liboshmem.a", "libtombolo.a"),
];

pub fn command(tree: &Tree, args: &[String]) -> Result<(), Failure> {
    let prefix = match args {
        [option, prefix] if option == "--prefix" => prefix.as_str(),
        [option] if option.starts_with("--prefix=") => &option["--prefix=".len()..],
        _ => return Err(Failure::new("usage: cargo dev install --prefix DIR")),
    };
    let prefix = std::path::absolute(prefix)
        .map_err(|error| Failure::new(format!("--prefix {prefix}: {error}")))?;
    install(tree, &prefix)?;
    println!(
        "Installed in {0}. Compile with {0}/bin/oshcc, run with {0}/bin/oshrun.",
        prefix.display()
    );
    Ok(())
}

/// Builds and installs; safe to repeat while programs run that use the installation.
pub fn install(tree: &Tree, prefix: &Path) -> Result<(), Failure> {
    let place = |error: std::io::Error| Failure::new(format!("{}: {error}", prefix.display()));
    // A place that cannot be written to is told of before the build, which takes minutes.
    let probe = prefix.join("bin/.probe");
    put(&probe, |new| fs::write(new, "")).and_then(|()| fs::remove_file(&probe)).map_err(place)?;
    announce("building the library and its tools");
    let messages = output(&mut release_build(tree))?;
    announce(&format!("installing in {}", prefix.display()));
    let put_in_place = |name: &str, relative: &str| {
        let from = built(&messages, name)
            .ok_or_else(|| Failure::new(format!("cargo does not tell where {name} is")))?;
        let to = prefix.join(relative);
        copy(&from, &to).map_err(|error| Failure::new(format!("{}: {error}", to.display())))
    };
    for tool in TOOLS {
        put_in_place(tool, &format!("bin/{tool}"))?;
    }
    let library = format!("lib/libtombolo.so.{VERSION}");
    put_in_place("libtombolo.so", &library)?;
    put_in_place("libtombolo.a", "lib/libtombolo.a")?;
    link(&prefix.join("lib/libtombolo.so.0"), &library["lib/".len()..]).map_err(place)?;
    for (name, target) in LINKS {
        link(&prefix.join(name), target).map_err(place)?;
    }
    copy_tree(&tree.path("compat/include"), &prefix.join("include"), None).map_err(place)?;
    let examples = prefix.join("share/tombolo/examples");
    copy_tree(&tree.path("compat/examples"), &examples, None).map_err(place)?;
    share(tree, prefix)?;
    descriptions(tree, prefix, &OF_ITS_OWN)?;
    copy(&tree.path("LICENSE"), &prefix.join(LICENCE)).map_err(place)?;
    let terms = licences::texts(tree)?;
    put(&prefix.join(LICENCES), |new| fs::write(new, &terms))
        .map_err(|error| Failure::new(format!("{LICENCES}: {error}")))?;
    docs::manual(tree, &prefix.join("share/man/man3"))?;
    docs::site(tree, &prefix.join("share/doc/tombolo"))?;
    completions(prefix)
}

/// What has shells complete options, as the programs themselves define them.
fn completions(prefix: &Path) -> Result<(), Failure> {
    for (shell, folder, before, after) in SHELLS {
        for program in COMPLETED {
            let mut ask = Command::new(prefix.join("bin").join(program));
            let text = output(ask.args(["--completions", shell]))?;
            let file = prefix.join(folder).join(format!("{before}{program}{after}"));
            put(&file, |new| fs::write(new, &text))
                .map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
        }
    }
    Ok(())
}

/// Version of the tools, with the commit they are built from if that is known.
fn version(tree: &Tree) -> String {
    let mut describe = Command::new("git");
    describe.arg("-C").arg(tree.path("")).args(["describe", "--always", "--exclude", "*"]);
    describe.args(["--abbrev=12", "--dirty=, changed"]).stderr(Stdio::null());
    match output(&mut describe) {
        Ok(commit) => format!("{VERSION} (Tombolo, OpenSHMEM 1.6, commit {})", commit.trim()),
        Err(_) => format!("{VERSION} (Tombolo, OpenSHMEM 1.6)"),
    }
}

/// Where cargo has put the file `name`, by its messages. What is built for a target that the user has set lies in a
/// folder of that target.
fn built(messages: &str, name: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let files = messages.filter_map(|message| message["filenames"].as_array().cloned());
    let mut paths = files.flatten().filter_map(|file| file.as_str().map(PathBuf::from));
    paths.find(|path| path.file_name().is_some_and(|last| last == name))
}

/// The build of what is installed. It prints cargo's messages as JSON.
///
/// Functions begin at cache lines. The folders of this machine are cut off from the names of source files that error
/// messages and line tables hold: these say nothing to others, and tell who built the library.
fn release_build(tree: &Tree) -> Command {
    let home = |variable: &str, below: &str| {
        let default = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(below);
        std::env::var_os(variable).map_or_else(default, PathBuf::from)
    };
    let folders = [
        (tree.path(""), "tombolo"),
        (home("RUSTUP_HOME", ".rustup"), "rustup"),
        (home("CARGO_HOME", ".cargo").join("registry/src"), "crates"),
    ];
    // A short function that crosses from one cache line into the next takes a cycle more, which is a tenth of a
    // put of a word. So what an operation takes does not depend on how long the functions before it are.
    const AT_CACHE_LINES: &str = "-Cllvm-args=-align-all-functions=6";
    let flags = folders.map(|(folder, name)| {
        let folder = folder.display().to_string();
        format!("--remap-path-prefix={}={name}", folder.trim_end_matches('/'))
    });
    let flags: Vec<String> = flags.into_iter().chain([AT_CACHE_LINES.to_owned()]).collect();
    // Variables take the place of what configuration files say; these are added to.
    const ENCODED: &str = "CARGO_ENCODED_RUSTFLAGS";
    // One build, so that the library of the tools is the installed one.
    let mut build = tree.cargo(&["build", "--release", "--lib"]);
    build.args(licences::INSTALLED).args(TOOLS.iter().flat_map(|tool| ["--bin", tool]));
    build.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    build.env("TOMBOLO_VERSION", version(tree));
    // CI compiles with clippy, which looks at the same sources when tests are compiled.
    build.env_remove("RUSTC_WORKSPACE_WRAPPER");
    match (std::env::var(ENCODED), std::env::var("RUSTFLAGS")) {
        (Ok(own), _) => build.env(ENCODED, format!("{own}\x1f{}", flags.join("\x1f"))),
        (_, Ok(own)) => {
            let own: Vec<&str> = own.split_whitespace().collect();
            build.env(
                ENCODED,
                [own, flags.iter().map(String::as_str).collect()].concat().join("\x1f"),
            )
        }
        _ => build.arg("--config").arg(format!("build.rustflags={flags:?}")),
    };
    build
}

/// Where an installation has headers and libraries, below its root.
pub struct Layout {
    pub include: &'static str,
    pub lib: &'static str,
    /// Whether programs must be told where the library is.
    pub told: bool,
    /// Name of the launcher.
    pub oshrun: &'static str,
}

/// One directory for everything.
const OF_ITS_OWN: Layout = Layout { include: "include", lib: "lib", told: true, oshrun: "oshrun" };

/// Descriptions of the library for pkg-config and CMake.
pub fn descriptions(tree: &Tree, root: &Path, layout: &Layout) -> Result<(), Failure> {
    let up = |more: usize| vec![".."; layout.lib.split('/').count() + more].join("/");
    let rpath = if layout.told { " -Wl,-rpath,${libdir}" } else { "" };
    for (from, to, up) in [("pkgconfig", "pkgconfig", up(1)), ("cmake", "cmake/Tombolo", up(2))] {
        let fill = |text: String| {
            let text = text.replace("@VERSION@", VERSION).replace("@UP@", &up);
            let text = text.replace("@INCLUDE@", layout.include).replace("@LIB@", layout.lib);
            text.replace("@OSHRUN@", layout.oshrun).replace(" @RPATH@", rpath)
        };
        let to = root.join(layout.lib).join(to);
        copy_tree(&tree.path("compat/share").join(from), &to, Some(&fill))
            .map_err(|error| Failure::new(format!("installing {from}: {error}")))?;
    }
    Ok(())
}

/// Manual pages of the tools, with the version and the variables filled in.
fn share(tree: &Tree, prefix: &Path) -> Result<(), Failure> {
    let variables = output(Command::new(prefix.join("bin/oshinfo")).arg("--man-environment"))?;
    let share = tree.path("compat/share");
    let ends = fs::read_to_string(share.join("ends.tsv"))
        .map_err(|error| Failure::new(format!("ends.tsv: {error}")))?;
    let ends = ends_for_manual(&ends);
    let fill = |text: String| {
        let text = text.replace("@VERSION@", VERSION).replace("@ENVIRONMENT@\n", &variables);
        text.replace("@ENDS@\n", &ends)
    };
    let place = |error| Failure::new(format!("installing manual pages: {error}"));
    let to = prefix.join("share/man");
    copy_tree(&share.join("man"), &to, Some(&fill)).map_err(place)?;
    for (name, of) in LINKS {
        let Some(name) = name.strip_prefix("bin/") else { continue };
        let page = to.join("man1").join(format!("{name}.1"));
        put(&page, |new| fs::write(new, docs::page_of(1, of))).map_err(place)?;
    }
    Ok(())
}

/// The table of how jobs end, as a list in the language of manual pages.
fn ends_for_manual(table: &str) -> String {
    let escape = |text: &str| text.replace('-', "\\-").replace('.', "\\&.");
    // On the line of a macro, a word such as "An" is a macro itself.
    let word = |word: &str| match word.as_bytes() {
        [first, second, ..] if word.len() < 4 && first.is_ascii_uppercase() => {
            let sign = if second.is_ascii_lowercase() { "\\&" } else { "" };
            format!("{sign}{word}")
        }
        _ => word.to_owned(),
    };
    let item = |text: &str| escape(text).split(' ').map(word).collect::<Vec<_>>().join(" ");
    let mut page = String::from(".Bl -tag -width Ds\n");
    for row in table.lines().filter(|line| !line.starts_with('#')) {
        let [_, what, code, message, going_on] = row.split('\t').collect::<Vec<_>>()[..] else {
            continue;
        };
        page.push_str(&format!(".It {}\nExit code: {}.\n", item(what), escape(code)));
        let mut quote = |intro: &str, message: &str| {
            page.push_str(&format!(
                "{intro}.Bd -ragged -offset indent\n{}\n.Ed\n",
                escape(message)
            ));
        };
        if message != "-" {
            quote("", message);
        }
        if going_on != "-" && going_on != message {
            quote("Where PEs go on:\n", going_on);
        }
    }
    page + ".El\n"
}

/// Copies a directory; `fill` changes the text of each file on its way.
pub fn copy_tree(
    from: &Path,
    to: &Path,
    fill: Option<&dyn Fn(String) -> String>,
) -> std::io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        match fill {
            _ if entry.file_type()?.is_dir() => copy_tree(&source, &target, fill)?,
            Some(fill) => put(&target, |new| fs::write(new, fill(fs::read_to_string(&source)?)))?,
            None => copy(&source, &target)?,
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let named = |error: std::io::Error| {
        std::io::Error::new(error.kind(), format!("{}: {error}", from.display()))
    };
    put(to, |new| fs::copy(from, new).map(drop).map_err(named))
}

fn link(name: &Path, target: &str) -> std::io::Result<()> {
    put(name, |new| symlink(target, new))
}

/// Makes a file under a passing name and moves it into place: a program that has the old file
/// mapped keeps it.
pub fn put(path: &Path, make: impl FnOnce(&Path) -> std::io::Result<()>) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new: PathBuf = directory.join(format!(".{name}.{}", std::process::id()));
    let made = make(&new).and_then(|()| fs::rename(&new, path));
    if made.is_err() {
        // What is left is only a passing name; the first error is the one to tell.
        let _ = fs::remove_file(&new);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_where_cargo_tells() {
        let messages = r#"{"filenames":["/t/x86/release/libtombolo.so","/t/x86/release/libtombolo.a"]}
            {"target":{"name":"oshrun"},"filenames":["/t/x86/release/oshrun"]}"#;
        let place = |name| built(messages, name).map(|path| path.display().to_string());
        assert_eq!(place("libtombolo.a"), Some("/t/x86/release/libtombolo.a".into()));
        assert_eq!(place("oshrun"), Some("/t/x86/release/oshrun".into()));
        assert_eq!(place("oshcc"), None);
    }

    #[test]
    fn rows_of_the_table_become_items() {
        let page =
            ends_for_manual("# what\nk\tA PE ends\t1\toshrun: a-b.\t-\nl\tAll end\t0\t-\t-\n");
        let item =
            ".It A PE ends\nExit code: 1.\n.Bd -ragged -offset indent\noshrun: a\\-b\\&.\n.Ed\n";
        let list = format!("{item}.It \\&All end\nExit code: 0.\n");
        assert_eq!(page, format!(".Bl -tag -width Ds\n{list}.El\n"));
    }
}
