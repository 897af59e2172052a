// SPDX-License-Identifier: Apache-2.0
//! Debian packages, made of an installation by the tools of `dpkg`.

use super::scripts::{Shared, named, page, program};
use super::{VERSION, remove};
use crate::Tree;
use crate::install::{LICENCE, LICENCES, Layout, copy_tree, descriptions};
use crate::steps::{Failure, announce, output, run};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian has libraries; the other names of ours, which other packages have too, are in a
/// folder of their own.
const LAYOUT: Layout = Layout {
    include: "include/tombolo",
    lib: match cfg!(target_arch = "aarch64") {
        true => "lib/aarch64-linux-gnu",
        false => "lib/x86_64-linux-gnu",
    },
    told: false,
    oshrun: "oshrun.tombolo",
};
/// Where packages are put together, below the folder that they are written to.
pub const STAGES: &str = "debian";
const OTHER_NAMES: [&str; 4] = ["libsma.so", "liboshmem.so", "libsma.a", "liboshmem.a"];

/// Without another place to write to.
const MAINTAINER: &str = "The developers of Tombolo <tombolo@packages.debian.org>";

struct Package {
    name: &'static str,
    section: &'static str,
    multi_arch: Option<&'static str>,
    depends: &'static [&'static str],
    recommends: &'static str,
    suggests: &'static str,
    summary: &'static str,
    description: &'static str,
    /// What it has under names that other packages have as well.
    shared: Option<Shared>,
    /// Copies its files from the installation to a folder.
    fill: fn(&Build, &Path) -> Result<(), Failure>,
}

/// All of them. `@VERSION@` is the version of this one.
const PACKAGES: [Package; 3] = [
    Package {
        name: "libtombolo0",
        section: "libs",
        multi_arch: Some("same"),
        depends: &[],
        recommends: "",
        suggests: "libfabric1, libibverbs1, ibverbs-providers",
        summary: "OpenSHMEM 1.6 with measured routing - shared library",
        description: "The library that OpenSHMEM programs compiled with oshcc are linked to.",
        shared: None,
        fill: library,
    },
    Package {
        name: "libtombolo-dev",
        section: "libdevel",
        multi_arch: None,
        depends: &["libtombolo0 (= @VERSION@)", "gcc | c-compiler", "libc6-dev | libc-dev"],
        recommends: "tombolo-tools",
        suggests: "g++, cmake, pkg-config",
        summary: "OpenSHMEM 1.6 with measured routing - headers and compiler wrappers",
        description: "Headers, the static library, the compiler wrappers oshcc and oshc++, a manual\n \
            page for every routine, a guide as HTML, and examples.",
        shared: Some(Shared { names: &["oshcc", "oshc++", "oshCC", "oshcxx"] }),
        fill: development,
    },
    Package {
        name: "tombolo-tools",
        section: "utils",
        multi_arch: None,
        depends: &[],
        recommends: "libtombolo0",
        suggests: "libfabric1, libibverbs1, ibverbs-providers, openssh-client",
        summary: "OpenSHMEM 1.6 with measured routing - launcher and tools",
        description: "The launcher oshrun, which starts programs on one or several machines; oshinfo,\n \
            which tells about settings, transports and routes; oshperf, which compares the\n \
            ways between processes; and oshivshmem, which links virtual machines.",
        shared: Some(Shared { names: &["oshrun"] }),
        fill: tools,
    },
];

/// What all packages are made of and for.
struct Build<'a> {
    tree: &'a Tree,
    /// The installation.
    root: &'a Path,
    /// Where packages are put together, and where they go.
    work: PathBuf,
    folder: &'a Path,
    version: String,
    architecture: String,
    moment: u64,
}

/// Gives the packages.
pub fn packages(
    tree: &Tree,
    root: &Path,
    folder: &Path,
    moment: u64,
) -> Result<Vec<PathBuf>, Failure> {
    let architecture = output(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned();
    let (work, version) = (folder.join(STAGES), format!("{VERSION}-1"));
    let build = Build { tree, root, work, folder, version, architecture, moment };
    PACKAGES.iter().try_for_each(|package| build.make(package))?;
    remove(&build.work)?;
    let entries = fs::read_dir(folder).map_err(at(folder))?.flatten().map(|entry| entry.path());
    Ok(entries.filter(|path| path.extension().is_some_and(|end| end == "deb")).collect())
}

impl Build<'_> {
    fn make(&self, package: &Package) -> Result<(), Failure> {
        let Package { name, section, .. } = package;
        let stage = self.work.join(name);
        (package.fill)(self, &stage)?;
        if let Some(shared) = &package.shared {
            for (script, text) in [
                ("preinst", shared.before_installation(name)),
                ("postinst", shared.after_installation()),
                ("prerm", shared.before_removal()),
                ("postrm", shared.after_removal(name)),
                ("triggers", shared.triggers()),
            ] {
                write(&stage.join("DEBIAN").join(script), &text)?;
            }
        }
        let symbols = self.take_symbols(&stage, name)?;
        let mut depends = self.needed(&stage)?;
        depends.extend(package.depends.iter().map(|d| d.replace("@VERSION@", &self.version)));
        let mut control = self.head(name, section);
        for (field, text) in [
            ("Multi-Arch", package.multi_arch.unwrap_or_default()),
            ("Depends", &depends.join(", ")),
            ("Recommends", package.recommends),
            ("Suggests", package.suggests),
        ] {
            if !text.is_empty() {
                control.push_str(&format!("{field}: {text}\n"));
            }
        }
        let about = "Tombolo is OpenSHMEM 1.6 for programs in C, C++ and Rust that share one\n \
            partitioned global address space, on one machine or several. It measures the\n \
            ways between processes and takes the best.";
        control.push_str(&format!(
            "Description: {}\n {about}\n .\n {}\n",
            package.summary, package.description
        ));
        self.terms(&stage, name)?;
        self.finish(&stage, name, control)?;
        if symbols.is_empty() { Ok(()) } else { self.symbols_package(package, &symbols) }
    }

    /// The fields that all packages have.
    fn head(&self, name: &str, section: &str) -> String {
        let Build { version, architecture, .. } = self;
        format!(
            "Package: {name}\nSource: tombolo\nVersion: {version}\nArchitecture: {architecture}\n\
             Maintainer: {MAINTAINER}\nSection: {section}\nPriority: optional\n"
        )
    }

    /// Who may do what with the package, and what has changed.
    fn terms(&self, stage: &Path, name: &str) -> Result<(), Failure> {
        let doc = stage.join("usr/share/doc").join(name);
        let mut terms = String::from(
            "Tombolo is Copyright the developers of Tombolo, under the Apache License, Version 2.0,\n\
             which is in /usr/share/common-licenses/Apache-2.0 on Debian systems.\n\n",
        );
        terms.push_str(&shortened(&read(&self.root.join(LICENCES))?));
        write(&doc.join("copyright"), &terms)?;
        let changes = read(&self.tree.path(".dev/CHANGELOG.md"))?;
        write(&doc.join("changelog"), &changes)?;
        let mut date = Command::new("date");
        let date = output(date.args(["-R", "-u", "-d"]).arg(format!("@{}", self.moment)))?;
        let debian = format!(
            "tombolo ({}) unstable; urgency=medium\n\n  * Made of the sources by `cargo dev package`.\
             \n\n -- {MAINTAINER}  {}\n",
            self.version,
            date.trim()
        );
        write(&doc.join("changelog.Debian"), &debian)?;
        compress(&[doc.join("changelog"), doc.join("changelog.Debian")])
    }

    /// Packages of the system's libraries that programs and libraries below a folder need.
    fn needed(&self, stage: &Path) -> Result<Vec<String>, Failure> {
        let objects = objects(stage)?;
        if objects.is_empty() {
            return Ok(vec![]);
        }
        // It insists on a description of the source package.
        let place = self.work.join("shlibdeps");
        write(
            &place.join("debian/control"),
            "Source: tombolo\n\nPackage: any\nArchitecture: any\n",
        )?;
        let mut shlibdeps = Command::new("dpkg-shlibdeps");
        shlibdeps.current_dir(&place).arg("-O").args(objects);
        let line = output(shlibdeps.stderr(std::process::Stdio::null()))?;
        let list = line.trim().strip_prefix("shlibs:Depends=").unwrap_or_default();
        Ok(list.split(", ").map(str::to_owned).collect())
    }

    /// Moves what debuggers read from programs and libraries into a folder; gives their build IDs.
    fn take_symbols(&self, stage: &Path, name: &str) -> Result<Vec<String>, Failure> {
        let mut found = vec![];
        for object in objects(stage)? {
            let notes = output(Command::new("readelf").arg("-n").arg(&object))?;
            let id = notes.lines().find_map(|line| Some(line.split_once("Build ID: ")?.1.trim()));
            let id = id.ok_or_else(|| {
                Failure::new(format!("{}: linked without a build ID", object.display()))
            })?;
            let symbols = format!("usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]);
            let symbols = self.work.join(format!("{name}-dbgsym")).join(symbols);
            create(symbols.parent().unwrap_or(stage))?;
            let keep = ["--only-keep-debug", "--compress-debug-sections"];
            run(Command::new("objcopy").args(keep).arg(&object).arg(&symbols))?;
            let unneeded = ["--strip-unneeded", "--remove-section=.comment"];
            run(Command::new("strip").args(unneeded).arg(&object))?;
            let link = format!("--add-gnu-debuglink={}", symbols.display());
            run(Command::new("objcopy").arg(link).arg(&object))?;
            found.push(id.to_owned());
        }
        Ok(found)
    }

    fn symbols_package(&self, of: &Package, ids: &[String]) -> Result<(), Failure> {
        let name = format!("{}-dbgsym", of.name);
        let stage = self.work.join(&name);
        create(&stage.join("usr/share/doc"))?;
        symlink(of.name, stage.join("usr/share/doc").join(&name)).map_err(at(&stage))?;
        let mut control = self.head(&name, "debug");
        if let Some(multi_arch) = of.multi_arch {
            control.push_str(&format!("Multi-Arch: {multi_arch}\n"));
        }
        control.push_str(&format!(
            "Depends: {0} (= {1})\nAuto-Built-Package: debug-symbols\nBuild-Ids: {2}\n\
             Description: debug symbols for {0}\n",
            of.name,
            self.version,
            ids.join(" ")
        ));
        self.finish(&stage, &name, control)
    }

    /// Packs a folder.
    fn finish(&self, stage: &Path, name: &str, mut control: String) -> Result<(), Failure> {
        let files = tidy(stage, stage)?;
        let sizes = files.iter().map(|file| fs::metadata(stage.join(file)).map_or(0, |m| m.len()));
        let size = sizes.map(|bytes| bytes.div_ceil(1024)).sum::<u64>();
        let installed = format!("Installed-Size: {size}\nSection:");
        control = control.replacen("Section:", &installed, 1);
        write(&stage.join("DEBIAN/control"), &control)?;
        let mut sums = Command::new("md5sum");
        let sums = output(sums.arg("--").args(&files).current_dir(stage))?;
        write(&stage.join("DEBIAN/md5sums"), &sums)?;
        tidy(&stage.join("DEBIAN"), stage)?;
        let file = format!("{name}_{}_{}.deb", self.version, self.architecture);
        announce(&format!("packing {file}"));
        let mut pack = Command::new("dpkg-deb");
        pack.env("SOURCE_DATE_EPOCH", self.moment.to_string());
        // Symbols are compressed already.
        let level = if name.ends_with("-dbgsym") { "-z0" } else { "-z1" };
        pack.args([level, "--root-owner-group", "--build"]).arg(stage).arg(self.folder.join(file));
        run(pack.stdout(std::process::Stdio::null()))
    }

    fn copy(&self, from: &str, to: &Path) -> Result<(), Failure> {
        create(to.parent().unwrap_or(to))?;
        let from = self.root.join(from);
        fs::copy(&from, to).map(drop).map_err(at(&from))
    }

    fn copy_tree(&self, from: &str, to: &Path) -> Result<(), Failure> {
        let from = self.root.join(from);
        copy_tree(&from, to, None).map_err(at(&from))
    }

    /// A program with its manual page and what has shells complete its options.
    fn tool(&self, name: &str, stage: &Path, suffix: Option<&str>) -> Result<(), Failure> {
        let place = |file: String| {
            let file = suffix.map_or(file.clone(), |suffix| named(&file, suffix));
            stage.join(&file[1..])
        };
        self.copy(&format!("bin/{name}"), &place(program(name)))?;
        let manual = place(page(name)).with_extension("");
        self.copy(&format!("share/man/man1/{name}.1"), &manual)?;
        compress(&[manual])?;
        self.completions(name, stage)
    }

    fn completions(&self, name: &str, stage: &Path) -> Result<(), Failure> {
        for (from, to) in [
            (format!("bash-completion/completions/{name}"), "bash-completion/completions"),
            (format!("zsh/site-functions/_{name}"), "zsh/vendor-completions"),
            (format!("fish/vendor_completions.d/{name}.fish"), "fish/vendor_completions.d"),
        ] {
            let from = PathBuf::from("share").join(from);
            if self.root.join(&from).is_file() {
                let to =
                    stage.join("usr/share").join(to).join(from.file_name().unwrap_or_default());
                self.copy(&from.display().to_string(), &to)?;
            }
        }
        Ok(())
    }
}

fn library(build: &Build, stage: &Path) -> Result<(), Failure> {
    let lib = stage.join("usr").join(LAYOUT.lib);
    let file = format!("libtombolo.so.{VERSION}");
    build.copy(&format!("lib/{file}"), &lib.join(&file))?;
    symlink(&file, lib.join("libtombolo.so.0")).map_err(at(&lib))?;
    let control = stage.join("DEBIAN");
    write(&control.join("shlibs"), "libtombolo 0 libtombolo0\n")?;
    write(&control.join("triggers"), "activate-noawait ldconfig\n")?;
    let symbols = output(Command::new("nm").args(["-D", "--defined-only"]).arg(lib.join(&file)))?;
    let mut names: Vec<&str> =
        symbols.lines().filter_map(|line| line.split_whitespace().last()).collect();
    names.sort();
    let rows = names.iter().map(|name| format!(" {name}@Base {VERSION}\n"));
    let head = "libtombolo.so.0 libtombolo0 #MINVER#\n".to_owned();
    write(&control.join("symbols"), &(head + &rows.collect::<String>()))
}

fn development(build: &Build, stage: &Path) -> Result<(), Failure> {
    let (usr, doc) = (stage.join("usr"), stage.join("usr/share/doc/libtombolo-dev"));
    let lib = usr.join(LAYOUT.lib);
    build.copy_tree("include", &usr.join(LAYOUT.include))?;
    build.copy("lib/libtombolo.a", &lib.join("libtombolo.a"))?;
    let archive = ["--strip-debug", "--enable-deterministic-archives"];
    run(Command::new("strip").args(archive).arg(lib.join("libtombolo.a")))?;
    let link = |to: &str, name: PathBuf| symlink(to, &name).map_err(at(&name));
    link("libtombolo.so.0", lib.join("libtombolo.so"))?;
    create(&lib.join("tombolo"))?;
    for name in OTHER_NAMES {
        let extension = name.rsplit('.').next().unwrap_or_default();
        link(&format!("../libtombolo.{extension}"), lib.join("tombolo").join(name))?;
    }
    descriptions(build.tree, &usr, &LAYOUT)?;
    build.tool("oshcc", stage, Some("tombolo"))?;
    for name in ["oshc++", "oshCC", "oshcxx"] {
        for file in [program(name), page(name)] {
            let own = named(&file, "tombolo");
            let first = file.replace(name, "oshcc");
            let target = named(&first, "tombolo");
            link(target.rsplit('/').next().unwrap_or_default(), stage.join(&own[1..]))?;
        }
        build.completions(name, stage)?;
    }
    routines(build, &usr.join("share/man/man3"))?;
    build.copy_tree("share/tombolo/examples", &doc.join("examples"))?;
    build.copy_tree("share/doc/tombolo", &doc.join("html"))?;
    // They are in the file on terms.
    let terms = [LICENCE, LICENCES].map(|file| file.replace("share/doc/tombolo", "html"));
    terms.iter().try_for_each(|file| fs::remove_file(doc.join(file)).map_err(at(&doc)))
}

/// Manual pages, and links for all other names on them.
fn routines(build: &Build, to: &Path) -> Result<(), Failure> {
    let from = build.root.join("share/man/man3");
    create(to)?;
    let mut pages = vec![];
    for entry in fs::read_dir(&from).map_err(at(&from))?.flatten() {
        let (text, name) = (read(&entry.path())?, entry.file_name());
        let page = to.join(&name);
        match text.strip_prefix(".so man3/") {
            Some(other) => {
                let link = PathBuf::from(format!("{}.gz", page.display()));
                symlink(format!("{}.gz", other.trim()), &link).map_err(at(&link))?;
            }
            None => {
                write(&page, &text)?;
                pages.push(page);
            }
        }
    }
    compress(&pages)
}

fn tools(build: &Build, stage: &Path) -> Result<(), Failure> {
    build.tool("oshrun", stage, Some("tombolo"))?;
    ["oshinfo", "oshperf", "oshivshmem"].iter().try_for_each(|name| build.tool(name, stage, None))
}

/// The list of licences without the text of the Apache License, which every Debian system has.
fn shortened(terms: &str) -> String {
    let line = "-".repeat(78);
    let part = |part: &str| match part.contains("TERMS AND CONDITIONS FOR USE, REPRODUCTION") {
        true => {
            let users = part.trim_start().lines().next().unwrap_or_default();
            format!("\n{users}\n\n/usr/share/common-licenses/Apache-2.0\n\n")
        }
        false => part.to_owned(),
    };
    terms.split(&line).map(part).collect::<Vec<_>>().join(&line)
}

/// Programs and shared libraries below a folder.
fn objects(stage: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = vec![];
    for folder in ["usr/bin".to_owned(), format!("usr/{}", LAYOUT.lib)] {
        let Ok(entries) = fs::read_dir(stage.join(folder)) else { continue };
        for entry in entries.flatten().filter(|e| e.file_type().is_ok_and(|kind| kind.is_file())) {
            let start = fs::read(entry.path()).map_err(at(&entry.path()))?;
            if start.starts_with(b"\x7fELF") {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Gives everything below a folder the permissions it is to have; gives the files, without links.
fn tidy(folder: &Path, stage: &Path) -> Result<Vec<PathBuf>, Failure> {
    let allow = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(at(path))
    };
    allow(folder, 0o755)?;
    let mut files = vec![];
    let mut entries: Vec<_> = fs::read_dir(folder).map_err(at(folder))?.flatten().collect();
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let (path, kind) = (entry.path(), entry.file_type().map_err(at(folder))?);
        if kind.is_dir() && path != stage.join("DEBIAN") {
            files.extend(tidy(&path, stage)?);
        } else if kind.is_file() {
            let script =
                ["preinst", "postinst", "prerm", "postrm"].map(|s| stage.join("DEBIAN").join(s));
            let runs = folder.ends_with("usr/bin") || script.contains(&path);
            allow(&path, if runs { 0o755 } else { 0o644 })?;
            files.push(path.strip_prefix(stage).unwrap_or(&path).to_owned());
        }
    }
    Ok(files)
}

fn compress(files: &[PathBuf]) -> Result<(), Failure> {
    run(Command::new("gzip").args(["-9", "-n", "--"]).args(files))
}

fn create(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(at(folder))
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(at(file))
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    create(file.parent().unwrap_or(file))?;
    fs::write(file, text).map_err(at(file))
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure::new(format!("{}: {error}", path.display()))
}
