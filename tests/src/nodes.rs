// SPDX-License-Identifier: Apache-2.0
//! Several hosts on one machine, for tests of what goes on between hosts.
//!
//! ```no_run
//! # use tombolo_tests::nodes::Nodes;
//! let nodes = Nodes::start(2).unwrap_or_else(|why| panic!("{why}"));
//! let said = nodes.login("ssh").args(["n2", "hostname"]).output().unwrap();
//! assert_eq!(said.stdout, b"n2\n");
//! ```
//!
//! - Hosts are called `n1`, `n2` and so on, and have the addresses `10.99.0.1` and following on an
//!   interface `eth0`; where there are two networks ([`Nodes::with_networks`]), also `10.98.0.1` and following
//!   on an `eth1`, and so on. Each has its own network, host name, IPC, processes, `/dev/shm`, `/run` and
//!   `/tmp`, and an `sshd`. All other files are those of the machine, as on a cluster with a shared
//!   file system.
//! - Tests see them from a host `login` (`10.99.0.254`), which has its own network and host name, and
//!   the files and processes of the machine. `ssh n1` works from any host to any other without
//!   questions; the user's own keys and settings are neither needed nor touched.
//! - Nothing is left behind, however the test program ends: a host lives as long as this process
//!   holds a pipe open, and the kernel removes all that belongs to it. Processes of the login host
//!   are ordinary children of the test; let what stays in the background run on a host.
//! - Several sets of hosts may exist at a time. They do not see each other.
//!
//! Needs Linux, root, and the programs of Debian's `iproute2`, `openssh-server` and `openssh-client`;
//! [`unavailable`] says what is missing.

use nix::sched::{CloneFlags, setns};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

/// What the hosts are made with.
const PROGRAMS: [&str; 10] = [
    "bash",
    "ip",
    "tc",
    "mount",
    "nsenter",
    "unshare",
    "ssh",
    "ssh-keygen",
    "hostname",
    "/usr/sbin/sshd",
];

/// A login host and the hosts beside it; they end with this value.
pub struct Nodes {
    login: Anchor,
    hosts: Vec<Anchor>,
    networks: usize,
}

/// A process that keeps the namespaces of a host, and a pipe that keeps the process.
struct Anchor {
    child: Child,
    /// The first process that is in all the namespaces.
    pid: u32,
}

/// A process of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number as the test sees it, not the one that it has on its host.
    pub pid: i32,
    /// Its command line, arguments separated by spaces; empty when it has ended and nobody has
    /// taken notice.
    pub command: String,
}

/// Why there can be no hosts on this machine, if so: the reason to give for an ignored test.
pub fn unavailable() -> Option<&'static str> {
    static REASON: LazyLock<Option<String>> = LazyLock::new(|| {
        // SAFETY: only asks, and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return Some("hosts in namespaces need root".into());
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories: Vec<_> = std::env::split_paths(&path).collect();
        let is_there = |name: &str| directories.iter().any(|d| d.join(name).is_file());
        match PROGRAMS.iter().find(|name| !is_there(name)) {
            Some(missing) => Some(format!("{missing} is not installed")),
            None => Nodes::start(0).err(),
        }
    });
    REASON.as_deref()
}

impl Nodes {
    /// Makes `count` hosts, at most 200, on one network. The error says why the machine does not allow it.
    pub fn start(count: usize) -> Result<Nodes, String> {
        Nodes::with_networks(count, 1)
    }

    /// The same, on each of several networks. `ssh` takes the first one.
    pub fn with_networks(count: usize, networks: usize) -> Result<Nodes, String> {
        assert!(count <= 200, "the addresses end at 10.99.0.200");
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "--ipc", "--mount", "--propagation", "private"]);
        command.args(["bash", "-c", include_str!("nodes/login.sh"), "login", &count.to_string()]);
        command.arg(networks.to_string());
        let login = Anchor::start(&mut command, |child| Ok(child.id()))?;
        let mut nodes = Nodes { login, hosts: vec![], networks };
        for host in 1..=count {
            let anchor = nodes.add(host)?;
            nodes.hosts.push(anchor);
        }
        Ok(nodes)
    }

    fn add(&self, host: usize) -> Result<Anchor, String> {
        let own = std::env::current_exe().map_err(|e| format!("the test's own place: {e}"))?;
        let mut command = self.login("unshare");
        command.args(["--net", "--uts", "--ipc", "--mount", "--propagation", "private"]);
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["bash", "-c", include_str!("nodes/host.sh"), "host", &name(host)]).arg(own);
        let anchor = Anchor::start(&mut command, first_child)?;
        let pid = anchor.pid.to_string();
        for network in 0..self.networks {
            let address = format!("10.{}.0.{host}/24", 99 - network);
            let outside = cable(host, network);
            let link = |words: &str| self.ip(words.split(' '));
            link(&format!("link add {outside} type veth peer name eth{network} netns {pid}"))?;
            link(&format!("link set {outside} master bridge{network} up"))?;
            let inside = |words: &str| succeed(on(&anchor, "ip").args(words.split(' ')));
            inside(&format!("address add {address} dev eth{network}"))?;
            inside(&format!("link set eth{network} up"))?;
        }
        Ok(anchor)
    }

    /// A program to be run on the login host, as a child of the test, with its directory.
    pub fn login(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        self.enter(&mut command);
        command
    }

    /// Has a command run on the login host.
    pub fn enter(&self, command: &mut Command) {
        let open = |kind: &str| File::open(format!("/proc/{}/ns/{kind}", self.login.pid));
        let spaces: io::Result<Vec<File>> =
            ["net", "uts", "ipc", "mnt"].map(open).into_iter().collect();
        let directory = std::env::current_dir().and_then(|directory| {
            CString::new(directory.as_os_str().as_bytes()).map_err(io::Error::from)
        });
        let enter = move || {
            let error =
                |e: &io::Error| io::Error::from_raw_os_error(e.raw_os_error().unwrap_or(libc::EIO));
            for space in spaces.as_ref().map_err(error)? {
                setns(space, CloneFlags::empty())?;
            }
            // Entering another view of the files leads to its root.
            nix::unistd::chdir(directory.as_deref().map_err(error)?)?;
            Ok(())
        };
        // SAFETY: `enter` makes system calls only, which is all that may be done after a fork.
        unsafe { command.pre_exec(enter) };
    }

    /// A program to be run on host `host`, from 1. The child is `nsenter`, which does not pass
    /// signals on; see [`Nodes::processes`].
    pub fn on(&self, host: usize, program: impl AsRef<OsStr>) -> Command {
        on(self.anchor(host), program)
    }

    /// All processes of a host but those that belong to this fixture.
    pub fn processes(&self, host: usize) -> Vec<Process> {
        let space = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let first = self.anchor(host).pid;
        let Some(wanted) = space(&first.to_string()) else { return vec![] };
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let found =
            names.filter(|name| name.bytes().all(|b| b.is_ascii_digit())).filter_map(|name| {
                let belongs = space(&name)? == wanted;
                let mut command = std::fs::read(format!("/proc/{name}/cmdline")).ok()?;
                command.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
                let command = String::from_utf8_lossy(&command).trim_end().to_owned();
                let process = Process { pid: name.parse().ok()?, command };
                belongs.then_some(process)
            });
        let ours =
            |p: &Process| p.pid == first as i32 || p.command.contains("/usr/sbin/sshd [listener]");
        found.filter(|process| !ours(process)).collect()
    }

    /// Pulls out the network cables of a host, or plugs them in again. What is sent gets lost; nobody
    /// is told.
    pub fn plug(&self, host: usize, plugged: bool) {
        (0..self.networks).for_each(|network| self.plug_one(host, network, plugged));
    }

    /// The same with the cable of one network, from 0.
    pub fn plug_one(&self, host: usize, network: usize, plugged: bool) {
        let state = if plugged { "up" } else { "down" };
        let done = self.ip(["link", "set", &cable(host, network), state]);
        done.unwrap_or_else(|why| panic!("{why}"));
    }

    /// Takes the cable of one network of a host out of the switch, where the host sees its end plugged still.
    pub fn unpatch(&self, host: usize, network: usize) {
        let done = self.ip(["link", "set", &cable(host, network), "nomaster"]);
        done.unwrap_or_else(|why| panic!("{why}"));
    }

    /// Lets the cables of a host carry no more than this in either direction, as `tc` writes rates. The
    /// error says why the machine does not allow it.
    pub fn limit(&self, host: usize, rate: &str) -> Result<(), String> {
        for network in 0..self.networks {
            let words = |dev: &str| {
                format!("qdisc add dev {dev} root tbf rate {rate} burst 256kb latency 50ms")
            };
            succeed(self.login("tc").args(words(&cable(host, network)).split(' ')))?;
            let inside = words(&format!("eth{network}"));
            succeed(self.on(host, "tc").args(inside.split(' ')))?;
        }
        Ok(())
    }

    /// Ends a host as a power failure does: at once, without a word to the others. Its number is
    /// not used again.
    pub fn power_off(&mut self, host: usize) {
        self.plug(host, false);
        self.hosts[host - 1].end();
    }

    fn ip<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
        succeed(self.login("ip").args(words))
    }

    fn anchor(&self, host: usize) -> &Anchor {
        assert!((1..=self.hosts.len()).contains(&host), "host {host} of {}", self.hosts.len());
        &self.hosts[host - 1]
    }
}

/// The end of a cable that is not in the host.
fn cable(host: usize, network: usize) -> String {
    format!("cable{host}-{network}")
}

/// What a host is called.
pub fn name(host: usize) -> String {
    format!("n{host}")
}

fn on(anchor: &Anchor, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &anchor.pid.to_string(), "--all"]);
    if let Ok(directory) = std::env::current_dir() {
        let mut option = OsString::from("--wdns=");
        option.push(directory);
        command.arg(option);
    }
    command.arg(program);
    command
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn first_child(child: &Child) -> io::Result<u32> {
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    let children = std::fs::read_to_string(Path::new(&path))?;
    children.trim().parse().map_err(|_| io::Error::other(format!("{path}: '{children}'")))
}

impl Anchor {
    /// Runs a script that says when it is ready, and waits until then.
    fn start(
        command: &mut Command,
        pid: impl FnOnce(&Child) -> io::Result<u32>,
    ) -> Result<Anchor, String> {
        let why =
            |e: &dyn std::fmt::Display| format!("hosts in namespaces cannot be made here: {e}");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| why(&e))?;
        let mut ready = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let read = stdout.read_line(&mut ready).map_err(|e| why(&e));
        // What is left of the daemons' output goes nowhere: they have their own descriptors.
        let mut anchor = Anchor { pid: child.id(), child };
        if read? == 0 {
            let mut said = String::new();
            let mut stderr = anchor.child.stderr.take().expect("piped");
            stderr.read_to_string(&mut said).map_err(|e| why(&e))?;
            return Err(why(&said.trim()));
        }
        anchor.pid = pid(&anchor.child).map_err(|e| why(&e))?;
        Ok(anchor)
    }

    fn end(&mut self) {
        drop(self.child.stdin.take());
        // `unshare` takes its child along.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        self.end();
    }
}
