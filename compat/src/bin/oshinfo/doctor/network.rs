// SPDX-License-Identifier: Apache-2.0
//! Networks: interfaces, libfabric, verbs.

use super::variables::config;
use super::{Finding, Grade, Machine};
use tombolo_core::config::Transports;

const VERBS: &str = "sys/class/infiniband";

pub fn findings(machine: &Machine) -> Vec<Finding> {
    vec![interfaces(machine), fabric(machine), verbs(machine)]
}

fn interfaces(machine: &Machine) -> Finding {
    let place = |name: &str, what: &str| format!("sys/class/net/{name}/{what}");
    let all = machine.names("sys/class/net").into_iter().filter(|name| name != "lo");
    // Tunnels and other virtual interfaces do not tell their state: what counts is that they were switched on.
    let on = |name: &String| {
        let flags = machine.text(place(name, "flags"))?;
        Some(u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok()? & 1 != 0)
    };
    let is_up = |name: &String| match machine.text(place(name, "operstate")).as_deref() {
        Some("up") => true,
        Some("unknown") => on(name) == Some(true),
        _ => false,
    };
    let up: Vec<String> = all
        .filter(is_up)
        .map(|name| match machine.text(place(&name, "speed")).and_then(|s| s.parse::<i64>().ok()) {
            Some(speed) if speed > 0 => format!("{name} ({speed} Mb/s)"),
            _ => name,
        })
        .collect();
    if up.is_empty() {
        let effect = "no job spans several machines";
        return Finding::new(
            "network",
            Grade::Note,
            "no interface is up",
            effect,
            &["ip link set DEVICE up"],
        );
    }
    Finding::good("network", up.join(", "))
}

fn fabric(machine: &Machine) -> Finding {
    let subject = "libfabric";
    if let Err(why) = machine.library("libfabric.so.1") {
        let effect = "no network but TCP, RDMA cards and NTB devices";
        return Finding::new(
            subject,
            Grade::Note,
            why,
            effect,
            &["apt install libfabric1   # Fedora: dnf install libfabric"],
        );
    }
    if !machine.is_live() {
        return Finding::good(subject, "installed");
    }
    match try_transport("ofi") {
        Ok(lines) => Finding::good(subject, lines.first().map_or("works".into(), Clone::clone)),
        Err(why) => {
            let effect = "jobs on several machines do not run over it";
            Finding::new(
                subject,
                Grade::Note,
                why,
                effect,
                &[
                    "fi_info   # of libfabric-bin: what it lists; SHMEM_OFI_PROVIDER and SHMEM_OFI_INTERFACE choose",
                ],
            )
        }
    }
}

/// Has a transport find what carries puts, gets and messages.
fn try_transport(name: &str) -> Result<Vec<String>, String> {
    let mut config = config();
    config.transports = Transports::Only(vec![name.into()]);
    let survey = tombolo::transports::survey(&config);
    let own = survey.into_iter().find(|survey| survey.name == name);
    own.ok_or("this build has no such transport")?.state
}

fn verbs(machine: &Machine) -> Finding {
    let devices = machine.names(VERBS);
    if devices.is_empty() {
        return Finding::good("verbs", "no RDMA device");
    }
    let mut ports = Vec::new();
    for device in &devices {
        for port in machine.names(format!("{VERBS}/{device}/ports")) {
            let text = |what: &str| {
                machine.text(format!("{VERBS}/{device}/ports/{port}/{what}")).unwrap_or_default()
            };
            ports.push((
                format!("{device} port {port} {} {}", text("state"), text("rate")),
                text("state"),
            ));
        }
    }
    let state: Vec<&str> = ports.iter().map(|(port, _)| port.as_str()).collect();
    let state = state.join(", ");
    if let Err(why) = machine.library("libibverbs.so.1") {
        let effect = "data goes to other machines over TCP in place of RDMA";
        return Finding::new(
            "verbs",
            Grade::Slow,
            format!("{state}; {why}"),
            effect,
            &["apt install libibverbs1 ibverbs-providers"],
        );
    }
    if !ports.iter().any(|(_, state)| state.contains("ACTIVE")) {
        let effect = "data goes to other machines over TCP in place of RDMA";
        return Finding::new(
            "verbs",
            Grade::Slow,
            state,
            effect,
            &["ip link set DEVICE up   # InfiniBand: apt install opensm on one machine"],
        );
    }
    let node = machine.names("dev/infiniband").into_iter().find(|name| name.starts_with("uverbs"));
    let Some(node) = node else {
        let effect = "data goes to other machines over TCP in place of RDMA";
        let change = ["modprobe ib_uverbs   # a container: docker run --device /dev/infiniband"];
        return Finding::new(
            "verbs",
            Grade::Slow,
            state + "; no /dev/infiniband/uverbs*",
            effect,
            &change,
        );
    };
    let node = machine.path("dev/infiniband").join(node);
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(&node);
    if let Err(why) = opened {
        let effect = "data goes to other machines over TCP in place of RDMA";
        let change = format!("chmod 666 {}", node.display());
        return Finding::new(
            "verbs",
            Grade::Slow,
            format!("{state}; {}: {why}", node.display()),
            effect,
            &[&change],
        );
    }
    if !machine.is_live() {
        return Finding::good("verbs", state);
    }
    match try_transport("verbs") {
        Ok(_) => Finding::good("verbs", state),
        Err(why) => {
            let effect = "data goes to other machines over TCP in place of RDMA";
            let change = "ibv_devinfo -v   # of ibverbs-utils: what it lists; SHMEM_VERBS_DEVICE, _PORT and _GID choose";
            Finding::new("verbs", Grade::Slow, format!("{state}; {why}"), effect, &[change])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::Copy;
    use super::*;

    #[test]
    fn what_keeps_an_rdma_device_from_being_used_is_told_one_after_another() {
        let copy = Copy::of(
            "verbs",
            &[
                ("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n"),
                ("sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
            ],
        );
        let told = || verbs(&copy.machine());
        assert!(told().change[0].contains("apt install libibverbs1"), "{:?}", told());
        copy.write("usr/lib64/libibverbs.so.1", "");
        assert!(told().change[0].contains("ip link set"), "{:?}", told());
        copy.write("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
        assert!(told().change[0].contains("--device /dev/infiniband"), "{:?}", told());
        copy.write("dev/infiniband/uverbs0", "");
        assert_eq!(told().grade, Grade::Good);
        assert_eq!(told().state, "mlx5_0 port 1 4: ACTIVE 100 Gb/sec (4X EDR)");
    }

    #[test]
    fn interfaces_that_are_up_are_named_with_their_speed() {
        let copy = Copy::of("net", &[("sys/class/net/lo/operstate", "up\n")]);
        assert_eq!(interfaces(&copy.machine()).grade, Grade::Note);
        copy.write("sys/class/net/eth0/operstate", "up\n");
        copy.write("sys/class/net/eth0/speed", "10000\n");
        copy.write("sys/class/net/eth1/operstate", "down\n");
        assert_eq!(interfaces(&copy.machine()).state, "eth0 (10000 Mb/s)");
        for (name, flags) in [("tun0", "0x1090\n"), ("wg0", "0x91\n")] {
            copy.write(&format!("sys/class/net/{name}/operstate"), "unknown\n");
            copy.write(&format!("sys/class/net/{name}/flags"), flags);
        }
        assert_eq!(interfaces(&copy.machine()).state, "eth0 (10000 Mb/s), wg0");
    }

    #[test]
    fn a_library_is_found_in_the_folders_of_all_architectures() {
        for architecture in ["x86_64", "aarch64"] {
            let copy = Copy::of(&format!("fabric-{architecture}"), &[]);
            assert!(fabric(&copy.machine()).change[0].starts_with("apt install libfabric1"));
            copy.write(&format!("usr/lib/{architecture}-linux-gnu/libfabric.so.1"), "");
            assert_eq!(fabric(&copy.machine()).grade, Grade::Good, "{architecture}");
        }
    }
}
