// SPDX-License-Identifier: Apache-2.0
//! Jobs over verbs: three guests, each with RDMA devices that its kernel makes of network interfaces (rxe),
//! on two networks.

use crate::Stage;
use crate::losses::{FEW_ROUNDS, WITHOUT_LOST, run_without};
use crate::ring::LIMIT;
use crate::support::job::{Job, longest};
use crate::support::{Ran, run};
use libtest_mimic::Failed;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tombolo_tests::conformance::{self, CASE, CASES};
use tombolo_tests::guests::{Guests, Spec};

/// What guests do before they are ready: give the interfaces at the cables addresses, and make an RDMA
/// device of each.
const MAKE_DEVICES: &str = "\
for place in /sys/class/net/e*; do
    device=${place##*/}
    case $(cat $place/address) in
        52:54:00:00:01:*) network=0 ;;
        52:54:00:00:02:*) network=1 ;;
        *) continue ;;
    esac
    ip address flush dev $device
    ip link set $device name cable$network 2> /dev/null || {
        ip link set $device down
        ip link set $device name cable$network
        ip link set cable$network up
    }
    ip address add 10.9.$network.$1/24 dev cable$network
    rdma link add rxe$network type rxe netdev cable$network
done
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

/// Guests with two RDMA devices each: `rxe0` of all is on one network, and `rxe1` on another. The first guest
/// has the switches.
pub struct Trio {
    pub guests: Guests,
    pub prefix: PathBuf,
    cables: PathBuf,
}

/// Of libfabric, whose queues would be too long for RoCE in software: the library says it itself in processes of one
/// thread only.
const FEW_PEERS: &str = "FI_UNIVERSE_SIZE=8";

const GUESTS: usize = 3;
const NETWORKS: usize = 2;

impl Trio {
    pub fn start(prefix: &Path) -> Result<Trio, String> {
        // Names of sockets must be short.
        let name = format!("tombolo-cables-{}", std::process::id());
        let cables = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&cables);
        std::fs::create_dir_all(&cables).map_err(|e| format!("{}: {e}", cables.display()))?;
        let devices = |guest: usize| {
            (0..NETWORKS).flat_map(|network| at_network(&cables, guest, network)).collect()
        };
        let spec = Spec {
            devices: &devices,
            modules: &["crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm"],
            prepare: MAKE_DEVICES,
            memory: 768,
            processors: 2,
            ..Spec::default()
        };
        let guests = Guests::start(GUESTS, &spec);
        let guests = guests.inspect_err(|_| _ = std::fs::remove_dir_all(&cables))?;
        Ok(Trio { guests, prefix: prefix.to_owned(), cables })
    }

    /// Pulls the cable of a guest out of some networks, or plugs it in again.
    fn plug(&self, guest: usize, networks: &[usize], plugged: bool) -> Result<(), Failed> {
        let state = if plugged { "up" } else { "down" };
        let of = |network: &usize| format!("ip link set cable{network} {state}");
        let command = networks.iter().map(of).collect::<Vec<_>>().join(" && ");
        run(&mut self.guests.on(guest, &command), LIMIT)?.succeeded()?;
        Ok(())
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
        self.job_within(command, LIMIT)
    }

    fn job_within(&self, command: &mut Command, limit: Duration) -> Result<Ran, Failed> {
        let ran = run(command, limit)?;
        match ran.code {
            None => Err(ran.account(&self.guests.console(1)).into()),
            Some(_) => Ok(ran),
        }
    }
}

impl Drop for Trio {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.cables);
    }
}

/// Options of QEMU for the interface of a guest at a network, and in the first guest for its switch.
fn at_network(cables: &Path, guest: usize, network: usize) -> Vec<String> {
    let socket = |guest: usize| cables.join(format!("{network}-{guest}"));
    let stream = |id: &str, guest: usize, server: &str| {
        let path = socket(guest).display().to_string();
        format!("stream,id={id},server={server},addr.type=unix,addr.path={path}")
    };
    let own = format!("own{network}");
    let mut options = vec![];
    let mut netdev = |what: String| options.extend(["-netdev".to_owned(), what]);
    if guest == 1 {
        netdev(format!("hubport,id={own},hubid={network}"));
        for other in 2..=GUESTS {
            let id = format!("to{network}-{other}");
            netdev(stream(&id, other, "on"));
            netdev(format!("hubport,id=port-{id},hubid={network},netdev={id}"));
        }
    } else {
        // QEMU tries once to connect.
        await_listener(&socket(guest));
        netdev(stream(&own, guest, "off"));
    }
    let mac = format!("52:54:00:00:0{}:0{guest}", network + 1);
    options.extend(["-device".into(), format!("virtio-net-pci,netdev={own},romfile=,mac={mac}")]);
    options
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
    let trio = stage.trio()?;
    let trio = trio.as_ref().expect("just made");
    let own = std::env::current_exe()?;
    for case in CASES {
        let name = format!("{back_end}::{}", case.name);
        let mut command =
            trio.guests.on(1, &format!("cd /tmp && {FEW_PEERS} {CASE}={name} {}", own.display()));
        run(&mut command, LIMIT)?.succeeded().map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

/// The same, PEs being processes in two guests.
pub fn conforms_between_guests(stage: &Stage, back_end: &str) -> Result<(), Failed> {
    let trio = stage.trio()?;
    let trio = trio.as_ref().expect("just made");
    // As many as cases need.
    for (places, n_pes) in [("g1:1,g2:1", 2), ("g1:2,g2:1", 3), ("g1:2,g2:2", 4)] {
        let transport = back_end.split('_').next().unwrap_or_default();
        let mut oshrun = trio.oshrun(places, transport);
        oshrun.args(["-x", FEW_PEERS]);
        conformance::run_by(&mut oshrun, conformance::BACK_ENDS, back_end, false)?;
        let said = trio.job(&mut oshrun)?.succeeded()?.stdout;
        conformance::all_ran(back_end, n_pes, false, &said)?;
    }
    Ok(())
}

/// A program with PEs at these places, over verbs alone where that is asked for.
pub fn runs(
    stage: &Stage,
    name: &str,
    places: &str,
    transports: &str,
    settings: &str,
    limit: Duration,
) -> Result<(), Failed> {
    let trio = stage.trio()?;
    let trio = trio.as_ref().expect("just made");
    let executable = stage.program(name).executable()?;
    let mut oshrun = trio.oshrun(places, transports);
    if places.contains(',') {
        oshrun.args(["-x", "CHECK_APART=1"]);
    }
    oshrun.args(["-x", settings]).arg(executable);
    trio.job_within(&mut oshrun, limit)?.succeeded()?;
    Ok(())
}

const BY_LIBFABRIC: &str = "SHMEM_OFI_PROVIDER=verbs;ofi_rxm";

/// Where programs run: a name, PEs, transports, a setting, and whether that is for every day.
pub const PLACES: [(&str, &str, &str, &str, bool); 7] = [
    ("in_a_guest", "g1:2", "verbs", "SHMEM_VERBS_AMO=auto", true),
    ("in_a_guest_by_target", "g1:2", "verbs", "SHMEM_VERBS_AMO=target", false),
    ("on_two_guests", "g1:1,g2:1", "shm,verbs", "SHMEM_VERBS_AMO=auto", true),
    ("on_two_guests_by_target", "g1:1,g2:1", "shm,verbs", "SHMEM_VERBS_AMO=target", false),
    (
        "on_two_guests_by_two_devices",
        "g1:1,g2:1",
        "shm,verbs",
        "SHMEM_VERBS_DEVICE=rxe0,rxe1",
        true,
    ),
    ("on_three_guests", "g1:1,g2:1,g3:1", "shm,verbs", "SHMEM_VERBS_AMO=auto", true),
    ("on_two_guests_by_libfabric", "g1:1,g2:1", "shm,ofi", BY_LIBFABRIC, false),
];

/// Where AMOs meet: in the card alone, or on some PEs in the card and on others in the processor.
pub const MIXED: [(&str, &str, &str); 3] = [
    ("between_two_guests", "g1:1,g2:1", "shm,verbs"),
    ("with_two_pes_on_a_guest", "g1:2,g2:1", "verbs"),
    ("with_two_pes_that_share_memory", "g1:2,g2:1", "shm,verbs"),
];

/// The card is asked for, and used for the variables of one PE alone.
pub fn amos_by_processors_are_told(stage: &Stage) -> Result<(), Failed> {
    let trio = stage.trio()?;
    let trio = trio.as_ref().expect("just made");
    let executable = stage.program("setup").executable()?;
    for (places, amo, told) in [
        ("g1:2,g2:1", "card", Some("2 PEs, from 0 to 1, nevertheless")),
        ("g1:2,g2:1", "auto", None),
        ("g1:1,g2:1", "card", None),
    ] {
        let mut oshrun = trio.oshrun(places, "shm,verbs");
        oshrun.args(["-x", &format!("SHMEM_VERBS_AMO={amo}")]).arg(&executable);
        let ran = trio.job(&mut oshrun)?.succeeded()?;
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
    let trio = stage.trio()?;
    let trio = trio.as_ref().expect("just made");
    let mut oshrun = trio.oshrun("g1:1,g2:1", "all");
    let told = trio.job(oshrun.arg(trio.prefix.join("bin/oshinfo")))?.succeeded()?.stdout;
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

/// What `oshperf` measures of the card without the library, and of libfabric's provider for it.
pub fn networks_have_ceilings(stage: &Stage) -> Result<(), Failed> {
    let trio = stage.trio()?;
    let trio = trio.as_ref().expect("just made");
    let compare = format!(
        "cd /tmp && SHMEM_TUNE=off {}/bin/oshperf compare --hosts 2 --ways verbs,ofi:verbs \
         --ops put,get,amo,rate,signal --sizes 8,64K --rounds 3 --budget 20",
        trio.prefix.display()
    );
    let ran = run(&mut trio.guests.on(1, &compare), LIMIT)?.succeeded()?;
    println!("{}", ran.stdout);
    for words in ["# Ceiling: the RDMA card alone", "# Ceiling: libfabric's provider alone"] {
        // Puts, gets, three AMOs, series and signals.
        assert_eq!(ran.stdout.matches(words).count(), 7, "{words}: {}", ran.stdout);
    }
    Ok(())
}

/// All hosts take the device whose network all of them are in.
pub fn takes_the_network_that_all_are_in(stage: &Stage) -> Result<(), Failed> {
    let trio = stage.trio()?;
    let trio = trio.as_ref().expect("just made");
    let executable = stage.program("few").executable()?;
    trio.plug(2, &[0], false)?;
    let mut oshrun = trio.oshrun("g1:1,g2:1", "shm,verbs");
    let ran = trio.job(oshrun.args(["-x", "CHECK_APART=1"]).arg(&executable));
    let mut oshrun = trio.oshrun("g1:1,g2:1", "shm,verbs");
    let told = trio.job(oshrun.arg(trio.prefix.join("bin/oshinfo")));
    trio.plug(2, &[0], true)?;
    ran?.succeeded()?;
    let told = told?.succeeded()?.stdout;
    assert!(told.contains("device rxe1, port 1"), "{told}");
    Ok(())
}

/// Wrong settings are told with what there is.
pub fn wrong_settings_are_told(stage: &Stage) -> Result<(), Failed> {
    let trio = stage.trio()?;
    let trio = trio.as_ref().expect("just made");
    let executable = stage.program("few").executable()?;
    for (setting, words) in [
        ("SHMEM_VERBS_DEVICE=mlx5_0", "there is no RDMA device mlx5_0; there are rxe0, rxe1"),
        ("SHMEM_VERBS_PORT=2", "it has no port 2"),
        ("SHMEM_VERBS_PORT=first", "'first' is not the number of a port"),
        ("SHMEM_VERBS_DEVICE=rxe0,rxe0", "one RDMA port is named twice"),
        ("SHMEM_VERBS_GID=77", "port 1 has no GID 77"),
        ("SHMEM_VERBS_AMO=nic", "SHMEM_VERBS_AMO"),
    ] {
        let mut oshrun = trio.oshrun("g1:2", "verbs");
        let ran = trio.job(oshrun.args(["-x", setting]).arg(&executable))?;
        if ran.code == Some(0) || !ran.stderr.contains(words) {
            return Err(ran.account(&format!("expected to be told: {words}")).into());
        }
    }
    Ok(())
}

/// A job by two devices of each guest, under way.
fn by_two_devices(
    stage: &Stage,
    trio: &Trio,
    devices: &str,
    places: &str,
    name: &str,
    args: &[&str],
) -> Result<Job, Failed> {
    let mut oshrun = trio.oshrun(places, "verbs");
    oshrun.args(["-x", &format!("SHMEM_VERBS_DEVICE={devices}")]);
    oshrun.args(["--timeout", &LIMIT.as_secs().to_string()]);
    oshrun.arg(stage.program(name).executable()?).args(args);
    Job::start(oshrun)
}

/// Both devices carry transfers; one whose cable is pulled is given up, and nothing is lost, done twice or
/// late.
pub fn goes_on_without(stage: &Stage, devices: &str, places: &str) -> Result<(), Failed> {
    let trio = stage.trio()?;
    let trio = trio.as_ref().expect("just made");
    let mut job = by_two_devices(stage, trio, devices, places, "cables", &["30"])?;
    std::thread::sleep(Duration::from_secs(4));
    trio.plug(2, &[1], false)?;
    std::thread::sleep(Duration::from_secs(12));
    trio.plug(2, &[1], true)?;
    let (code, said) = job.ends()?;
    println!("{said}");
    assert_eq!(code, Some(0), "{said}");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("given up")).collect();
    let pes = places.matches('2').count() - 1;
    assert!((1..=pes.max(1)).contains(&lines.len()), "{said}");
    let told = "is given up towards g2, which goes on by device rxe0";
    let right = |line: &&str| line.contains("device rxe1") && line.contains(told);
    assert!(lines.iter().all(right), "{said}");
    // Rounds take some seconds, and more on a machine with other work.
    assert!(longest(&said)? < 30.0, "{said}");
    Ok(())
}

/// When the last cable is pulled the other host is lost.
pub fn ends_without_devices(stage: &Stage) -> Result<(), Failed> {
    let trio = stage.trio()?;
    let trio = trio.as_ref().expect("just made");
    let mut job = by_two_devices(stage, trio, "rxe0,rxe1", "g1:1,g2:1", "beating", &[])?;
    trio.plug(2, &[0, 1], false)?;
    let ended = job.ends();
    trio.plug(2, &[0, 1], true)?;
    let (code, said) = ended?;
    assert_eq!(code, Some(1), "{said}");
    // Both find it out, and the job ends with the first that does.
    let is_named = |lost: &str| said.contains(&format!("{lost} cannot be reached any more"));
    assert!(is_named("PE 1 on g2") || is_named("PE 0 on g1"), "{said}");
    Ok(())
}

/// A guest that ends leaves the others, which go on.
pub fn the_others_go_on(stage: &Stage) -> Result<(), Failed> {
    let mut held = stage.trio()?;
    let trio = held.as_mut().expect("just made");
    let mut oshrun = trio.oshrun("g1:1,g2:1,g3:1", "verbs");
    oshrun.args(["-x", "SHMEM_ON_LOSS=continue"]).args(FEW_ROUNDS);
    let survivors = stage.program("survivors").executable()?;
    let ran = run_without(&mut trio.guests, 3, oshrun, (&survivors, "aax"))?;
    drop(held.take());
    match ran.code {
        Some(WITHOUT_LOST) => Ok(()),
        _ => Err(ran.account("expected the others to go on").into()),
    }
}
