// SPDX-License-Identifier: Apache-2.0
//! Virtual machines for tests of what needs devices or kernels that this machine does not have.
//!
//! ```no_run
//! # use tombolo_tests::guests::{Guests, Spec};
//! let guests = Guests::start(2, &Spec::default()).unwrap_or_else(|why| panic!("{why}"));
//! let said = guests.on(1, "hostname").output().unwrap();
//! assert_eq!(said.stdout, b"g1\n");
//! ```
//!
//! - Guests are called `g1`, `g2` and so on. A guest runs a kernel of Debian under QEMU without the
//!   help of this machine's processor: it is slow, and exists wherever QEMU does.
//! - Its files are those of this machine, read only, with directories of its own for what changes:
//!   `/tmp`, `/run`, `/dev/shm`. Programs built here run there under the same paths.
//! - Commands run over `ssh`, through a port of the loop-back interface of this machine.
//!   [`Guests::rsh`] is the command for `oshrun --rsh`.
//! - Nothing is left behind, however the test program ends: a guest lives as long as this process
//!   holds a pipe open, and never longer than [`LIFETIME`].
//!
//! QEMU and the kernel are unpacked into the build directory by `cargo dev guests` or
//! `cargo dev test`; [`unavailable`] says what is missing.

mod initramfs;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// No guest runs for longer.
pub const LIFETIME: Duration = Duration::from_secs(3600);
/// To boot; a machine with other things to do takes many times the usual six seconds.
const BOOT: Duration = Duration::from_secs(400);

/// A kernel that gets no processor for a while takes its timers and itself for broken.
const PATIENT: &str = "no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1";

/// Turns off what no test needs and what takes a guest long: defences against attacks, tests of ciphers, clearing
/// memory that is about to be written, and write protection of the kernel's own code.
const BRIEF: &str = "mitigations=off cryptomgr.notests init_on_alloc=0 rodata=off";
/// A processor with everything that QEMU offers, except what QEMU does slowly: five levels of page tables, and the
/// instructions that copy byte by byte.
const PROCESSOR: &str = "max,la57=off,erms=off,fsrm=off";

/// Parameters by which a guest reads the time from the counter of its processors, which is that of this
/// machine. A kernel that gets no processor for a while measures it wrongly, or finds the processors out of
/// step, and reads a timer outside of the guest from then on: that takes microseconds.
fn clock() -> &'static str {
    static PARAMETERS: LazyLock<String> = LazyLock::new(|| match counter_khz() {
        Some(khz) => format!("tsc=reliable tsc_early_khz={khz}"),
        None => String::new(),
    });
    &PARAMETERS
}

/// How fast this machine's processors count.
fn counter_khz() -> Option<u64> {
    let (begun, first) = time_and_counter()?;
    std::thread::sleep(Duration::from_millis(20));
    let (ended, last) = time_and_counter()?;
    let ns = (ended - begun).as_nanos();
    u64::try_from(u128::from(last.checked_sub(first)?) * 1_000_000 / ns).ok()
}

/// Both read at the same time.
#[cfg(target_arch = "x86_64")]
fn time_and_counter() -> Option<(Instant, u64)> {
    (0..1000).find_map(|_| {
        let before = Instant::now();
        // SAFETY: reads a counter that every such processor has.
        let counter = unsafe { std::arch::x86_64::_rdtsc() };
        // Nobody else had the processor between them.
        (before.elapsed() < Duration::from_micros(5)).then_some((before, counter))
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn time_and_counter() -> Option<(Instant, u64)> {
    None
}

/// What guests are to have.
pub struct Spec<'a> {
    /// Options of QEMU for guest `n`, from 1: its devices.
    pub devices: &'a dyn Fn(usize) -> Vec<String>,
    /// Parameters of the kernel.
    pub kernel: &'a str,
    /// Kernel modules to load.
    pub modules: &'a [&'a str],
    /// A script that a guest runs before it is ready. `$1` is its number.
    pub prepare: &'a str,
    /// MiB of memory.
    pub memory: usize,
    /// Processors.
    pub processors: usize,
    /// Whether some devices are those of other programs (vfio-user), which share the memory of the
    /// guests.
    pub served: bool,
}

impl Default for Spec<'_> {
    fn default() -> Self {
        Spec {
            devices: &|_| vec![],
            kernel: "",
            modules: &[],
            prepare: "",
            memory: 384,
            processors: 1,
            served: false,
        }
    }
}

/// Running guests; they end with this value.
pub struct Guests {
    guests: Vec<Guest>,
    begun: Instant,
    /// Keys, scripts, consoles.
    directory: PathBuf,
    /// Sockets, whose names must be short.
    sockets: PathBuf,
}

struct Guest {
    /// A shell that ends QEMU when its standard input does.
    keeper: Child,
    /// The connection that all commands share: to exchange keys takes a guest seconds. It ends with
    /// the guest.
    ssh: Option<Child>,
    console: PathBuf,
}

/// Why there can be no guests on this machine, if so: the reason to give for an ignored test.
pub fn unavailable() -> Option<&'static str> {
    static REASON: LazyLock<Option<String>> = LazyLock::new(|| {
        if !cfg!(target_arch = "x86_64") {
            return Some(
                "guests run the programs of this machine, and are machines for x86-64".into(),
            );
        }
        // SAFETY: only asks, and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return Some("a guest has the files of this machine, which root may read".into());
        }
        if !qemu().join(QEMU).is_file() || !system().join("boot").is_dir() {
            return Some(
                "QEMU and a kernel are not there: `cargo dev guests` unpacks them, as root".into(),
            );
        }
        let needed =
            ["/bin/bash", "/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen", "/usr/sbin/ip"];
        let missing = needed.iter().find(|program| !Path::new(program).is_file());
        missing.map(|program| format!("{program} is not installed"))
    });
    REASON.as_deref()
}

const QEMU: &str = "usr/bin/qemu-system-x86_64";

/// Where the kernel with its modules, `busybox` and perftest are.
pub fn system() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    own.parent().unwrap_or(own).join(target).join("guests/system")
}

/// Where QEMU is, of a later Debian than the kernel, with all libraries that it needs.
fn qemu() -> PathBuf {
    system().with_file_name("qemu")
}

/// The options of QEMU that tell it of a device which a program serves at a socket.
pub fn served_device(socket: &Path, address: &str) -> [String; 2] {
    let socket = socket.display();
    let device = format!(
        r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{socket}"}},"addr":"{address}"}}"#
    );
    ["-device".to_owned(), device]
}

impl Guests {
    /// Boots `count` guests. The error says what went wrong, with the last lines of the console.
    pub fn start(count: usize, spec: &Spec<'_>) -> Result<Guests, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("run-{}-{number}", std::process::id());
        let sockets = std::env::temp_dir().join(format!("tombolo-guests-{name}"));
        let directory = system().with_file_name(name);
        let begun = Instant::now();
        let mut guests = Guests { guests: vec![], begun, directory, sockets };
        let failed = |e: io::Error| format!("guests cannot be made: {e}");
        guests.prepare(spec).map_err(failed)?;
        let mut config = String::new();
        for guest in 1..=count {
            let port = guests.boot(guest, spec).map_err(failed)?;
            let keys = guests.directory.display();
            config += &format!("Host g{guest}\n  HostName 127.0.0.1\n  Port {port}\n");
            config += &format!("  IdentityFile {keys}/user\n  HostKeyAlias guest\n");
            config += &format!("  UserKnownHostsFile {keys}/known_hosts\n  User root\n");
            config += "  IdentitiesOnly yes\n  LogLevel ERROR\n";
            config += &format!("  ControlPath {}\n", guests.socket(guest).display());
        }
        fs::write(guests.directory.join("ssh_config"), config).map_err(failed)?;
        for guest in 1..=count {
            guests.await_boot(guest, begun)?;
            guests.connect(guest, begun)?;
        }
        Ok(guests)
    }

    fn socket(&self, guest: usize) -> PathBuf {
        self.sockets.join(format!("g{guest}"))
    }

    /// A command of the shell, to be run in a guest. The child is `ssh`.
    pub fn on(&self, guest: usize, command: &str) -> Command {
        let mut ssh = Command::new("/usr/bin/ssh");
        ssh.arg("-F").arg(self.directory.join("ssh_config"));
        ssh.args(["-oBatchMode=yes", &format!("g{guest}"), command]);
        ssh.stdin(Stdio::null());
        ssh
    }

    /// The command that reaches guests by their names, for `oshrun --rsh`.
    pub fn rsh(&self) -> String {
        format!("/usr/bin/ssh -F {}", self.directory.join("ssh_config").display())
    }

    /// How long ago they were started.
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Ends a guest as a power failure does.
    pub fn power_off(&mut self, guest: usize) {
        self.guests[guest - 1].end();
    }

    /// The end of what a guest's kernel and first process have said.
    pub fn console(&self, guest: usize) -> String {
        let all = fs::read(&self.guests[guest - 1].console).unwrap_or_default();
        let text = String::from_utf8_lossy(&all);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// What all guests need.
    fn prepare(&self, spec: &Spec<'_>) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        fs::create_dir_all(&self.sockets)?;
        let place = |name: &str| self.directory.join(name);
        for key in ["user", "host"] {
            let mut keygen = Command::new("/usr/bin/ssh-keygen");
            keygen.args(["-qt", "ed25519", "-N", "", "-f"]).arg(place(key));
            if !keygen.stdin(Stdio::null()).status()?.success() {
                return Err(io::Error::other("ssh-keygen failed"));
            }
        }
        let host_key = fs::read_to_string(place("host.pub"))?;
        fs::write(place("known_hosts"), format!("guest {host_key}"))?;
        fs::write(place("boot.sh"), include_str!("guests/boot.sh"))?;
        fs::write(place("prepare.sh"), spec.prepare)?;
        fs::write(place("modules"), spec.modules.join(" "))?;
        let mut image = File::create(place("initramfs"))?;
        image.write_all(&initramfs::build(&system(), &place("boot.sh"))?)
    }

    /// Starts a guest; returns the port at which its `sshd` is reached.
    fn boot(&mut self, guest: usize, spec: &Spec<'_>) -> io::Result<u16> {
        let system = system();
        let console = self.directory.join(format!("console-{guest}"));
        // Free now; should another program take it before QEMU does, QEMU ends and says so.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        // Until it can be told, the end of this process ends the shell, and with it QEMU.
        let mut command = Command::new("/bin/bash");
        let seconds = LIFETIME.as_secs();
        let keep = format!("\"$@\" < /dev/null & read -r -t {seconds} _; kill -9 $!");
        command.args(["-c", &keep, "keeper"]);
        let place = qemu();
        let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|l| place.join(l));
        // Its C library is a later one than that of this machine, which only its own loader can start.
        command.arg(place.join("usr/lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path");
        command.arg(std::env::join_paths(libraries).map_err(io::Error::other)?);
        command.arg(place.join(QEMU));
        for directory in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            command.arg("-L").arg(place.join(directory));
        }
        let append = format!(
            "console=ttyS0 quiet panic=-1 {BRIEF} {PATIENT} {} tombolo.guest={guest} {}",
            clock(),
            spec.kernel
        );
        command.args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", PROCESSOR]);
        if spec.served {
            let memory = format!("memory-backend-memfd,id=memory,share=on,size={}M", spec.memory);
            command.args(["-object", &memory, "-machine", "memory-backend=memory"]);
        }
        command.args(["-smp", &spec.processors.to_string()]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        command.args(["-m", &spec.memory.to_string(), "-append", &append]);
        command.arg("-kernel").arg(initramfs::kernel(&system)?);
        command.arg("-initrd").arg(self.directory.join("initramfs"));
        command.args(["-serial", &format!("file:{}", console.display())]);
        let files = "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap";
        command.args(["-fsdev", files, "-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]);
        let network = format!("user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22");
        command.args(["-netdev", &network, "-device", "virtio-net-pci,netdev=net,romfile="]);
        command.args((spec.devices)(guest));
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(File::create(self.directory.join(format!("qemu-{guest}")))?);
        self.guests.push(Guest { keeper: command.spawn()?, ssh: None, console });
        Ok(port)
    }

    fn await_boot(&mut self, guest: usize, begun: Instant) -> Result<(), String> {
        loop {
            let console = self.console(guest);
            if console.lines().any(|line| line.trim() == "READY") {
                return Ok(());
            }
            let mut said = String::new();
            if let Ok(mut file) = File::open(self.directory.join(format!("qemu-{guest}"))) {
                let _ = file.read_to_string(&mut said);
            }
            let error = |line: &str| line.contains(": ") && !line.contains(" warning: ");
            let failed = said.lines().any(error) && console.is_empty();
            if failed || begun.elapsed() > BOOT || console.contains("Kernel panic") {
                return Err(format!("guest {guest} does not come up: {said}\n{console}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Guests {
    fn connect(&mut self, guest: usize, begun: Instant) -> Result<(), String> {
        let mut ssh = Command::new("/usr/bin/ssh");
        ssh.arg("-F").arg(self.directory.join("ssh_config"));
        ssh.args(["-N", "-oControlMaster=yes", "-oBatchMode=yes", &format!("g{guest}")]);
        let failed = |e: io::Error| format!("ssh: {e}");
        let (log, socket) = (self.directory.join(format!("ssh-{guest}")), self.socket(guest));
        // A guest on a busy machine may not keep its first connection.
        loop {
            ssh.stdin(Stdio::null()).stdout(Stdio::null());
            ssh.stderr(File::create(&log).map_err(failed)?);
            let child = self.guests[guest - 1].ssh.insert(ssh.spawn().map_err(failed)?);
            while matches!(child.try_wait(), Ok(None)) && begun.elapsed() < BOOT {
                if socket.exists() {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            if begun.elapsed() > BOOT {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("guest {guest} is not reached: {said}"));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Guest {
    fn end(&mut self) {
        if let Some(mut ssh) = self.ssh.take() {
            let _ = ssh.kill();
            let _ = ssh.wait();
        }
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        self.guests.iter_mut().for_each(Guest::end);
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_dir_all(&self.sockets);
    }
}
