// SPDX-License-Identifier: Apache-2.0
//! Devices of a guest as NTB ports.

use crate::ring::{Ring, Which};
use crate::{CHECK_MEMORY, CHECK_PORTS, Stage};
use libtest_mimic::Failed;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;
use tombolo_transports::ntb::port::conformance::{CASES, Case};
use tombolo_transports::ntb::port::functions::{Function, Kind};
use tombolo_transports::ntb::port::open_ports;
use tombolo_transports::ntb::port::trial::{
    memory_of_a_device_reaches_another, memory_reaches_a_device,
};

/// Both ends of a link, in the first guest of two.
const PAIR: [&str; 2] = ["0000:00:12.0", "0000:00:13.0"];
/// A device that copies.
const EDU: &str = "0000:00:18.0";
/// Where the memory of `ivshmem` devices is.
const MEMORY_BAR: u32 = 2;

/// In a guest: runs the suite of ports on the two ends of a link.
pub fn check_conformance(addresses: [&String; 2]) {
    let all = Function::all();
    let find = |address: &String| {
        let found = all.iter().find(|function| function.address == *address);
        found.unwrap_or_else(|| panic!("no NTB function at {address}: {all:?}"))
    };
    let falls_short = |case: &Case| {
        let functions = addresses.map(find);
        let ports = open_ports(&functions, &[]).unwrap_or_else(|e| panic!("{e}"));
        let [a, b] = &ports[..] else { panic!("{} ports of two functions", ports.len()) };
        // As a fresh link: those before have left theirs enabled.
        catch_unwind(AssertUnwindSafe(|| case(&**a, &**b))).is_err()
    };
    let mut failed = vec![];
    for (name, case) in CASES {
        let begun = Instant::now();
        if falls_short(case) {
            failed.push(*name);
        }
        eprintln!("{name}: {:.1?}", begun.elapsed());
    }
    assert!(failed.is_empty(), "these fail: {failed:?}");
    println!("{} cases", CASES.len());
}

/// A function that is bound to VFIO, with its IOMMU group.
fn bound(address: &str) -> Function {
    let group = std::fs::read_link(format!("/sys/bus/pci/devices/{address}/iommu_group"));
    let group = group.expect("a group of the IOMMU");
    Function {
        address: address.to_owned(),
        kind: Kind::IVSHMEM,
        driver: None,
        group: group.file_name().and_then(|name| name.to_str()?.parse().ok()),
        in_the_way: vec![],
    }
}

/// In a guest: has a device read and write memory of this process, and write memory of another device.
pub fn check_memory([address, other]: [&str; 2]) {
    memory_reaches_a_device(&bound(address)).unwrap_or_else(|e| panic!("{e}"));
    memory_of_a_device_reaches_another(&bound(address), &bound(other), MEMORY_BAR)
        .unwrap_or_else(|e| panic!("{e}"));
    println!("as it should");
}

pub fn memory_reaches_devices(stage: &Stage) -> Result<(), Failed> {
    let ring = stage.ring(Which::Two)?;
    let ring = ring.as_ref().expect("just made");
    let own = std::env::current_exe()?;
    let other = PAIR[0];
    let bind = [EDU, other].map(|address| {
        let place = format!("/sys/bus/pci/devices/{address}");
        format!(
            "echo vfio-pci > {place}/driver_override; echo {address} > /sys/bus/pci/drivers_probe"
        )
    });
    let check = format!("{} {CHECK_MEMORY} {EDU} {other}", own.display());
    let told = ring.succeed(1, &format!("{}; {check}", bind.join("; ")))?;
    assert!(told.contains("as it should"), "{told}");
    // Nobody is to take it for a port of the ring.
    let place = format!("/sys/bus/pci/devices/{other}");
    ring.succeed(
        1,
        &format!("echo {other} > {place}/driver/unbind; echo > {place}/driver_override"),
    )?;
    Ok(())
}

/// The commands that `oshinfo` prints for devices that no driver has do make them usable.
pub fn oshinfo_makes_devices_usable(stage: &Stage) -> Result<(), Failed> {
    let ring = stage.ring(Which::Two)?;
    let ring = ring.as_ref().expect("just made");
    let oshinfo = ring.tool("oshinfo").display().to_string();
    let devices = |ring: &Ring| -> Result<String, Failed> {
        let told = ring.succeed(1, &oshinfo)?;
        let start = told.find("NTB devices").unwrap_or_else(|| panic!("no devices:\n{told}"));
        Ok(told[start..].split("\n\n").next().unwrap_or_default().to_owned())
    };
    let before = devices(ring)?;
    assert!(before.contains("0000:00:10.0") && before.contains("bound to vfio-pci"), "{before}");
    for address in PAIR {
        assert!(
            before.contains(&format!("echo {address} > /sys/bus/pci/drivers_probe")),
            "{before}"
        );
    }
    let commands: Vec<&str> = before
        .lines()
        .map(str::trim)
        .filter(|line| ["echo ", "chown "].iter().any(|start| line.starts_with(start)))
        .collect();
    ring.succeed(1, &commands.join(" && "))?;
    let after = devices(ring)?;
    assert!(!after.contains("echo") && after.matches("bound to vfio-pci").count() == 4, "{after}");
    Ok(())
}

pub fn devices_are_ports(stage: &Stage, which: Which) -> Result<(), Failed> {
    let ring = stage.ring(which)?;
    let ring = ring.as_ref().expect("just made");
    let own = std::env::current_exe()?;
    let bind: Vec<String> = PAIR
        .iter()
        .map(|address| {
            let place = format!("/sys/bus/pci/devices/{address}");
            format!(
                "{{ echo vfio-pci > {place}/driver_override; \
                 echo {address} > /sys/bus/pci/drivers_probe; }}"
            )
        })
        .collect();
    let check = format!("{} {CHECK_PORTS} {}", own.display(), PAIR.join(" "));
    let told = ring.succeed(1, &format!("{}; {check}", bind.join(" && ")))?;
    assert!(told.contains(&format!("{} cases", CASES.len())), "{told}");
    // Nobody is to take them for ports of the ring.
    let free = PAIR.map(|address| {
        let place = format!("/sys/bus/pci/devices/{address}");
        format!("{{ echo {address} > {place}/driver/unbind; echo > {place}/driver_override; }}")
    });
    ring.succeed(1, &free.join(" && "))?;
    Ok(())
}

/// A job whose PEs are killed leaves devices that the next job can use.
pub fn a_killed_process_frees(stage: &Stage, which: Which) -> Result<(), Failed> {
    let mut ring = stage.ring(which)?;
    let ring = ring.as_mut().expect("just made");
    let program = stage.program("rma").executable()?;
    let mut oshrun = ring.everywhere();
    let ran = ring.job(oshrun.args([
        "sh",
        "-c",
        &format!("{} & sleep 1; kill -9 $!", program.display()),
    ]))?;
    assert_ne!(ran.code, Some(0), "{}", ran.account("expected to be killed"));
    ring.job(ring.everywhere().arg(stage.program("few").executable()?))?.succeeded()?;
    Ok(())
}
