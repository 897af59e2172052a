// SPDX-License-Identifier: Apache-2.0
//! C and C++ programs, compiled by the installed `oshcc` and run by the installed `oshrun`.

use super::{Ran, crate_dir, prefix, run, scratch, tool};
use libtest_mimic::{Arguments, Trial};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// No job of these tests takes longer unless something is wrong.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Runs tests of installed programs and exits; `trials` gets the prefix of the installation.
pub fn run_trials(trials: impl FnOnce(&Path) -> Vec<Trial>) -> ! {
    let mut arguments = Arguments::from_args();
    // Jobs have several processes each: more at a time would measure the scheduler.
    arguments.test_threads.get_or_insert(2);
    let trials = match prefix() {
        Ok(prefix) => trials(&prefix),
        Err(missing) => vec![Trial::test("the_library_is_installed", || Err(missing.into()))],
    };
    libtest_mimic::run(&arguments, trials).exit()
}

/// A source file and how to compile it; compiled when first needed, once.
pub struct Program {
    /// `rma`
    pub name: String,
    /// How it is built, for people; empty for the compiler's default.
    pub how: &'static str,
    prefix: PathBuf,
    source: PathBuf,
    flags: Vec<String>,
    built: OnceLock<Result<PathBuf, String>>,
}

impl Program {
    /// A program of one source file.
    pub fn new(prefix: &Path, source: &Path, how: &'static str, flags: &[&str]) -> Arc<Program> {
        Arc::new(Program {
            name: source.file_stem().expect("a file").to_string_lossy().into_owned(),
            how,
            prefix: prefix.to_owned(),
            source: source.to_owned(),
            flags: flags.iter().map(|flag| flag.to_string()).collect(),
            built: OnceLock::new(),
        })
    }

    /// The compiled program.
    pub fn executable(&self) -> Result<PathBuf, String> {
        self.built.get_or_init(|| self.build()).clone()
    }

    fn build(&self) -> Result<PathBuf, String> {
        let cxx = self.source.extension().is_some_and(|extension| extension == "cc");
        let compiler = self.prefix.join("bin").join(if cxx { "oshc++" } else { "oshcc" });
        let mut args = vec!["-Wall".to_owned(), "-Wextra".to_owned(), "-Werror".to_owned()];
        args.extend(self.flags.iter().cloned());
        args.push(self.source.display().to_string());
        let executable = match self.how {
            "" => self.shared(&compiler, &args)?,
            how => scratch("programs").join(format!("{}-{}", self.name, how.replace(' ', "-"))),
        };
        // One test compiles it, the others wait for that.
        let lock = File::create(executable.with_extension("lock"));
        let locked = lock.and_then(|lock| lock.lock().map(|()| lock));
        let _locked = locked.map_err(|error| format!("{}: {error}", executable.display()))?;
        if self.how.is_empty() && executable.is_file() {
            return Ok(executable);
        }
        // Another test may run what it has compiled of the same source meanwhile.
        static BUILDS: AtomicU32 = AtomicU32::new(0);
        let number = BUILDS.fetch_add(1, Ordering::Relaxed);
        let new = executable.with_extension(format!("{}-{number}", std::process::id()));
        args.extend(["-o".to_owned(), new.display().to_string()]);
        tool(compiler, &args)?;
        std::fs::rename(&new, &executable)
            .map_err(|error| format!("{}: {error}", executable.display()))?;
        Ok(executable)
    }

    /// Where the program is that all tests share, which finds the library when it starts: its name tells by what and
    /// from what it was compiled. Some programs take ten seconds to compile, and a dozen tests run them.
    fn shared(&self, compiler: &Path, args: &[String]) -> Result<PathBuf, String> {
        let mut hasher = DefaultHasher::new();
        (compiler, args).hash(&mut hasher);
        let folder = self.source.parent().expect("a folder");
        let mut files = vec![self.source.clone()];
        for folder in [folder, &crate_dir().join("c"), &self.prefix.join("include")] {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let headers = entries.map(|entry| entry.path());
            files.extend(headers.filter(|path| path.extension().is_some_and(|it| it == "h")));
        }
        files.sort();
        for file in files {
            let text = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            text.hash(&mut hasher);
        }
        let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled");
        std::fs::create_dir_all(&all).map_err(|error| error.to_string())?;
        Ok(all.join(format!("{}-{:016x}", self.name, hasher.finish())))
    }

    /// `oshrun ARGUMENTS`, with a heap small enough for many jobs at once and a cache of its own.
    pub fn oshrun(&self) -> Command {
        let mut oshrun = Command::new(self.prefix.join("bin/oshrun"));
        oshrun.env("SHMEM_SYMMETRIC_SIZE", "16m");
        // What is measured while tests run beside each other is not for the user's cache.
        oshrun.env("SHMEM_TUNE_CACHE", scratch("tuning"));
        oshrun
    }

    /// Runs the program on `pes` PEs.
    pub fn launch(&self, pes: usize, args: &[&str], env: &[(&str, &str)]) -> Result<Ran, String> {
        self.launch_with(&[], pes, args, env)
    }

    /// The same with more options of `oshrun`.
    pub fn launch_with(
        &self,
        options: &[&str],
        pes: usize,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Result<Ran, String> {
        self.launch_within(LIMIT, options, pes, args, env)
    }

    /// The same with a limit of its own on how long it may take.
    pub fn launch_within(
        &self,
        limit: Duration,
        options: &[&str],
        pes: usize,
        args: &[&str],
        env: &[(&str, &str)],
    ) -> Result<Ran, String> {
        let executable = self.executable()?;
        let mut oshrun = self.oshrun();
        oshrun.args(["-n", &pes.to_string()]).args(options).arg(executable).args(args);
        oshrun.envs(env.iter().copied());
        run(&mut oshrun, limit).map_err(|error| format!("{oshrun:?}: {error}"))
    }
}
