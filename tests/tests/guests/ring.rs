// SPDX-License-Identifier: Apache-2.0
//! A ring of guests, and jobs on it.

use crate::Stage;
use crate::served::Link;
use crate::support::{Ran, run};
use libtest_mimic::Failed;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tombolo_tests::conformance;
use tombolo_tests::guests::{self, Guests, Spec};

/// For a job: guests compute slowly, and `ssh` takes seconds to reach them.
pub const LIMIT: Duration = Duration::from_secs(300);
/// For a program that does not run every day.
pub const LONG: Duration = Duration::from_secs(580);

/// The limit of a program.
pub fn limit(is_slow: bool) -> Duration {
    if is_slow { LONG } else { LIMIT }
}

/// What guests do before they are ready: give the ring's two devices to VFIO.
const BIND: &str = "\
for device in 0000:00:10.0 0000:00:11.0; do
    echo vfio-pci > /sys/bus/pci/devices/$device/driver_override
    echo $device > /sys/bus/pci/drivers_probe
done
";

/// Guests with two devices each, tied into a ring; the first one of two has another pair, tied to each
/// other and not bound.
pub struct Ring {
    pub guests: Guests,
    count: usize,
    prefix: PathBuf,
    // End after the guests, which they tie.
    links: Links,
}

/// Rings that there can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Two guests, whose links are memory that `oshivshmem` serves.
    Two,
    /// Three of them.
    Three,
    /// Four of them: the farthest is two hops away, either way round.
    Four,
    /// Two guests, whose links are models of the endpoint function: see [`served`](crate::served).
    Epf,
    /// Three of them.
    EpfThree,
    /// Four of them.
    EpfFour,
}

impl Which {
    pub const ALL: [Which; 6] =
        [Which::Two, Which::Three, Which::Four, Which::Epf, Which::EpfThree, Which::EpfFour];

    pub fn guests(self) -> usize {
        match self {
            Which::Two | Which::Epf => 2,
            Which::Three | Which::EpfThree => 3,
            Which::Four | Which::EpfFour => 4,
        }
    }

    /// Whether this program serves the links.
    pub fn is_served(self) -> bool {
        matches!(self, Which::Epf | Which::EpfThree | Which::EpfFour)
    }

    /// Links: the first one of two guests has one more, to itself.
    fn links(self) -> std::ops::Range<usize> {
        0..self.guests() + usize::from(self.guests() == 2)
    }

    /// Where a link is served. Names of sockets must be short.
    fn link(self, number: usize) -> String {
        let name = format!("tombolo-{self:?}-{}-{number}", std::process::id());
        std::env::temp_dir().join(name).display().to_string()
    }

    /// Where an end of a link is served that has a socket of its own.
    fn end(self, number: usize, side: usize) -> PathBuf {
        format!("{}-{side}", self.link(number)).into()
    }
}

/// What serves the links of a ring.
enum Links {
    Ivshmem(Server),
    Epf(#[allow(dead_code, reason = "held until the ring ends")] Vec<Link>),
}

/// The sockets of links between guests, and the server behind them. Both end with this value.
struct Server {
    server: Child,
    sockets: Vec<String>,
}

impl Server {
    fn start(prefix: &Path, sockets: Vec<String>) -> Result<Server, String> {
        let mut server = Command::new(prefix.join("bin/oshivshmem"));
        server.args(["--size", "16m"]).args(&sockets);
        let server = server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let server = server.map_err(|e| format!("oshivshmem: {e}"))?;
        let mut links = Server { server, sockets };
        let mut ready = String::new();
        let stdout = links.server.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut ready).map_err(|e| e.to_string())?;
        if ready.is_empty() {
            let mut said = String::new();
            let mut stderr = links.server.stderr.take().expect("piped");
            stderr.read_to_string(&mut said).map_err(|e| e.to_string())?;
            return Err(format!("oshivshmem ended: {said}"));
        }
        Ok(links)
    }

    fn end(&mut self) -> io::Result<()> {
        self.server.kill()?;
        self.server.wait()?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.end();
        self.sockets.iter().for_each(|socket| _ = std::fs::remove_file(socket));
    }
}

impl Ring {
    pub fn start(prefix: &Path, which: Which) -> Result<Ring, String> {
        let links = if which.is_served() {
            let serve = |number| Link::serve([0, 1].map(|side| which.end(number, side)));
            Links::Epf(which.links().map(serve).collect::<Result<_, _>>()?)
        } else {
            let sockets = which.links().map(|number| which.link(number));
            Links::Ivshmem(Server::start(prefix, sockets.collect())?)
        };
        let guests = Ring::boot(which)?;
        Ok(Ring { guests, count: which.guests(), prefix: prefix.to_owned(), links })
    }

    /// Boots its guests, whose links are served.
    pub fn boot(which: Which) -> Result<Guests, String> {
        let (count, served) = (which.guests(), which.is_served());
        // By link and its end. The left port is the one with the lower address.
        let ends = |guest: usize| match (guest, count) {
            (1, 2) => vec![(count - 1, 1), (0, 0), (count, 0), (count, 1)],
            _ => vec![((guest + count - 2) % count, 1), (guest - 1, 0)],
        };
        let devices = |guest: usize| {
            // A program that serves a device is told what is mapped for it.
            let told = if served { ",caching-mode=on" } else { "" };
            let mut options = vec!["-device".to_owned(), format!("intel-iommu,intremap=on{told}")];
            for (index, (number, side)) in ends(guest).into_iter().enumerate() {
                let (name, address) = (format!("link{index}"), format!("0x1{index}"));
                if served {
                    options.extend(guests::served_device(&which.end(number, side), &address));
                    continue;
                }
                let socket = format!("socket,id={name},path={}", which.link(number));
                let device = format!("ivshmem-doorbell,chardev={name},vectors=2,addr={address}");
                options.extend(["-chardev".into(), socket, "-device".into(), device]);
            }
            // Copies between memory and itself: see `ports::memory_reaches_a_device`.
            options.extend(["-device".into(), format!("edu,addr=0x18,dma_mask={}", u64::MAX)]);
            options
        };
        let spec = Spec {
            devices: &devices,
            kernel: "intel_iommu=on",
            modules: &["vfio_iommu_type1", "vfio-pci"],
            prepare: BIND,
            memory: 512,
            served,
            ..Spec::default()
        };
        Guests::start(count, &spec)
    }

    /// Ends the program that serves the links, as an administrator does who ends processes.
    pub fn end_server(&mut self) -> Result<(), Failed> {
        match &mut self.links {
            Links::Ivshmem(server) => Ok(server.end()?),
            Links::Epf(_) => panic!("this program serves these links"),
        }
    }

    /// `oshrun` with PEs on guests, as in `g1:1,g2:1`.
    pub fn oshrun(&self, places: &str) -> Command {
        let mut oshrun = Command::new(self.prefix.join("bin/oshrun"));
        oshrun.args(["--host", places, "--rsh", &self.guests.rsh(), "--wdir", "/tmp"]);
        // A guest may get no processor for long.
        oshrun.args(["--silence", "120", "-x", "SHMEM_START_TIMEOUT=120"]);
        for setting in [
            "SHMEM_TRANSPORTS=shm,ntb",
            "SHMEM_SYMMETRIC_SIZE=16m",
            "SHMEM_TUNE=off",
            "CHECK_APART=1",
        ] {
            oshrun.args(["-x", setting]);
        }
        oshrun
    }

    /// All guests, with one PE each.
    pub fn everywhere(&self) -> Command {
        let places: Vec<String> = (1..=self.count).map(|guest| format!("g{guest}:1")).collect();
        self.oshrun(&places.join(","))
    }

    /// A command of the shell in a guest, which has to succeed.
    pub fn succeed(&self, guest: usize, command: &str) -> Result<String, Failed> {
        let ran = run(&mut self.guests.on(guest, command), LIMIT)?;
        Ok(ran.succeeded().map_err(|why| format!("{command}: {why}"))?.stdout)
    }

    /// Runs a job of the installed tools or a program.
    pub fn job(&self, command: &mut Command) -> Result<Ran, Failed> {
        self.job_within(command, LIMIT)
    }

    fn job_within(&self, command: &mut Command, limit: Duration) -> Result<Ran, Failed> {
        let ran = run(command, limit)?;
        match ran.code {
            None => Err(ran.account(&self.guests.console(1)).into()),
            Some(_) => Ok(ran),
        }
    }

    pub fn tool(&self, name: &str) -> PathBuf {
        self.prefix.join("bin").join(name)
    }
}

/// A program on all guests of a ring.
pub fn runs(stage: &Stage, name: &str, which: Which, limit: Duration) -> Result<(), Failed> {
    let ring = stage.ring(which)?;
    let ring = ring.as_ref().expect("just made");
    let executable = stage.program(name).executable()?;
    ring.job_within(ring.everywhere().arg(executable), limit)?.succeeded()?;
    Ok(())
}

/// Back ends of the suite of all transports that a ring of guests is: with direct windows, and with all in packets.
pub const BACK_ENDS: [&str; 2] = ["ntb", "ntb_ring_only"];

/// The suite of all transports, all cases that are for so many PEs or fewer: each is a process in a guest of its own.
/// In a ring of four the first two are not neighbours, so cases for two PEs go through a third guest, which only passes
/// on what it gets.
pub fn conforms(stage: &Stage, which: Which, back_end: &str) -> Result<(), Failed> {
    let ring = stage.ring(which)?;
    let ring = ring.as_ref().expect("just made");
    let mut oshrun = match ring.count {
        4 => ring.oshrun("g1:1,g3:1,g2:1,g4:1"),
        _ => ring.everywhere(),
    };
    conformance::run_by(&mut oshrun, conformance::BACK_ENDS, back_end, true)?;
    let said = ring.job_within(&mut oshrun, LONG)?.succeeded()?.stdout;
    println!("{said}");
    Ok(conformance::all_ran(back_end, which.guests(), true, &said)?)
}

pub fn oshinfo_tells_of_the_ring(stage: &Stage) -> Result<(), Failed> {
    let ring = stage.ring(Which::Three)?;
    let ring = ring.as_ref().expect("just made");
    let told = ring.job(ring.everywhere().arg(ring.tool("oshinfo")))?.succeeded()?.stdout;
    for words in ["host 2 of a ring of 3", "ivshmem device 0000:00:10.0", "side 1 of its link: up"]
    {
        assert!(told.contains(words), "{words}\n{told}");
    }
    Ok(())
}

/// Two guests of a ring of three: a link of each leads to the third, which runs nothing.
pub fn wrong_cables_are_told(stage: &Stage) -> Result<(), Failed> {
    let ring = stage.ring(Which::Three)?;
    let ring = ring.as_ref().expect("just made");
    let mut oshrun = ring.oshrun("g1:1,g2:1");
    // A quarter of it is for links to come up.
    oshrun.args(["-x", "SHMEM_START_TIMEOUT=60"]).arg(stage.program("rma").executable()?);
    let ran = ring.job(&mut oshrun)?;
    let told = ran.stderr.contains("nobody answers at the left NTB port of host g1");
    match ran.code != Some(0) && told {
        true => Ok(()),
        false => Err(ran.account("expected to be told of the cable").into()),
    }
}

/// Of the three guests all, and two: devices that lead on are left out.
pub fn lines_have_ends_with_one_device(stage: &Stage) -> Result<(), Failed> {
    let ring = stage.ring(Which::Three)?;
    let ring = ring.as_ref().expect("just made");
    let [left, right] = ["0000:00:10.0", "0000:00:11.0"];
    let program = stage.program("rma").executable()?;
    for (places, last) in [("g1:1,g2:1", "g2"), ("g1:1,g2:1,g3:1", "g3")] {
        // Cables lead from the right device of a guest to the left one of the next.
        let script = format!(
            "case $(hostname) in\n\
             g1) ports={right} ;;\n{last}) ports={left} ;;\n*) ports={left},{right} ;;\nesac\n\
             SHMEM_NTB_PORTS=$ports exec {}",
            program.display()
        );
        let mut oshrun = ring.oshrun(places);
        oshrun.args(["sh", "-c", &script]);
        ring.job(&mut oshrun)?.succeeded()?;
    }
    Ok(())
}
