// SPDX-License-Identifier: Apache-2.0
//! Starting the agents.

use super::line::Line;
use super::relays::groups;
use super::streams::Printer;
use super::{Agent, Event, Fleet, Phase, beat};
use crate::hosts::is_this_machine;
use crate::keeper::Launcher;
use crate::options::{Remote, Rsh};
use crate::output::Copied;
use crate::report;
use crate::spawn::{self, Failure};
use crate::thread;
use crate::wire::{self, GREETING, GREETING_START, News, Sender, Share};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::unistd::Pid;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

/// Has this program be an agent.
pub const AGENT: &str = "--agent";

/// No questions, and no longer than this for a machine that does not answer.
const SSH: [&str; 5] = ["-x", "-a", "-T", "-oBatchMode=yes", "-oConnectTimeout=10"];
/// Slurm's command.
pub const SRUN_NAME: &str = "srun";
/// One task, in the part of the allocation that this step has anyway, with all processors that the job has on the
/// machine. Buffered, output without line ends would be held back.
const SRUN: [&str; 8] = [
    "--quiet",
    "--overlap",
    "--nodes=1",
    "--ntasks=1",
    "--mpi=none",
    "--cpu-bind=none",
    "--unbuffered",
    "--kill-on-bad-exit=0",
];
/// Variables by which users have srun do something else with the output of tasks, count these otherwise, or give a step
/// fewer processors or devices than the job has. The commands that make an allocation set some of them themselves.
const SRUN_CHANGES: [&str; 14] = [
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "SLURM_EXACT",
    "SLURM_LABELIO",
    "SLURM_STDINMODE",
    "SLURM_STDOUTMODE",
    "SLURM_STDERRMODE",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_GPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_EXCLUSIVE",
    "SLURM_SRUN_MULTI",
    "SLURM_DISTRIBUTION",
];
/// What a remote shell may print before the agent speaks.
const NOISE_MAX: usize = 64 << 10;
/// How much is kept of what the command says.
const SAID_MAX: usize = 500;

/// The agents, what arrives from them, and the ends of the output streams.
pub struct Running {
    pub fleet: Fleet,
    pub events: UnboundedReceiver<(usize, Event)>,
    pub outputs: Vec<Copied>,
}

/// Starts an agent on each of the machines, through relays where that is faster and the job does not go
/// on without machines.
pub fn start(
    remote: &Remote,
    names: &[String],
    shares: Vec<Share>,
    launcher: &Launcher,
    goes_on: bool,
) -> Result<Running, Failure> {
    let failure = |text: String| Failure { code: 1, text };
    let own = std::env::current_exe().map_err(|e| failure(format!("cannot start: {e}")))?;
    // Three for each command, and a few dozen of our own. Relays make do with fewer: what cannot be had may
    // not be needed.
    let _ = spawn::allow_files(3 * names.len() as u64 + 64, 0);
    let (sender, events) = unbounded_channel();
    let (remote, names, mask) = (remote.clone(), names.to_vec(), launcher.mask_before);
    let caller = Caller { own, remote, names, mask, events: sender };
    let (here, away): (Vec<usize>, Vec<usize>) =
        (0..caller.names.len()).partition(|host| is_this_machine(&caller.names[*host]));
    let mut relays = vec![];
    let mut agents: Vec<(usize, Agent)> = vec![];
    // Each would start steps of Slurm inside of its own.
    let directly = goes_on || caller.remote.rsh == Rsh::Srun;
    for group in here.chunks(1).chain(groups(&away, directly)) {
        if let [host] = group {
            agents.push((*host, caller.call(*host)?));
            continue;
        }
        let (relay, behind) = caller.call_relay(group, relays.len())?;
        relays.push(relay);
        agents.extend(group.iter().copied().zip(behind));
    }
    agents.sort_by_key(|(host, _)| *host);
    let (printer, outputs) = Printer::start();
    let silence = caller.remote.silence;
    let fleet = Fleet {
        caller,
        agents: agents.into_iter().map(|(_, agent)| agent).collect(),
        relays,
        shares,
        silence,
        beat_at: Instant::now() + beat(silence),
        printer: Some(printer),
        input: None,
        group: launcher.group,
    };
    Ok(Running { fleet, events, outputs })
}

/// What it takes to start an agent.
pub struct Caller {
    pub own: PathBuf,
    remote: Remote,
    /// Of the machines.
    names: Vec<String>,
    /// Signal mask that `oshrun` was started with: an agent of this machine passes its own on to its PEs.
    mask: SigSet,
    events: UnboundedSender<(usize, Event)>,
}

impl Caller {
    /// Starts the agent on a machine.
    pub fn call(&self, host: usize) -> Result<Agent, Failure> {
        let mut command = match is_this_machine(&self.names[host]) {
            true => here(&self.own),
            false => self.there(host, AGENT)?,
        };
        let (child, stdin) = self.launch(&mut command, host)?;
        let pid = Pid::from_raw(child.id() as i32);
        let agent = Agent::new(name_of(&command), Line::Own(Sender::start(stdin)), Some(pid), None);
        self.listen(host, child.stdout.expect("piped"));
        self.hear(host, child.stderr.expect("piped"), &agent.answered);
        Ok(agent)
    }

    /// The command that has `own` run on a machine.
    pub fn there(&self, host: usize, options: &str) -> Result<Command, Failure> {
        there(&self.own, &self.remote, &self.names[host], options)
            .map_err(|text| Failure { code: 1, text })
    }

    /// Runs a command and says hello to it.
    pub fn launch(
        &self,
        command: &mut Command,
        host: usize,
    ) -> Result<(Child, ChildStdin), Failure> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        tie_to_parent(command, last_signal(&name_of(command)));
        let mask = self.mask;
        let unblock = move || Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?);
        // SAFETY: `unblock` makes a system call only, which is all that may be done after a fork.
        unsafe { command.pre_exec(unblock) };
        let mut child = command.spawn().map_err(|e| {
            let (program, name) = (command.get_program().display(), &self.names[host]);
            let why = thread::reason(&e);
            Failure { code: 1, text: format!("cannot run '{program}' to reach host {name}: {why}") }
        })?;
        let mut stdin = child.stdin.take().expect("piped");
        // Fits into any pipe; a command that has ended already is noticed by that.
        let _ = stdin.write_all(format!("{GREETING}\n").as_bytes());
        Ok((child, stdin))
    }

    /// What a machine is called.
    pub fn name(&self, host: usize) -> &str {
        &self.names[host]
    }

    /// Tells of a host.
    pub fn tell(&self) -> impl Fn(usize, Event) + Send + 'static {
        let events = self.events.clone();
        move |host, event| _ = events.send((host, event))
    }

    /// Takes what an agent sends.
    pub fn listen(&self, host: usize, stdout: impl Read + Send + 'static) {
        let tell = self.tell();
        thread::start(move || listen(stdout, |event| tell(host, event)));
    }

    /// Takes what the command says that has started an agent.
    pub fn hear(
        &self,
        host: usize,
        stderr: impl Read + Send + 'static,
        answered: &Arc<AtomicBool>,
    ) {
        let (flag, name) = (answered.clone(), self.names[host].clone());
        let tell = self.tell();
        thread::start(move || tell(host, Event::Said(hear(stderr, &flag, &name))));
    }
}

impl Agent {
    pub fn new(command: String, orders: Line, pid: Option<Pid>, relay: Option<usize>) -> Agent {
        Agent {
            command,
            pid,
            relay,
            phase: Phase::Called,
            orders,
            heard: Instant::now(),
            has_pes: false,
            running: false,
            drained: false,
            status: None,
            said: None,
            ended_at: None,
            wrong: None,
            answered: Arc::new(AtomicBool::new(false)),
        }
    }
}

pub fn here(own: &Path) -> Command {
    let mut command = Command::new(own);
    command.arg(AGENT);
    // What is sent to our own group is passed on to the agents.
    command.process_group(0);
    command
}

fn there(own: &Path, remote: &Remote, name: &str, options: &str) -> Result<Command, String> {
    let rsh = match &remote.rsh {
        Rsh::Command(rsh) => rsh,
        Rsh::Srun => return Ok(by_srun(own, name, options)),
    };
    let mut command = Command::new(&rsh[0]);
    if Path::new(&rsh[0]).file_name().is_some_and(|name| name == "ssh") {
        command.args(SSH);
    }
    let quoted = own.to_str().filter(|path| !path.contains('\''));
    let path = quoted.ok_or_else(|| {
        format!("'{}' is a path that cannot be given to a remote shell", own.display())
    })?;
    command.args(&rsh[1..]).arg(name).arg(format!("exec '{path}' {options}"));
    Ok(command)
}

fn by_srun(own: &Path, name: &str, options: &str) -> Command {
    let mut command = Command::new(SRUN_NAME);
    command.args(SRUN).arg(format!("--nodelist={name}")).arg(own).args(options.split(' '));
    SRUN_CHANGES.iter().for_each(|name| _ = command.env_remove(name));
    // Interrupted from a terminal it would end the agent by itself; what is sent to our own group is passed on.
    command.process_group(0);
    command
}

/// What ends a command of this name that has started an agent. Told to end, srun tells the agent; killed, it leaves the
/// agent waiting.
pub fn last_signal(command: &str) -> Signal {
    if command == SRUN_NAME { Signal::SIGTERM } else { Signal::SIGKILL }
}

/// "ssh" of "/usr/bin/ssh".
pub fn name_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned()
}

/// Has the kernel send a command a signal when the thread that starts it ends.
pub fn tie_to_parent(command: &mut Command, last: Signal) {
    let parent = std::process::id();
    let setup = move || {
        nix::sys::prctl::set_pdeathsig(last)?;
        match std::os::unix::process::parent_id() == parent {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    };
    // SAFETY: `setup` makes system calls only, which is all that may be done after a fork.
    unsafe { command.pre_exec(setup) };
}

/// Takes what an agent sends until it ends or sends something wrong.
fn listen(from: impl Read, tell: impl Fn(Event)) {
    let mut from = BufReader::with_capacity(64 << 10, from);
    match greeting(&mut from) {
        Some(line) => tell(Event::Greeting(line)),
        None => return tell(Event::End),
    }
    loop {
        match wire::read::<News>(&mut from) {
            Ok(Some(news)) => tell(Event::News(news)),
            Ok(None) => return tell(Event::End),
            Err(why) => return tell(Event::Wrong(format!("is lost: its agent sends {why}"))),
        }
    }
}

/// The agent's first line, after whatever a remote shell prints; `None` if there is none.
pub fn greeting(from: &mut impl BufRead) -> Option<String> {
    let mut from = from.take(NOISE_MAX as u64);
    let mut line = vec![];
    while from.read_until(b'\n', &mut line).ok()? > 0 {
        let text = String::from_utf8_lossy(&line);
        if let Some(at) = text.find(GREETING_START) {
            return Some(text[at..].trim_end().to_owned());
        }
        line.clear();
    }
    None
}

/// What `srun` says although nothing is wrong with it: where it binds no tasks, it need not be told not to; and that
/// an agent ends with an error is what the agent has told already.
fn is_matter_of_course(line: &str) -> bool {
    const SAYINGS: [&str; 2] = ["lacks support for cpu binding", "Exited with exit code"];
    line.starts_with("srun: ") && SAYINGS.iter().any(|saying| line.contains(saying))
}

/// Collects what a command says until the agent answers, and passes the rest on. Gives what was
/// collected as one line.
fn hear(from: impl Read, answered: &AtomicBool, name: &str) -> String {
    let mut said = String::new();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let line = line.trim();
        let line = line.strip_prefix("oshrun: ").unwrap_or(line);
        if is_matter_of_course(line) {
            continue;
        }
        if answered.load(Ordering::Relaxed) {
            report::line(format_args!("host {name}: {line}"));
        } else if !line.is_empty() && said.len() < SAID_MAX {
            let between = if said.is_empty() { "" } else { "; " };
            said = format!("{said}{between}{line}");
        }
    }
    said.chars().take(SAID_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_remote_shell_prints_is_skipped() {
        let noise = format!("Welcome!\n\nprompt> {GREETING}\n\0\0\0\0");
        assert_eq!(greeting(&mut noise.as_bytes()).as_deref(), Some(GREETING));
        assert_eq!(greeting(&mut &b"no agent\nhere"[..]), None);
        let endless = vec![b'x'; 10 * NOISE_MAX];
        assert_eq!(greeting(&mut endless.as_slice()), None);
    }

    #[test]
    fn what_srun_says_of_course_is_left_out_and_all_else_is_not() {
        let said = "srun: cluster configuration lacks support for cpu binding\n\
                    srun: error: n2: task 0: Exited with exit code 1\n\
                    srun: error: Node failure on n2\nother: Exited with exit code 1\n";
        let kept = hear(said.as_bytes(), &AtomicBool::new(false), "n2");
        assert_eq!(kept, "srun: error: Node failure on n2; other: Exited with exit code 1");
    }

    #[test]
    fn ssh_gets_its_options_and_other_commands_theirs() {
        let shown = |rsh: &str| -> Vec<String> {
            let rsh = rsh.split(' ').map(str::to_owned).collect();
            let remote = Remote { rsh: Rsh::Command(rsh), ..Remote::default() };
            let command = there(Path::new("/opt/my bin/oshrun"), &remote, "n1", AGENT).unwrap();
            let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
            std::iter::once(command.get_program().to_string_lossy().into_owned())
                .chain(args)
                .collect()
        };
        assert_eq!(
            shown("rsh -l me"),
            ["rsh", "-l", "me", "n1", "exec '/opt/my bin/oshrun' --agent"]
        );
        let ssh = shown("/usr/bin/ssh -p 22");
        assert!(ssh.contains(&"-oBatchMode=yes".into()));
        assert_eq!(ssh[ssh.len() - 4..], ["-p", "22", "n1", "exec '/opt/my bin/oshrun' --agent"]);
        assert!(there(Path::new("/it's/oshrun"), &Remote::default(), "n1", AGENT).is_err());
        // No shell is between srun and the agent.
        let slurm = Remote { rsh: Rsh::Srun, ..Remote::default() };
        let command = there(Path::new("/it's/oshrun"), &slurm, "n1", AGENT).unwrap();
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(command.get_program(), "srun");
        assert_eq!(args[args.len() - 3..], ["--nodelist=n1", "/it's/oshrun", "--agent"]);
        assert!(command.get_envs().any(|(name, value)| name == "SLURM_LABELIO" && value.is_none()));
    }
}
