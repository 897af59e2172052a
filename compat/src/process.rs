// SPDX-License-Identifier: Apache-2.0
//! The composition root: what this process is in its job, from the first `shmem_init` to its exit.
//!
//! A process joins its launcher once and stays with it until it exits, since no launcher lets a
//! process join twice. Between, the library may be initialised and finalised any number of times;
//! each time makes a new [`World`]. OpenSHMEM 1.6, "Library Setup, Exit, and Query Routines".

use crate::abi::{SHMEM_THREAD_MULTIPLE, SHMEM_THREAD_SERIALIZED, SHMEM_THREAD_SINGLE};
use crate::c::fast;
use crate::c::tune;
use crate::library::{self, Library, library, refuse};
use crate::{describe, ending, logging, main_thread, profile, transports, variables};
use std::ffi::c_int;
use std::io::Write;
use std::ops::Deref;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tombolo_collectives as coll;
use tombolo_core::board::{Board, State};
use tombolo_core::bootstrap::{self, Bootstrap};
use tombolo_core::config::{Audience, Descriptor, Log, Value};
use tombolo_core::error::report;
use tombolo_core::transport::Transport;
use tombolo_core::{Config, Error, Result, Setup, World, world};
use tombolo_selector::Tuning;

static PROCESS: Mutex<Process> =
    Mutex::new(Process { calls: 0, stays: false, checks: false, job: None });

/// Thread level of the current or last initialisation. Programs may ask for it at any time, also while
/// another thread holds [`PROCESS`] and waits for other PEs.
static LEVEL: AtomicI32 = AtomicI32::new(SHMEM_THREAD_SINGLE);

/// Whether this process has a [`crate::World`]. Safe code may end the process meanwhile, though threads are in routines.
pub static HAS_WORLD: AtomicBool = AtomicBool::new(false);

struct Process {
    /// Calls of an initialisation routine that no finalisation has matched.
    calls: usize,
    /// Initialised by a routine that no finalisation has to match: the exit of the process is one.
    stays: bool,
    /// Whether arguments are checked in the current or last initialisation.
    checks: bool,
    /// Set at the first initialisation, for as long as the process lives.
    job: Option<Job>,
}

struct Job {
    bootstrap: Arc<dyn Bootstrap>,
    board: Arc<Board>,
}

/// Thread level of the current initialisation.
pub fn thread_level() -> c_int {
    LEVEL.load(Ordering::Relaxed)
}

/// A tool's membership in the job whose PE it is; leaves the job when the last one is dropped.
///
/// Sessions and the C routines `shmem_init` and `shmem_finalize` count together.
pub struct Session {
    library: &'static Library,
}

impl Session {
    /// The routes in force and what they follow from, as this PE sees them.
    pub fn tuning(&self) -> Tuning {
        tune::current().expect("tuned when the session began")
    }
}

impl Deref for Session {
    type Target = World;

    fn deref(&self) -> &World {
        &self.library.world
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        leave("shmem_finalize");
    }
}

/// Collective: joins the job in which this process was started, as [`crate::init`] does.
pub fn join() -> Result<Session> {
    enter(None)?;
    Ok(Session { library: library("shmem_init") })
}

/// Initialises the library if it is not, and counts the call. Gives the thread level provided: the one that was asked
/// for first, or else the highest at which programs with active sets are as fast as can be.
pub fn enter(asked: Option<c_int>) -> Result<c_int> {
    let mut process = process();
    if process.calls == 0 {
        start(&mut process, asked == Some(SHMEM_THREAD_MULTIPLE))?;
        process.stays = false;
        LEVEL.store(asked.unwrap_or(SHMEM_THREAD_SERIALIZED), Ordering::Relaxed);
    }
    process.calls += 1;
    Ok(thread_level())
}

/// As [`enter`]; a failure ends the job.
pub fn enter_or_exit(routine: &str) {
    if let Err(error) = enter(None) {
        fail(routine, &error);
    }
}

/// As [`enter_or_exit`], until the process exits. Changes nothing if the library is initialised.
pub fn enter_to_stay(routine: &str) {
    if !library::is_initialized() {
        enter_or_exit(routine);
        process().stays = true;
    }
}

/// Matches one call of [`enter`]: synchronises all PEs, and finalises the library at the last one.
/// One call too many changes nothing; it is an error while arguments are checked.
pub fn leave(routine: &'static str) {
    if world::is_ending_here() {
        // The job ends as soon as what runs at exit is done.
        return;
    }
    let mut process = process();
    match process.calls {
        0 if process.job.is_some() && !process.checks => {}
        0 => {
            drop(process);
            refuse(routine)
        }
        1 => {
            process.calls = 0;
            let stopped = stop(&process, routine);
            drop(process);
            if let Err(error) = stopped {
                fail(routine, &error);
            }
        }
        _ => {
            process.calls -= 1;
            drop(process);
            let world = &library(routine).world;
            synchronise(world, routine);
            if world.goes_on()
                && let Err(error) = world.leave_together(routine, false)
            {
                fail(routine, &error);
            }
        }
    }
}

fn process() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Opens standard streams that the program has closed, or was started without, as `/dev/null`. Memory files and
/// sockets of the library would get their numbers, and what the program prints would end up there.
fn keep_standard_streams() {
    let is_closed = || std::io::Error::last_os_error().raw_os_error() == Some(libc::EBADF);
    for stream in 0..=2 {
        // SAFETY: a descriptor is looked at, and new ones, which nobody else knows, are closed.
        unsafe {
            while libc::fcntl(stream, libc::F_GETFD) < 0 && is_closed() {
                let mut opened = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
                if opened < 0 {
                    // Nothing can be written or read there, either.
                    opened = libc::open(c"/".as_ptr(), libc::O_PATH);
                }
                if opened < 0 {
                    return;
                }
                // It has the lowest number that was free. Another thread may have been faster.
                if opened > stream {
                    libc::close(opened);
                }
            }
        }
    }
}

fn start(process: &mut Process, several_threads: bool) -> Result<()> {
    keep_standard_streams();
    let mut setting = settings();
    if process.job.is_none() {
        setting = setting.and_then(|(config, transports)| {
            keep_board(&config)?;
            Ok((config, transports))
        });
    }
    logging::start(setting.as_ref().map_or(Log::Warn, |(config, _)| config.log));
    if process.job.is_none() {
        process.job = Some(match &setting {
            Ok((config, _)) => connect(config)?,
            // The others are to learn why this PE cannot start; if there are none, nobody is.
            Err(_) => connect(&Config::default())?,
        });
    }
    let job = process.job.as_ref().expect("just joined");
    library::joined(job.bootstrap.clone());
    let (config, transports) = setting.map_err(|why| World::refuse(&*job.bootstrap, why))?;
    let own_threads = main_thread::Before::now();
    let world = World::start(Setup {
        bootstrap: job.bootstrap.clone(),
        board: job.board.clone(),
        transports,
        share_statics: true,
        several_threads,
        config,
    })?;
    tune::start(&world)?;
    announce(&world);
    process.checks = world.config().debug.0;
    let library = Box::new(Library { world, objects: Mutex::default() });
    // SAFETY: no routine works before the library is published just below, and the library keeps
    // the world, with all its mappings, until `stop` has closed the fast path and ended counting.
    unsafe {
        profile::open(&library.world);
        fast::open(&library.world)
    }
    .map_err(|why: nix::Error| {
        Error::system("making the tables of the fast path", std::io::Error::from(why))
    })?;
    own_threads.started();
    library.world.announce_running();
    library::publish(library);
    Ok(())
}

/// What the environment says, checked as far as this process can.
fn settings() -> Result<(Config, Vec<Box<dyn Transport>>)> {
    let mut config = Config::from_env()?;
    variables::rows(&config)?;
    let transports = transports::chosen(&config)?;
    variables::check_route(&config)?;
    variables::check_algorithms(&config)?;
    config.build = describe::BUILD;
    config.notices = variables::notices(config.environment());
    if cfg!(debug_assertions) && config.environment().get("SHMEM_DEBUG").is_none() {
        config.debug.0 = true;
    }
    Ok((config, transports))
}

/// Keeps the descriptor of the status board for this process; an error if there is no such descriptor.
fn keep_board(config: &Config) -> Result<()> {
    let Some(Descriptor(board)) = config.board_fd else { return Ok(()) };
    // SAFETY: fails where there is no such descriptor. Programs that this one starts have no use
    // for it.
    if unsafe { libc::fcntl(board, libc::F_SETFD, libc::FD_CLOEXEC) } >= 0 {
        return Ok(());
    }
    let (name, value) = ("TOMBOLO_BOARD_FD".to_owned(), board.to_string());
    Err(Error::Config { name, value, why: format!("expected {}", Descriptor::FORM) })
}

fn connect(config: &Config) -> Result<Job> {
    let bootstrap: Arc<dyn Bootstrap> = bootstrap::from_env(config)?.into();
    let board = match config.board_fd {
        Some(Descriptor(number)) => {
            // SAFETY: `keep_board` has found it open, and the launcher passed it for this use alone.
            let fd = unsafe { OwnedFd::from_raw_fd(number) };
            Board::open(fd, bootstrap.n_pes())?
        }
        None => Board::create(bootstrap.n_pes())?,
    };
    ending::prepare();
    Ok(Job { bootstrap, board: Arc::new(board) })
}

/// Prints what `SHMEM_VERSION` and `SHMEM_INFO` ask for.
fn announce(world: &World) {
    let config = world.config();
    if world.pe() != 0 || !(config.version.0 || config.info.0) {
        return;
    }
    let mut text = describe::version() + "\n";
    if config.info.0 {
        text += &describe::job(world).to_string();
        describe::transports(world).iter().for_each(|section| text += &section.to_string());
        text += "Environment variables\n";
        for audience in [Audience::User, Audience::Launcher] {
            text += &describe::variables(config.environment(), audience).to_string();
        }
    }
    let mut out = std::io::stdout();
    if let Err(why) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        report(format_args!("cannot write to standard output: {why}"));
    }
}

/// Completes this PE's operations and waits for all others, which a program that goes on without
/// lost PEs leaves to [`World::leave_together`]: some PEs may not know of a loss yet, and would wait
/// for those that do.
fn synchronise(world: &World, routine: &'static str) {
    if world.goes_on() {
        world.quiet(world.context(), routine);
        world.quiet(world.internal_context(), routine);
    } else {
        coll::barrier_all(world, routine);
    }
}

/// Collective: completes this PE's operations, and waits for all others.
fn wind_up(process: &Process, routine: &'static str) {
    let library = library(routine);
    profile::within(routine, 0, |library| {
        for context in library.objects().contexts() {
            library.world.quiet(context.context(), routine);
        }
        synchronise(&library.world, routine);
    });
    if let Some(job) = &process.job {
        // From here on a PE that waits for this one waits in vain.
        job.board.announce_leaving(library.world.pe(), library.world.barriers());
    }
}

/// Collective, at the exit of the process: leaves the job as [`stop`] does, and everything where it is, for threads that
/// go on until the process is gone.
fn part(process: &Process, routine: &'static str) -> Result<()> {
    wind_up(process, routine);
    let world = &library(routine).world;
    world.leave_together(routine, true)?;
    if let Some(job) = &process.job {
        job.board.announce(world.pe(), State::Finished);
    }
    Ok(())
}

/// Collective: finalises the library.
fn stop(process: &Process, routine: &'static str) -> Result<()> {
    wind_up(process, routine);
    // SAFETY: the program is in no other routine, as the standard asks of it.
    let retracted = unsafe {
        fast::close();
        profile::close();
        library::retract()
    };
    let Some(Library { world, objects, .. }) = retracted else { refuse(routine) };
    drop(objects);
    world.stop()
}

/// Runs when the process exits, after all that the program wants to be run at exit.
///
/// - Initialised, by `start_pes` or with status 0: finalises, as `start_pes` promises and old programs expect.
/// - Initialised otherwise and another status: the PE has failed. The connection to the launcher just
///   closes, from which the launcher knows.
/// - Finalised: says goodbye to the launcher.
pub fn at_exit(status: c_int) {
    let Ok(mut process) = PROCESS.try_lock() else { return };
    let Some(job) = &process.job else { return };
    if !ending::is_pe() {
        return;
    }
    let bootstrap = job.bootstrap.clone();
    if process.calls > 0 {
        if status != 0 && !process.stays {
            return;
        }
        process.calls = 0;
        let leave = if HAS_WORLD.load(Ordering::Acquire) { part } else { stop };
        if let Err(error) = leave(&process, "exit (implicit shmem_finalize)") {
            report(format_args!("PE {}: exit: {error}", bootstrap.pe()));
            return;
        }
    }
    bootstrap.finalize();
}

#[cold]
fn fail(routine: &str, error: &Error) -> ! {
    let process = process();
    match &process.job {
        Some(job) => {
            let pe = job.bootstrap.pe();
            let speaks = match error {
                Error::Common { speaker, .. } => pe == *speaker as usize,
                _ => true,
            };
            if speaks {
                report(format_args!("PE {pe}: {routine}: {error}"));
            }
            if let Error::Common { .. } = error {
                // Who ends first ends the job: nobody may before the one that speaks.
                let _ = job.bootstrap.barrier();
            }
            world::end(&*job.bootstrap, 1)
        }
        None => {
            report(format_args!("{}{routine}: {error}", unnumbered()));
            std::process::exit(1)
        }
    }
}

/// Which process this is before it is part of a job, as far as a launcher has told.
fn unnumbered() -> String {
    bootstrap::number_of_this_process().map(|pe| format!("PE {pe}: ")).unwrap_or_default()
}
