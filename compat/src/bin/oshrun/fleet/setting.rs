// SPDX-License-Identifier: Apache-2.0
//! What processes inherit: taken here, applied by agents.

use crate::options::Remote;
use crate::wire::Setting;
use nix::sys::stat::{Mode, umask};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Variables by which programs and libraries are found.
const PATHS: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];
/// Variables that OpenSHMEM programs read.
const PREFIXES: [&str; 2] = ["SHMEM_", "SMA_"];

/// Limits by which jobs differ from one shell to the next.
const LIMITS: [libc::__rlimit_resource_t; 8] = [
    libc::RLIMIT_CPU,
    libc::RLIMIT_FSIZE,
    libc::RLIMIT_DATA,
    libc::RLIMIT_STACK,
    libc::RLIMIT_CORE,
    libc::RLIMIT_NOFILE,
    libc::RLIMIT_MEMLOCK,
    libc::RLIMIT_AS,
];

impl Setting {
    /// That of this process, in the directory that the PEs are to run in.
    pub fn own(remote: &Remote) -> io::Result<Setting> {
        let current = current_dir()?;
        let directory = remote.directory.as_ref().map_or(current.clone(), |d| current.join(d));
        let wanted = |name: &OsString| {
            let name = name.to_string_lossy();
            PATHS.contains(&&*name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        };
        let mut environment: Vec<_> =
            std::env::vars_os().filter(|(name, _)| wanted(name)).collect();
        environment.push(("PWD".into(), directory.clone().into()));
        let mask = umask(Mode::empty());
        umask(mask);
        let limits =
            LIMITS.iter().filter_map(|resource| Some((*resource, limit(*resource)?.rlim_cur)));
        Ok(Setting {
            environment,
            directory: directory.into(),
            umask: mask.bits(),
            limits: limits.collect(),
            silence: remote.silence,
        })
    }

    /// Makes it that of this process. While there is one thread.
    pub fn apply(&self) -> Result<(), String> {
        for (name, value) in &self.environment {
            // SAFETY: there is one thread.
            unsafe { std::env::set_var(name, value) };
        }
        umask(Mode::from_bits_truncate(self.umask));
        for &(resource, soft) in &self.limits {
            if let Some(own) = limit(resource) {
                let wanted = libc::rlimit { rlim_cur: wanted(resource, soft, &own), ..own };
                // What is not allowed here stays as it is, as after a login.
                // SAFETY: a system call on a valid limit.
                unsafe { libc::setrlimit(resource, &wanted) };
            }
        }
        std::env::set_current_dir(&self.directory)
            .map_err(|e| format!("cannot run in the directory '{}': {e}", self.directory.display()))
    }
}

/// The soft limit for a host that has `own`, where that of `oshrun` is `soft`. Memory that may be locked depends on the
/// host and its devices, and more of it takes nothing from a job: PEs have all that the host allows. What it gave the agent
/// says little: Slurm's srun passes on the soft limit of the machine that it was started on.
fn wanted(
    resource: libc::__rlimit_resource_t,
    soft: libc::rlim_t,
    own: &libc::rlimit,
) -> libc::rlim_t {
    let wanted = match resource {
        libc::RLIMIT_MEMLOCK => own.rlim_max,
        _ => soft,
    };
    wanted.min(own.rlim_max)
}

fn limit(resource: libc::__rlimit_resource_t) -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the result.
    (unsafe { libc::getrlimit(resource, &mut limit) } == 0).then_some(limit)
}

/// The current directory, by the name that the shell has for it: where home directories are mounted
/// on demand, other hosts do not know the one that the kernel has.
fn current_dir() -> io::Result<PathBuf> {
    let real = std::env::current_dir()
        .map_err(|e| io::Error::other(format!("the working directory cannot be told: {e}")))?;
    let same = |name: &Path| {
        let identity = |path: &Path| path.metadata().map(|m| (m.dev(), m.ino())).ok();
        name.is_absolute() && identity(name).is_some() && identity(name) == identity(&real)
    };
    let named = std::env::var_os("PWD").map(PathBuf::from);
    Ok(named.filter(|name| same(name)).unwrap_or(real))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_may_be_locked_as_far_as_the_host_allows_and_other_limits_are_those_of_oshrun() {
        let own = libc::rlimit { rlim_cur: 50, rlim_max: 90 };
        for (soft, memory, files) in
            [(10, 90, 10), (70, 90, 70), (100, 90, 90), (libc::RLIM_INFINITY, 90, 90)]
        {
            assert_eq!(wanted(libc::RLIMIT_MEMLOCK, soft, &own), memory, "{soft}");
            assert_eq!(wanted(libc::RLIMIT_NOFILE, soft, &own), files, "{soft}");
        }
        let all = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        assert_eq!(wanted(libc::RLIMIT_MEMLOCK, 10, &all), libc::RLIM_INFINITY);
    }
}
