// SPDX-License-Identifier: Apache-2.0
//! A cluster under Slurm on this machine, for as long as a test lives: one controller and some nodes
//! on loopback, or on hosts in namespaces.
//!
//! The daemons, and with them all that they start, live in a process namespace of their own, whose
//! first process dies with the test: the kernel then ends all others. What they write goes to a file
//! system in memory that nobody else sees. Needs root, as mounting does.

use crate::nodes::{self, Nodes};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest time until the nodes are ready.
const READY: Duration = Duration::from_secs(30);
/// Where the daemons see their own file system.
const PRIVATE: &str = "/run";

/// A running cluster.
pub struct Slurm {
    directory: PathBuf,
    /// Closing it ends the cluster.
    end: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
    /// Ways into the hosts on which its daemons run.
    entered: Vec<Child>,
}

/// Why there can be no cluster here.
pub fn missing() -> Option<&'static str> {
    if !fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        return Some("Slurm's daemons need root here");
    }
    let daemons = ["slurmctld", "slurmd", "srun", "sbatch", "salloc"];
    let there = |name: &str| {
        let folders = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
        folders.iter().any(|folder| Path::new(folder).join(name).exists())
    };
    (!daemons.iter().all(|name| there(name))).then_some("Slurm (slurm-wlm) is not installed")
}

impl Slurm {
    /// Starts a cluster of `nodes` nodes; its configuration is in `directory`.
    pub fn start(directory: &Path, nodes: usize) -> Result<Slurm, String> {
        let failed = |what: &str, e: io::Error| format!("{what}: {e}");
        fs::create_dir_all(directory).map_err(|e| failed("the cluster's directory", e))?;
        let ports = free_ports(nodes + 1).map_err(|e| failed("ports", e))?;
        let cgroup = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n";
        fs::write(directory.join("cgroup.conf"), cgroup).map_err(|e| failed("cgroup.conf", e))?;
        let name = nix::unistd::gethostname().unwrap_or_default();
        let name = name.to_string_lossy();
        let machine = name.split('.').next().unwrap_or("localhost");
        let lines: Vec<String> = (1..=nodes)
            .map(|node| {
                let port = ports[node];
                format!("node{node} NodeHostname={machine} NodeAddr=127.0.0.1 Port={port}")
            })
            .collect();
        let controller = format!("{machine}(127.0.0.1)\nSlurmctldPort={}", ports[0]);
        let configuration = configuration(&controller, &lines, "node");
        fs::write(directory.join("slurm.conf"), configuration)
            .map_err(|e| failed("slurm.conf", e))?;

        let mut daemons = daemons(directory, nodes);
        let (end, ended): (Sender<()>, Receiver<()>) = channel();
        let (started, start) = channel();
        // The thread that starts a process must live as long as the process is to be bound to it.
        let keeper = std::thread::spawn(move || {
            let child = daemons.spawn();
            let _ = started.send(child.as_ref().map(drop).map_err(|e| e.to_string()));
            if let Ok(mut child) = child {
                let _ = ended.recv();
                let _ = child.kill();
                let _ = child.wait();
            }
        });
        let directory = directory.to_owned();
        let slurm = Slurm { directory, end: Some(end), keeper: Some(keeper), entered: Vec::new() };
        start.recv().map_err(|e| e.to_string())?.map_err(|e| format!("unshare: {e}"))?;
        slurm.wait_until_ready(nodes, |_| {})?;
        Ok(slurm)
    }

    /// Starts a cluster whose nodes are the first `count` of some hosts, which its commands have to
    /// enter. What it runs ends with the hosts at the latest.
    pub fn start_on(directory: &Path, hosts: &Nodes, count: usize) -> Result<Slurm, String> {
        let failed = |e: io::Error| format!("the cluster's directory: {e}");
        fs::create_dir_all(directory).map_err(failed)?;
        let cgroup = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n";
        fs::write(directory.join("cgroup.conf"), cgroup).map_err(failed)?;
        let node = |host: usize| format!("{} NodeAddr=10.99.0.{host}", nodes::name(host));
        let nodes: Vec<String> = (1..=count).map(node).collect();
        let configuration = configuration("n1(10.99.0.1)", &nodes, "n");
        fs::write(directory.join("slurm.conf"), configuration).map_err(failed)?;
        let log = fs::File::create(directory.join("log")).map_err(failed)?;
        let directory = directory.to_owned();
        let mut slurm = Slurm { directory, end: None, keeper: None, entered: Vec::new() };
        for host in 1..=count {
            let controller = if host == 1 { "mkdir -p /run/state; slurmctld -D -c & " } else { "" };
            let name = nodes::name(host);
            let script = format!(
                "PATH=$PATH:/usr/sbin:/usr/local/sbin; {controller}\
                 mkdir -p {PRIVATE}/spool.{name} {PRIVATE}/tmp.{name}; exec slurmd -D"
            );
            let mut enter = hosts.on(host, "sh");
            enter.args(["-c", &script]).env("SLURM_CONF", slurm.directory.join("slurm.conf"));
            enter.stdin(Stdio::null()).stdout(Stdio::null());
            enter.stderr(log.try_clone().map_err(failed)?);
            slurm.entered.push(enter.spawn().map_err(|e| format!("nsenter: {e}"))?);
        }
        slurm.wait_until_ready(count, |command| hosts.enter(command))?;
        Ok(slurm)
    }

    /// A command that finds this cluster, such as `srun`.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.directory.join("slurm.conf"));
        command
    }

    /// Whether `srun` has an `--mpi` of this name.
    pub fn offers(&self, mpi: &str) -> bool {
        let listed = self.command("srun").arg("--mpi=list").output();
        listed.is_ok_and(|listed| {
            let text = [listed.stdout, listed.stderr].concat();
            String::from_utf8_lossy(&text).split_whitespace().any(|word| word == mpi)
        })
    }

    fn wait_until_ready(&self, nodes: usize, enter: impl Fn(&mut Command)) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let mut sinfo = self.command("sinfo");
            enter(&mut sinfo);
            let idle = sinfo.args(["-h", "-t", "idle", "-o", "%D"]).output();
            let idle = idle.map_err(|e| format!("sinfo: {e}"))?;
            if String::from_utf8_lossy(&idle.stdout).trim() == nodes.to_string() {
                return Ok(());
            }
            if begin.elapsed() > READY {
                let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                return Err(format!(
                    "Slurm's nodes are not ready after {READY:?}; it says:\n{log}"
                ));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
        for enter in &mut self.entered {
            // The daemons themselves end with their hosts.
            let _ = enter.kill();
            let _ = enter.wait();
        }
    }
}

/// Ports that nobody listens on now, the controller's first.
fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// The configuration of a controller and of nodes, whose names are `name` and a number.
fn configuration(controller: &str, nodes: &[String], name: &str) -> String {
    let count = nodes.len();
    let nodes: String = nodes.iter().map(|node| format!("NodeName={node} CPUs=8\n")).collect();
    format!(
        "ClusterName=test\n\
         SlurmctldHost={controller}\n\
         SlurmUser=root\n\
         AuthType=auth/none\n\
         CredType=cred/none\n\
         MpiDefault=none\n\
         ProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\n\
         JobAcctGatherType=jobacct_gather/none\n\
         SelectType=select/linear\n\
         SchedulerType=sched/builtin\n\
         ReturnToService=2\n\
         KillWait=2\n\
         MailProg=/bin/true\n\
         SlurmctldPidFile={PRIVATE}/slurmctld.pid\n\
         SlurmdPidFile={PRIVATE}/slurmd.%n.pid\n\
         SlurmdSpoolDir={PRIVATE}/spool.%n\n\
         StateSaveLocation={PRIVATE}/state\n\
         SlurmdParameters=config_overrides\n\
         TmpFS={PRIVATE}/tmp.%n\n\
         {nodes}\
         PartitionName=all Nodes={name}[1-{count}] Default=YES MaxTime=INFINITE State=UP \
         OverSubscribe=FORCE:8\n"
    )
}

/// The daemons, in namespaces of their own.
fn daemons(directory: &Path, nodes: usize) -> Command {
    let script = format!(
        "mount -t tmpfs tmpfs {PRIVATE} && mkdir {PRIVATE}/state || exit\n\
         slurmctld -D -c &\n\
         for node in $(seq {nodes}); do\n\
           mkdir {PRIVATE}/spool.node$node {PRIVATE}/tmp.node$node\n\
           slurmd -D -N node$node &\n\
         done\n\
         wait"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]);
    command.arg(script).env("SLURM_CONF", directory.join("slurm.conf"));
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/usr/local/sbin"));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let log = fs::File::create(directory.join("log"));
    command.stderr(log.map_or(Stdio::null(), Stdio::from));
    let die_with_parent = || {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
        Ok(())
    };
    // SAFETY: a system call only, which is all that may be done after a fork.
    unsafe { command.pre_exec(die_with_parent) };
    command
}
