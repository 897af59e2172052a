// SPDX-License-Identifier: Apache-2.0
//! The programs and how they are run.

use super::implementation::{Implementation, finish};
use super::samples::Samples;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tombolo_core::wait::usable_cpus;

/// A job that takes longer is given up. The longest takes two seconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Starts of the shortest job per repetition: enough for a median.
const STARTS: usize = 7;

/// One program in one set-up.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Name of the source, without extension.
    pub program: &'static str,
    /// What is measured, for `--list`.
    pub about: &'static str,
    /// Number of PEs.
    pub pes: u32,
    /// Its argument, if any.
    argument: Option<&'static str>,
    /// Whether each PE gets a core of its own.
    bind: bool,
    /// Cores the whole job is confined to.
    cpus: Option<&'static str>,
    /// Emulated hosts the PEs are spread over; this library only.
    hosts: Option<u32>,
    /// Whether their links take the time that real ones would, and all goes through the ring.
    modelled: bool,
    /// Whether other implementations are measured as well.
    compared: bool,
}

const fn run(program: &'static str, pes: u32, about: &'static str) -> Run {
    Run {
        program,
        about,
        pes,
        argument: None,
        bind: true,
        cpus: None,
        hosts: None,
        modelled: false,
        compared: true,
    }
}

/// Everything there is to run.
pub const RUNS: &[Run] = &[
    run("hello", 4, "start to end of the shortest job"),
    run("scalar", 2, "p, g and 8-byte put and get against a plain store and load"),
    run("copy", 2, "put and get of 8 B to 4 MiB, heap and static, against plain copies"),
    run("atomics", 2, "fetch-add against the CPU's instruction, alone and contended, 2 PEs"),
    run("atomics", 4, "the same with 4 PEs"),
    run("barrier", 2, "barrier against the way of a cache line between cores, 2 PEs"),
    run("barrier", 4, "the same with 4 PEs"),
    run("one_host", 2, "collectives of 2 PEs against plain programs of the same algorithms"),
    run("one_host", 4, "the same with 4 PEs"),
    run("overlap", 2, "non-blocking puts and gets beside a computation, the other PE asleep"),
    Run {
        // Open MPI 4.1.4 does not come back from puts of several threads on private contexts.
        compared: false,
        bind: false,
        ..run("threads", 2, "message rate of 1, 2 and 4 threads on contexts of their own")
    },
    Run {
        bind: false,
        cpus: Some("0,1"),
        ..run("oversubscribed", 16, "barriers of 16 PEs on 2 cores")
    },
    mandelbrot(2, "work stealing without and with contexts, 2 threads per PE"),
    run("key_exchange", 4, "integer sort's key exchange without and with contexts"),
    over(2, run("across_hosts", 2, "words and large puts over an NTB link, 2 emulated hosts")),
    over(4, run("across_hosts", 4, "the same on a ring of 4 hosts, and over two links")),
    over(2, mandelbrot(2, "work stealing over an NTB link")),
    over(4, run("key_exchange", 4, "key exchange on a ring of 4 hosts")),
    modelled(over(2, run("across_hosts", 2, "the same over a link that takes its time, 2 hosts"))),
    modelled(over(4, run("across_hosts", 4, "the same over links that take their time, 4 hosts"))),
    modelled(over(2, mandelbrot(2, "work stealing over a link that takes its time"))),
    modelled(over(4, run("key_exchange", 4, "key exchange over links that take their time"))),
];

const fn mandelbrot(pes: u32, about: &'static str) -> Run {
    Run { bind: false, argument: Some("2"), ..run("mandelbrot", pes, about) }
}

/// PEs of emulated hosts have service threads beside them: they are not bound.
const fn over(hosts: u32, run: Run) -> Run {
    Run { hosts: Some(hosts), bind: false, compared: false, ..run }
}

const fn modelled(run: Run) -> Run {
    Run { modelled: true, ..run }
}

/// Sources to compile, each once.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = RUNS.iter().map(|run| run.program).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The sources, which are part of this program: it needs no source tree.
const SOURCES: &[(&str, &str)] = &[
    ("bench.h", include_str!("../../../../c/bench.h")),
    ("plain.h", include_str!("../../../../c/plain.h")),
    ("plain.c", include_str!("../../../../c/plain.c")),
    ("across_hosts.c", include_str!("../../../../c/across_hosts.c")),
    ("atomics.c", include_str!("../../../../c/atomics.c")),
    ("barrier.c", include_str!("../../../../c/barrier.c")),
    ("copy.c", include_str!("../../../../c/copy.c")),
    ("hello.c", include_str!("../../../../c/hello.c")),
    ("integer_sort.c", include_str!("../../../../c/integer_sort.c")),
    ("key_exchange.c", include_str!("../../../../c/key_exchange.c")),
    ("mandelbrot.c", include_str!("../../../../c/mandelbrot.c")),
    ("one_host.c", include_str!("../../../../c/one_host.c")),
    ("overlap.c", include_str!("../../../../c/overlap.c")),
    ("oversubscribed.c", include_str!("../../../../c/oversubscribed.c")),
    ("paper_hybrid.c", include_str!("../../../../c/paper_hybrid.c")),
    ("paper_pair.c", include_str!("../../../../c/paper_pair.c")),
    ("paper_ring.c", include_str!("../../../../c/paper_ring.c")),
    ("paper_tuning.c", include_str!("../../../../c/paper_tuning.c")),
    ("scalar.c", include_str!("../../../../c/scalar.c")),
    ("threads.c", include_str!("../../../../c/threads.c")),
];

/// Whether there is a program of this name.
#[cfg(test)]
pub fn has_source(program: &str) -> bool {
    SOURCES.iter().any(|(file, _)| file.strip_suffix(".c") == Some(program))
}

/// Writes the sources to a folder.
pub fn write_sources(folder: &Path) -> Result<(), Box<dyn Error>> {
    for (name, text) in SOURCES {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|why| format!("{}: {why}", path.display()))?;
    }
    Ok(())
}

/// A name that is given on the command line; the error names the programs that there are.
pub fn known(name: &str) -> Result<String, String> {
    match names().contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!("there is no program '{name}'; there are {}", names().join(", "))),
    }
}

/// The runs of the programs named; all if none is.
pub fn chosen(only: &[String]) -> Vec<Run> {
    let wanted = |run: &&Run| only.is_empty() || only.iter().any(|name| name == run.program);
    RUNS.iter().filter(wanted).copied().collect()
}

impl Run {
    /// What the names of its samples end with: the number of PEs, of hosts, m for modelled links.
    pub fn place(&self) -> String {
        match self.hosts {
            Some(hosts) => format!("{}x{hosts}{}", self.pes, if self.modelled { "m" } else { "" }),
            None => self.pes.to_string(),
        }
    }

    fn job(&self, implementation: &Implementation, program: &Path) -> Command {
        // Launchers refuse to bind more PEs than there are cores.
        let bind = self.bind && self.pes as usize <= usable_cpus();
        let mut job = implementation.job(bind, self.cpus);
        if let Some(hosts) = self.hosts {
            job.arg("--hosts").arg(hosts.to_string());
        }
        if self.modelled {
            job.args(["-x", "SHMEM_NTB_SPEED=modelled", "-x", "SHMEM_NTB_DIRECT=off"]);
        }
        job.arg("-n").arg(self.pes.to_string()).arg(program).args(self.argument);
        job
    }

    /// Runs the program built in `place` and takes what it measured.
    pub fn measure(
        &self,
        implementation: &Implementation,
        place: &Path,
        samples: &mut Samples,
    ) -> Result<(), Box<dyn Error>> {
        if !self.compared && !implementation.is_own() {
            return Ok(());
        }
        let program = place.join(self.program);
        if self.program == "hello" {
            return self.measure_starts(implementation, &program, samples);
        }
        let output = finish(self.job(implementation, &program), LIMIT)?;
        let lines = samples.read(&output, &self.place())?;
        if lines == 0 {
            return Err("printed no samples".into());
        }
        Ok(())
    }

    /// The wall time of whole jobs, the launcher's start and end included.
    fn measure_starts(
        &self,
        implementation: &Implementation,
        program: &Path,
        samples: &mut Samples,
    ) -> Result<(), Box<dyn Error>> {
        for _ in 0..STARTS {
            let job = self.job(implementation, program);
            let begun = Instant::now();
            let output = finish(job, LIMIT)?;
            let ms = begun.elapsed().as_secs_f64() * 1e3;
            let said = greetings(&output, self.pes);
            if said != self.pes {
                return Err(format!("{said} of {} PEs said hello", self.pes).into());
            }
            samples.add(&format!("{}@{}", self.program, self.place()), "ms", [ms]);
        }
        Ok(())
    }
}

/// How many PEs said hello, whatever the library said beside it.
fn greetings(output: &str, pes: u32) -> u32 {
    let said = |pe: &u32| output.lines().any(|line| line == format!("PE {pe} of {pes}"));
    (0..pes).filter(said).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_library_says_beside_the_program_does_not_count() {
        assert_eq!(greetings("WARNING: a\nPE 1 of 2\nPE 0 of 2\n", 2), 2);
        assert_eq!(greetings("PE 0 of 2\nPE 0 of 2\n", 2), 1);
    }

    #[test]
    fn every_program_has_its_source() {
        for name in names() {
            assert!(has_source(name), "{name}");
        }
    }

    #[test]
    fn programs_are_chosen_by_name_and_unknown_names_refused() {
        assert_eq!(chosen(&[]).len(), RUNS.len());
        assert_eq!(chosen(&["atomics".into()]).len(), 2);
        assert_eq!(known("scalar"), Ok("scalar".to_owned()));
        assert!(known("nothing").unwrap_err().contains("scalar"));
    }
}
