// SPDX-License-Identifier: Apache-2.0
//! Jobs over verbs: two guests, each with an RDMA device that its kernel makes of a network interface
//! (rxe), and a cable between them.

use crate::Stage;
use crate::losses::{WITHOUT_LOST, run_without};
use crate::ring::LIMIT;
use crate::support::{Ran, run};
use libtest_mimic::Failed;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tombolo_tests::conformance::{CASE, CASES};
use tombolo_tests::guests::{Guests, Spec};

/// What guests do before they are ready: give the interface at the cable an address, and make an RDMA
/// device of it.
const MAKE_DEVICE: &str = "\
for place in /sys/class/net/e*; do
    [ \"$(cat $place/address)\" = 52:54:00:00:01:0$1 ] && device=${place##*/}
done
ip address flush dev $device
ip address add 10.9.0.$1/24 dev $device
rdma link add rxe0 type rxe netdev $device
";

/// Why these cases cannot run, where others in guests can.
pub fn unavailable() -> Option<&'static str> {
    if !["/usr/bin/rdma", "/usr/sbin/rdma", "/sbin/rdma"]
        .iter()
        .any(|path| Path::new(path).exists())
    {
        return Some("the program rdma is not installed (Debian: iproute2)");
    }
    let places = ["/usr/lib/x86_64-linux-gnu/libibverbs", "/usr/lib64/libibverbs"];
    match places.iter().any(|path| Path::new(path).exists()) {
        true => None,
        false => Some("libibverbs is not installed (Debian: ibverbs-providers)"),
    }
}

/// Two guests with an RDMA device each.
pub struct Pair {
    pub guests: Guests,
    prefix: PathBuf,
    cable: PathBuf,
}

impl Pair {
    pub fn start(prefix: &Path) -> Result<Pair, String> {
        // Names of sockets must be short.
        let name = format!("tombolo-cable-{}", std::process::id());
        let cable = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&cable);
        let devices = |guest: usize| {
            // The first one listens; QEMU tries once to connect.
            let server = if guest == 1 { "on" } else { "off" };
            if guest == 2 {
                await_listener(&cable);
            }
            let path = cable.display();
            let end = format!("stream,id=cable,server={server},addr.type=unix,addr.path={path}");
            let device =
                format!("virtio-net-pci,netdev=cable,romfile=,mac=52:54:00:00:01:0{guest}");
            vec!["-netdev".into(), end, "-device".into(), device]
        };
        let spec = Spec {
            devices: &devices,
            modules: &["crc32_generic", "rdma_rxe", "ib_uverbs"],
            prepare: MAKE_DEVICE,
            memory: 768,
            processors: 2,
            ..Spec::default()
        };
        let guests = Guests::start(2, &spec)?;
        Ok(Pair { guests, prefix: prefix.to_owned(), cable })
    }

    /// `oshrun` with PEs on guests, as in `g1:1,g2:1`.
    pub fn oshrun(&self, places: &str, transports: &str) -> Command {
        let mut oshrun = Command::new(self.prefix.join("bin/oshrun"));
        oshrun.args(["--host", places, "--rsh", &self.guests.rsh(), "--wdir", "/tmp"]);
        // A guest may get no processor for long.
        oshrun.args(["--silence", "120", "-x", "SHMEM_START_TIMEOUT=120"]);
        oshrun.args(["-x", &format!("SHMEM_TRANSPORTS={transports}")]);
        oshrun.args(["-x", "SHMEM_SYMMETRIC_SIZE=64m", "-x", "SHMEM_TUNE=off"]);
        oshrun
    }

    fn job(&self, command: &mut Command) -> Result<Ran, Failed> {
        let ran = run(command, LIMIT)?;
        match ran.code {
            None => Err(ran.account(&self.guests.console(1)).into()),
            Some(_) => Ok(ran),
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.cable);
    }
}

/// Waits until somebody listens at a socket, or too long for that to be worth while.
fn await_listener(socket: &Path) {
    let (name, begun) = (socket.display().to_string(), Instant::now());
    let listens = |line: &str| line.ends_with(&name) && line.split(' ').nth(3) == Some("00010000");
    while begun.elapsed() < Duration::from_secs(20) {
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        if sockets.lines().any(listens) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The suite of all transports, PEs being threads of a process in a guest.
pub fn conforms(stage: &Stage, back_end: &str) -> Result<(), Failed> {
    let pair = stage.pair()?;
    let pair = pair.as_ref().expect("just made");
    let own = std::env::current_exe()?;
    for case in CASES {
        let name = format!("{back_end}::{}", case.name);
        let mut command = pair.guests.on(1, &format!("cd /tmp && {CASE}={name} {}", own.display()));
        run(&mut command, LIMIT)?.succeeded().map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

/// A program with PEs at these places, over verbs alone where that is asked for.
pub fn runs(
    stage: &Stage,
    name: &str,
    places: &str,
    transports: &str,
    amo: &str,
) -> Result<(), Failed> {
    let pair = stage.pair()?;
    let pair = pair.as_ref().expect("just made");
    let executable = stage.program(name).executable()?;
    let mut oshrun = pair.oshrun(places, transports);
    oshrun.args(["-x", &format!("SHMEM_VERBS_AMO={amo}")]).arg(executable);
    pair.job(&mut oshrun)?.succeeded()?;
    Ok(())
}

/// Where AMOs meet: in the card alone, or on some PEs in the card and on others in the processor.
pub const MIXED: [(&str, &str, &str); 3] = [
    ("between_two_guests", "g1:1,g2:1", "shm,verbs"),
    ("with_two_pes_on_a_guest", "g1:2,g2:1", "verbs"),
    ("with_two_pes_that_share_memory", "g1:2,g2:1", "shm,verbs"),
];

/// The card is asked for, and used for the variables of one PE alone.
pub fn amos_by_processors_are_told(stage: &Stage) -> Result<(), Failed> {
    let pair = stage.pair()?;
    let pair = pair.as_ref().expect("just made");
    let executable = stage.program("setup").executable()?;
    for (places, amo, told) in [
        ("g1:2,g2:1", "card", Some("2 PEs, from 0 to 1, nevertheless")),
        ("g1:2,g2:1", "auto", None),
        ("g1:1,g2:1", "card", None),
    ] {
        let mut oshrun = pair.oshrun(places, "shm,verbs");
        oshrun.args(["-x", &format!("SHMEM_VERBS_AMO={amo}")]).arg(&executable);
        let ran = pair.job(&mut oshrun)?.succeeded()?;
        let lines =
            ran.stderr.lines().filter(|line| line.contains("processors carry out the AMOs"));
        let lines: Vec<&str> = lines.collect();
        let right = match told {
            Some(words) => lines.len() == 1 && lines[0].contains(words),
            None => lines.is_empty(),
        };
        assert!(right, "{places}, {amo}: {}", ran.stderr);
    }
    Ok(())
}

pub fn oshinfo_tells_of_the_device(stage: &Stage) -> Result<(), Failed> {
    let pair = stage.pair()?;
    let pair = pair.as_ref().expect("just made");
    let mut oshrun = pair.oshrun("g1:1,g2:1", "all");
    let told = pair.job(oshrun.arg(pair.prefix.join("bin/oshinfo")))?.succeeded()?.stdout;
    for words in [
        "RoCE v2 in software, device rxe0, port 1",
        "(10.9.0.1)",
        "the card carries out AMOs of 8 bytes, where",
        "the network carries out AMOs on variables of 2 of 2 PEs",
    ] {
        assert!(told.contains(words), "{words}\n{told}");
    }
    Ok(())
}

/// Wrong settings are told with what there is.
pub fn wrong_settings_are_told(stage: &Stage) -> Result<(), Failed> {
    let pair = stage.pair()?;
    let pair = pair.as_ref().expect("just made");
    let executable = stage.program("few").executable()?;
    for (setting, words) in [
        ("SHMEM_VERBS_DEVICE=mlx5_0", "there is no RDMA device mlx5_0; there are rxe0"),
        ("SHMEM_VERBS_PORT=2", "it has no port 2"),
        ("SHMEM_VERBS_GID=77", "port 1 has no GID 77"),
        ("SHMEM_VERBS_AMO=nic", "SHMEM_VERBS_AMO"),
    ] {
        let mut oshrun = pair.oshrun("g1:2", "verbs");
        let ran = pair.job(oshrun.args(["-x", setting]).arg(&executable))?;
        if ran.code == Some(0) || !ran.stderr.contains(words) {
            return Err(ran.account(&format!("expected to be told: {words}")).into());
        }
    }
    Ok(())
}

/// A guest that ends leaves the others, which go on.
pub fn the_others_go_on(stage: &Stage) -> Result<(), Failed> {
    let mut held = stage.pair()?;
    let pair = held.as_mut().expect("just made");
    let mut oshrun = pair.oshrun("g1:2,g2:1", "shm,verbs");
    oshrun.args(["-x", "SHMEM_ON_LOSS=continue"]);
    oshrun.arg(stage.program("survivors").executable()?).arg("aax");
    let ran = run_without(&mut pair.guests, 2, "shmem-service", oshrun)?;
    drop(held.take());
    match ran.code {
        Some(WITHOUT_LOST) => Ok(()),
        _ => Err(ran.account("expected the others to go on").into()),
    }
}
