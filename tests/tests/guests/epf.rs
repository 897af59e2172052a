// SPDX-License-Identifier: Apache-2.0
//! The endpoint function, served to two guests: first Linux's own drivers use it, which shows that the
//! model is one; then jobs do, through our port.

use crate::ring::{LIMIT, Ring, Which};
use crate::{Afterwards, Stage, losses, ports, several};
use libtest_mimic::Failed;
use std::fs::DirEntry;
use std::time::Instant;
use tombolo_tests::guests;

/// Cases that follow the programs, in this order.
pub const CASES: [Afterwards; 7] = [
    ("oshinfo_tells_of_epf", oshinfo_tells_of_it),
    ("several_pes_over_epf_on_two_guests", |stage| {
        several::run_programs(stage, Which::Epf, &["few", "rma"])
    }),
    ("killed_pes_of_several_over_epf_on_two_guests", |stage| {
        several::are_killed(stage, Which::Epf)
    }),
    ("epf_devices_are_ports", |stage| ports::devices_are_ports(stage, Which::Epf)),
    ("a_killed_process_frees_its_epf_devices", |stage| {
        ports::a_killed_process_frees(stage, Which::Epf)
    }),
    ("a_lost_guest_ends_the_job_over_epf", |stage| {
        losses::a_lost_guest_ends_the_job(stage, Which::Epf)
    }),
    ("the_others_go_on_without_a_guest_over_epf", |stage| {
        losses::the_others_go_on(stage, Which::EpfThree)
    }),
];

/// The same on four guests.
pub const CASES_ON_FOUR: [Afterwards; 2] = [
    ("a_lost_guest_of_four_ends_the_job_over_epf", |stage| {
        losses::a_lost_guest_ends_the_job(stage, Which::EpfFour)
    }),
    ("the_others_of_four_go_on_without_a_guest_over_epf", |stage| {
        losses::the_others_go_on(stage, Which::EpfFour)
    }),
];

/// By guest: an end of the link between them.
const ENDS: [&str; 2] = ["0000:00:11.0", "0000:00:10.0"];
/// What is sent over it.
const BYTES: usize = 2_000_000;

/// Gives a function to Linux's driver, and a network interface of its own to the link.
const TAKE: &str = "\
set -e
place=/sys/bus/pci/devices/$device
echo $device > $place/driver/unbind
echo > $place/driver_override
load() { /run/modprobe -d $system \"$@\"; }
load ntb_hw_epf
echo $device > /sys/bus/pci/drivers_probe
load ntb_transport max_mw_size=0x100000
load ntb_netdev
interface=$(ls $place/$device/*/net)
ip address add 10.77.0.$guest/24 dev $interface
ip link set $interface up
echo $interface
";

/// Gives it back to VFIO.
const RELEASE: &str = "\
set -e
for module in ntb_netdev ntb_transport ntb_hw_epf; do /run/modprobe -d $system -r $module; done
echo vfio-pci > /sys/bus/pci/devices/$device/driver_override
echo $device > /sys/bus/pci/drivers_probe
";

/// Why Linux cannot drive it, if so.
pub fn without_drivers() -> Option<&'static str> {
    let modules = std::fs::read_dir(guests::system().join("lib/modules"));
    let built = |entry: DirEntry| entry.path().join("updates/ntb_hw_epf.ko").is_file();
    let there = modules.into_iter().flatten().flatten().any(built);
    (!there).then_some(
        "Linux's NTB drivers are not there: `cargo dev guests` builds them, with make and gcc",
    )
}

/// Linux's `ntb_hw_epf`, `ntb_transport` and `ntb_netdev`: a stream of TCP arrives whole.
pub fn linux_drives_it(stage: &Stage) -> Result<(), Failed> {
    let ring = stage.ring(Which::Epf)?;
    let ring = ring.as_ref().expect("just made");
    let system = guests::system();
    let on = |guest: usize, script: &str| {
        let system = system.display();
        let device = ENDS[guest - 1];
        ring.succeed(guest, &format!("guest={guest} device={device} system={system}\n{script}"))
    };
    let interfaces = [1, 2].map(|guest| on(guest, TAKE));
    for (index, interface) in interfaces.into_iter().enumerate() {
        await_carrier(ring, index + 1, interface?.trim())?;
    }
    let sum = on(2, &format!("head -c {BYTES} /dev/urandom > /tmp/sent; md5sum < /tmp/sent"))?;
    let listen = "$system/bin/busybox nc -l -p 7000 > /tmp/received < /dev/null 2> /dev/null &";
    on(1, listen)?;
    on(
        2,
        "for try in $(seq 100); do
        bash -c 'cat /tmp/sent > /dev/tcp/10.77.0.1/7000' && exit
        sleep 0.1
    done; exit 1",
    )?;
    let received = on(
        1,
        "while pidof busybox > /dev/null; do sleep 0.1; done
        md5sum < /tmp/received",
    )?;
    assert_eq!(received, sum, "what arrives is what was sent");
    for guest in [1, 2] {
        on(guest, RELEASE)?;
    }
    Ok(())
}

fn await_carrier(ring: &Ring, guest: usize, interface: &str) -> Result<(), Failed> {
    let begun = Instant::now();
    let look = format!("cat /sys/class/net/{interface}/carrier");
    while ring.succeed(guest, &look)?.trim() != "1" {
        if begun.elapsed() > LIMIT {
            let said = ring.succeed(guest, "dmesg | tail -20")?;
            return Err(format!("the link of guest {guest} does not come up:\n{said}").into());
        }
    }
    Ok(())
}

fn oshinfo_tells_of_it(stage: &Stage) -> Result<(), Failed> {
    let ring = stage.ring(Which::Epf)?;
    let ring = ring.as_ref().expect("just made");
    let told = ring.job(ring.everywhere().arg(ring.tool("oshinfo")))?.succeeded()?.stdout;
    for words in ["host 1 of a ring of 2", "endpoint function (epf)", "0000:00:10.0"] {
        assert!(told.contains(words), "{words}\n{told}");
    }
    Ok(())
}
