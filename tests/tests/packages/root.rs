// SPDX-License-Identifier: Apache-2.0
//! Roots of file systems to install packages in: what happens in them changes nothing outside.

use super::support::{Ran, run};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Why roots cannot be made; none if they can.
pub fn unavailable() -> Option<&'static str> {
    let script = "mount -t tmpfs none /mnt && cd /mnt && mkdir upper work root && \
        mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work none root && chroot root true";
    let mut unshare = Command::new("unshare");
    let tried = unshare.args(["--mount", "--pid", "--fork", "sh", "-c", script]);
    let works = tried.output().is_ok_and(|output| output.status.success());
    (!works).then_some("needs root and overlay file systems")
}

/// A file system over which another is laid that takes all changes.
pub struct Root {
    lower: PathBuf,
}

impl Root {
    /// All that is installed here.
    pub fn of_this_system() -> Root {
        Root { lower: "/".into() }
    }

    /// The packages that every Debian system has, some more, and what they depend on, made of their
    /// files on this system in `folder`.
    pub fn of_packages(folder: &Path, more: &[&str]) -> Result<Root, String> {
        let _ = fs::remove_dir_all(folder);
        let text = |error: std::io::Error| error.to_string();
        fs::create_dir_all(folder.join("var/lib/dpkg/info")).map_err(text)?;
        let chosen = closure(&installed()?, more);
        // Hard links, which nothing below an overlay can change; copies where the place is elsewhere.
        let script = r#"
            set -e
            root=$1; shift
            for link in /bin /sbin /lib /lib64 /lib32 /libx32; do
                [ ! -L $link ] || { cp -a $link "$root$link"; mkdir -p "$root/usr$link"; }
            done
            # Packages name some files by these links.
            dpkg-query -L "$@" | sed -n '/^\/[a-z]/p' | if [ -L /lib ]; then
                sed -E 's,^/(bin|sbin|lib|lib64|lib32|libx32)(/|$),/usr/\1\2,'
            else cat; fi | sort -u > "$root.files"
            while read -r file; do [ -d "$file" ] && [ ! -L "$file" ] && echo "$root$file"; done \
                < "$root.files" | xargs -d '\n' mkdir -p
            while read -r file; do
                [ -d "$file" ] && [ ! -L "$file" ] || [ ! -e "$file" ] || [ -e "$root$file" ] ||
                    echo "${file#/}"
            done < "$root.files" > "$root.links"
            how=-dl
            cp -l /usr/bin/env "$root/env" 2> "$root.errors" || how=-dp
            rm -f "$root/env"
            cd /
            xargs -d '\n' -a "$root.links" cp $how --parents -t "$root"
            rm -rf "$root/etc/alternatives"
            cp -a /etc/alternatives "$root/etc/"
            cp -a --remove-destination /etc/ld.so.cache /etc/passwd /etc/group "$root/etc/"
            cp -a /var/lib/dpkg/alternatives "$root/var/lib/dpkg/"
            for link in /usr/bin/cc /usr/bin/awk; do cp -a --remove-destination $link "$root$link"; done
            dpkg-query -s "$@" > "$root/var/lib/dpkg/status"
            for package; do
                for file in /var/lib/dpkg/info/$package.* /var/lib/dpkg/info/$package:*; do
                    [ ! -e "$file" ] || cp -a "$file" "$root/var/lib/dpkg/info/"
                done
            done
            mkdir -p "$root/tmp" "$root/proc" "$root/dev" "$root/packages" "$root/var/lib/dpkg/updates"
            cp -a /var/lib/dpkg/info/format "$root/var/lib/dpkg/info/"
            touch "$root/var/lib/dpkg/available"
        "#;
        let mut make = Command::new("sh");
        make.args(["-c", script, "sh"]).arg(folder).args(chosen);
        run(&mut make, Duration::from_secs(120)).map_err(text)?.succeeded()?;
        Ok(Root { lower: folder.to_owned() })
    }

    /// Runs a script in it; `/packages` is `folder`, and the changes are gone afterwards.
    pub fn shell(&self, folder: &Path, script: &str, limit: Duration) -> Result<Ran, String> {
        // The folder is bound before the mount over `/mnt` can hide it.
        let outside = r#"
            set -e
            exec 3< "$2"
            mount -t tmpfs none /mnt
            mkdir /mnt/upper /mnt/work /mnt/root
            mount -t overlay -o "lowerdir=$1,upperdir=/mnt/upper,workdir=/mnt/work" none /mnt/root
            cd /mnt/root
            mkdir -p packages proc dev tmp
            cp /proc/self/fd/3/*.deb packages/
            mount -t proc proc proc
            mount --rbind /dev dev
            exec chroot . sh -e -c "$3"
        "#;
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", outside, "sh"]);
        shell.arg(&self.lower).arg(folder).arg(script);
        shell.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
        shell.env("DEBIAN_FRONTEND", "noninteractive").env("HOME", "/tmp");
        run(&mut shell, limit).map_err(|error| error.to_string())
    }
}

/// What one package is needed for and needs.
struct Package {
    essential: bool,
    /// Alternatives for each of them.
    needs: Vec<Vec<String>>,
}

/// Installed packages, and which of them provide a name that is no package.
struct Installed {
    packages: BTreeMap<String, Package>,
    providers: BTreeMap<String, String>,
}

fn installed() -> Result<Installed, String> {
    let format =
        "${Package}\t${Essential}\t${Pre-Depends}, ${Depends}\t${Provides}\t${db:Status-Abbrev}\n";
    let listed = Command::new("dpkg-query").args(["-W", "-f", format]).output();
    let listed = listed.map_err(|error| error.to_string())?.stdout;
    let mut found = Installed { packages: BTreeMap::new(), providers: BTreeMap::new() };
    for line in String::from_utf8_lossy(&listed).lines() {
        let [name, essential, needs, provides, status] = line.split('\t').collect::<Vec<_>>()[..]
        else {
            continue;
        };
        if !status.starts_with("ii") {
            continue;
        }
        for provided in names(provides).into_iter().flatten() {
            found.providers.entry(provided).or_insert(name.to_owned());
        }
        let package = Package { essential: essential == "yes", needs: names(needs) };
        found.packages.insert(name.to_owned(), package);
    }
    Ok(found)
}

/// `a (>= 1), b | c` without what stands in brackets.
fn names(relation: &str) -> Vec<Vec<String>> {
    let name = |text: &str| {
        let text = text.trim();
        let end = text.find([' ', '(', ':', '[']).unwrap_or(text.len());
        text[..end].to_owned()
    };
    let one = |text: &str| text.split('|').map(name).filter(|name| !name.is_empty()).collect();
    let all: Vec<Vec<String>> = relation.split(',').map(one).collect();
    all.into_iter().filter(|alternatives| !alternatives.is_empty()).collect()
}

fn closure(installed: &Installed, more: &[&str]) -> BTreeSet<String> {
    let essential = installed.packages.iter().filter(|(_, package)| package.essential);
    let mut todo: Vec<String> = essential.map(|(name, _)| name.clone()).collect();
    todo.extend(more.iter().map(|name| (*name).to_owned()));
    let mut chosen = BTreeSet::new();
    while let Some(name) = todo.pop() {
        let name = match installed.packages.contains_key(&name) {
            true => name,
            false => match installed.providers.get(&name) {
                Some(provider) => provider.clone(),
                None => continue,
            },
        };
        if !chosen.insert(name.clone()) {
            continue;
        }
        for alternatives in &installed.packages[&name].needs {
            let is_there = |name: &&String| {
                installed.packages.contains_key(*name) || installed.providers.contains_key(*name)
            };
            todo.extend(alternatives.iter().find(is_there).cloned());
        }
    }
    chosen
}
