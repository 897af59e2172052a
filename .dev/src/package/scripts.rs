// SPDX-License-Identifier: Apache-2.0
//! What packages have Debian's installer do: programs whose names Open MPI's packages have as well
//! become alternatives, between which people choose.

/// Programs of a package that other packages have under the same names. The first decides for all.
pub struct Shared {
    pub names: &'static [&'static str],
}

impl Shared {
    fn files(&self) -> impl Iterator<Item = String> {
        let both = |name: &&str| [program(name), page(name)];
        self.names.iter().flat_map(both).collect::<Vec<_>>().into_iter()
    }

    /// Moves what others have, and will have, under these names out of the way of the alternatives.
    pub fn before_installation(&self, package: &str) -> String {
        let files = self.files().collect::<Vec<_>>().join(" ");
        format!(
            "{HEAD}{PLACE}if [ \"$1\" = install ] || [ \"$1\" = upgrade ]; then\n\
             \x20 for file in {files}; do\n\
             \x20   how=--rename\n\
             \x20   # A link to an alternative belongs to nobody.\n\
             \x20   case \"$(readlink \"$file\" || true)\" in /etc/alternatives/*) how=--no-rename ;; esac\n\
             \x20   dpkg-divert --quiet --package {package} \"$how\" \\\n\
             \x20     --divert \"$(place \"$file\")\" --add \"$file\"\n\
             \x20 done\nfi\n"
        )
    }

    /// Offers the alternatives that are there; also when others have come or gone.
    pub fn after_installation(&self) -> String {
        let first = self.names[0];
        let ours = self.offer();
        let mut theirs = format!(
            "  if [ -e {0} ]; then\n    set -- --install {1} {first} {0} 40\n",
            other(&program(first)),
            program(first)
        );
        for (link, name, _) in self.followers() {
            let other = other(&link);
            theirs.push_str(&format!(
                "    [ ! -e {other} ] || set -- \"$@\" --slave {link} {name} {other}\n"
            ));
        }
        theirs.push_str(&format!(
            "    update-alternatives \"$@\"\n  else\n    \
             update-alternatives --remove {first} {}\n  fi\n",
            other(&program(first))
        ));
        format!("{HEAD}case \"$1\" in configure|triggered|abort-*)\n{ours}{theirs}  ;;\nesac\n")
    }

    pub fn before_removal(&self) -> String {
        let first = self.names[0];
        let (ours, theirs) = (named(&program(first), "tombolo"), other(&program(first)));
        format!(
            "{HEAD}if [ \"$1\" = remove ] || [ \"$1\" = deconfigure ]; then\n\
             \x20 update-alternatives --remove {first} {ours}\n\
             \x20 update-alternatives --remove {first} {theirs}\nfi\n"
        )
    }

    /// Gives others their names back.
    pub fn after_removal(&self, package: &str) -> String {
        let files = self.files().collect::<Vec<_>>().join(" ");
        format!(
            "{HEAD}{PLACE}case \"$1\" in remove|abort-install|disappear)\n\
             \x20 for file in {files}; do\n\
             \x20   dpkg-divert --quiet --package {package} --rename \\\n\
             \x20     --divert \"$(place \"$file\")\" --remove \"$file\"\n\
             \x20 done\n  ;;\nesac\n"
        )
    }

    /// Has the script after installation run when another package brings or takes such a program.
    pub fn triggers(&self) -> String {
        format!("interest-noawait {}\n", other(&program(self.names[0])))
    }

    fn offer(&self) -> String {
        let first = self.names[0];
        let (link, target) = (program(first), named(&program(first), "tombolo"));
        let mut line = format!("  update-alternatives --install {link} {first} {target} 60");
        for (link, name, target) in self.followers() {
            line.push_str(&format!(" \\\n    --slave {link} {name} {target}"));
        }
        line + "\n"
    }

    /// Link, name and target of all that follows the first program.
    fn followers(&self) -> Vec<(String, String, String)> {
        let files = self.files().skip(1);
        let name = |file: &str| file.rsplit('/').next().unwrap_or_default().to_owned();
        files.map(|link| (link.clone(), name(&link), named(&link, "tombolo"))).collect()
    }
}

const HEAD: &str = "#!/bin/sh\nset -e\n";

/// Where a file of another package goes; as `other` below.
const PLACE: &str = "place() {\n\
    \x20 case \"$1\" in\n\
    \x20   *.1.gz) echo \"${1%.1.gz}.other.1.gz\" ;;\n\
    \x20   *) echo \"$1.other\" ;;\n\
    \x20 esac\n}\n";

pub fn program(name: &str) -> String {
    format!("/usr/bin/{name}")
}

pub fn page(name: &str) -> String {
    format!("/usr/share/man/man1/{name}.1.gz")
}

/// The file of one library among several: `/usr/bin/oshrun.tombolo`.
pub fn named(file: &str, suffix: &str) -> String {
    match file.strip_suffix(".1.gz") {
        Some(stem) => format!("{stem}.{suffix}.1.gz"),
        None => format!("{file}.{suffix}"),
    }
}

fn other(file: &str) -> String {
    named(file, "other")
}
