// SPDX-License-Identifier: Apache-2.0
//! C programs on hosts with two networks: both carry long transfers, and a job goes on by one while the
//! cable of the other is pulled.

use libtest_mimic::{Failed, Trial};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tombolo_tests::conformance::{BACK_ENDS, unavailable};
use tombolo_tests::nodes::{self, Nodes};
use tombolo_tests::unless;

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::job::{Job, longest};
use support::program::{LIMIT, Program, run_trials};
use support::{crate_dir, run};

/// Interfaces; the launcher's connections are on the network of `eth0`.
const BOTH: &str = "eth0,eth1";
const BOTH_TURNED: &str = "eth1,eth0";
/// Programs with long transfers, or with many kinds of operations.
const PROGRAMS: [&str; 10] = [
    "amo",
    "big",
    "collectives",
    "contexts",
    "locks",
    "random",
    "rma",
    "signal",
    "teams",
    "threads",
];

/// Hosts for jobs that leave them as they are.
static NODES: LazyLock<Nodes> = LazyLock::new(|| start(3));

fn start(hosts: usize) -> Nodes {
    Nodes::with_networks(hosts, 2).unwrap_or_else(|why| panic!("{why}"))
}

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let of_ofi = BACK_ENDS.iter().find(|back_end| back_end.name == "ofi_tcp").expect("a row");
    let missing = nodes::unavailable().map(str::to_owned);
    let no_ofi = missing.clone().or_else(|| unavailable(of_ofi));
    let source = |path: &str| crate_dir().join("c").join(path);
    let mut trials = vec![];
    for name in PROGRAMS {
        let program = Program::new(prefix, &source(&format!("{name}.c")), "", &["-O1", "-pthread"]);
        for (places, network) in [("n1:2,n2:2", "tcp"), ("n1:1,n2:1,n3:1", "ofi")] {
            let program = program.clone();
            let name = format!("{name} on {places} over {network}");
            trials.push((network, Trial::test(name, move || runs(&program, network, places))));
        }
    }
    let cables = Program::new(prefix, &source("special/cables.c"), "", &["-O1"]);
    let gets = Program::new(prefix, &source("special/gets.c"), "", &["-O1"]);
    let beating = Program::new(prefix, &source("special/beating.c"), "", &[]);
    let mut add = |name: &str, program: &Arc<Program>, networks: &[&'static str], case: Case| {
        for network in networks {
            let (program, network) = (program.clone(), *network);
            let trial = Trial::test(format!("{name}_{network}"), move || case(&program, network));
            trials.push((network, trial));
        }
    };
    let (tcp, both) = (&["tcp"], &["tcp", "ofi"]);
    add("two_links_carry_more_than_one_over", &cables, both, sums);
    add("a_job_goes_on_without_its_first_cable_over", &cables, both, |program, network| {
        goes_on(program, network, BOTH_TURNED, "n1,n2")
    });
    add("a_job_goes_on_without_its_second_cable_over", &cables, tcp, |program, network| {
        goes_on(program, network, BOTH, "n1,n2")
    });
    add("several_pes_go_on_without_a_cable_over", &cables, tcp, |program, network| {
        goes_on(program, network, BOTH_TURNED, "n1:2,n2:2")
    });
    add("a_cable_may_be_pulled_in_the_midst_of_a_get_over", &gets, tcp, |program, network| {
        amidst(program, network, "n1,n2")
    });
    let name = "a_cable_may_be_pulled_in_the_midst_of_gets_of_several_pes_over";
    add(name, &gets, both, |program, network| amidst(program, network, "n1:2,n2:2"));
    add("a_cable_may_be_out_from_the_start_over", &cables, both, out_from_the_start);
    add("hosts_take_the_network_that_all_are_in_over", &cables, both, takes_the_shared_one);
    add("a_job_without_cables_ends_over", &beating, tcp, without_cables);
    let trials = trials.into_iter().map(|(network, trial)| {
        let missing = if network == "ofi" { &no_ofi } else { &missing };
        unless(missing.as_ref(), trial)
    });
    trials.collect()
}

/// What is tried, over a network.
type Case = fn(&Program, &str) -> Result<(), Failed>;

fn oshrun(
    program: &Program,
    nodes: &Nodes,
    network: &str,
    places: &str,
    interfaces: &str,
) -> Command {
    let mut oshrun = program.oshrun();
    let variable = format!("SHMEM_{}_INTERFACE", network.to_uppercase());
    oshrun.args(["--host", places, "-x", &format!("{variable}={interfaces}")]);
    oshrun.args(["-x", &format!("SHMEM_TRANSPORTS=shm,{network}")]);
    oshrun.args(["-x", "SHMEM_TUNE=off", "-x", "CHECK_APART=1"]);
    oshrun.env_remove("SHMEM_ON_LOSS");
    nodes.enter(&mut oshrun);
    oshrun
}

fn runs(program: &Program, network: &str, places: &str) -> Result<(), Failed> {
    let executable = program.executable()?;
    run(oshrun(program, &NODES, network, places, BOTH).arg(executable), LIMIT)?.succeeded()?;
    Ok(())
}

/// Where the links are slow, two carry nearly twice as much as one.
fn sums(program: &Program, network: &str) -> Result<(), Failed> {
    let nodes = start(2);
    nodes.limit(1, "200mbit")?;
    let rate = |interfaces: &str| -> Result<f64, Failed> {
        let mut oshrun = oshrun(program, &nodes, network, "n1,n2", interfaces);
        oshrun.arg(program.executable()?).args(["3", "measure"]);
        Ok(run(&mut oshrun, LIMIT)?.succeeded()?.stdout.trim().parse()?)
    };
    let (one, two) = (rate("eth0")?, rate("eth0,eth1")?);
    println!("one link {one:.1} MB/s, two links {two:.1} MB/s: {:.2}", two / one);
    assert!(two > 1.6 * one, "{one} MB/s by one and {two} MB/s by two");
    Ok(())
}

/// A cable is pulled in the midst of traffic and plugged again: one line for each pair of hosts, nothing is
/// lost, done twice or late.
fn goes_on(program: &Program, network: &str, interfaces: &str, places: &str) -> Result<(), Failed> {
    let nodes = start(2);
    goes_on_between(program, &nodes, network, interfaces, places, 12)
}

/// The same while long gets are under way over slow links: an answer has half arrived for certain.
fn amidst(program: &Program, network: &str, places: &str) -> Result<(), Failed> {
    let nodes = start(2);
    nodes.limit(2, "400mbit")?;
    goes_on_between(program, &nodes, network, BOTH, places, 9)
}

fn goes_on_between(
    program: &Program,
    nodes: &Nodes,
    network: &str,
    interfaces: &str,
    places: &str,
    seconds: u32,
) -> Result<(), Failed> {
    let mut oshrun = oshrun(program, nodes, network, places, interfaces);
    oshrun.arg(program.executable()?).arg(seconds.to_string());
    let mut job = Job::start(oshrun)?;
    sleep(Duration::from_millis(700));
    nodes.plug_one(2, 1, false);
    sleep(Duration::from_secs(6));
    nodes.plug_one(2, 1, true);
    let (code, said) = job.ends()?;
    println!("{said}");
    assert_eq!(code, Some(0), "{said}");
    let told = "on eth1 (10.98.0.1) is given up towards n2, which goes on by";
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("given up")).collect();
    let pes = places.matches('2').count() - 1;
    assert!((1..=pes.max(1)).contains(&lines.len()), "{said}");
    assert!(lines.iter().all(|line| line.contains(told)), "{said}");
    assert!(longest(&said)? < 5.0, "{said}");
    Ok(())
}

/// One that is out before PEs first talk to each other.
fn out_from_the_start(program: &Program, network: &str) -> Result<(), Failed> {
    let nodes = start(2);
    nodes.unpatch(2, 1);
    let mut oshrun = oshrun(program, &nodes, network, "n1,n2", BOTH);
    oshrun.arg(program.executable()?).arg("1");
    let ran = run(&mut oshrun, LIMIT)?.succeeded()?;
    assert_eq!(ran.stderr.matches("given up").count(), 1, "{}", ran.stderr);
    assert!(longest(&ran.stdout)? < 5.0, "{}", ran.stdout);
    Ok(())
}

/// Nobody says which interface to take. One of each host, the first or the second, does not lead to the other.
fn takes_the_shared_one(program: &Program, network: &str) -> Result<(), Failed> {
    for (apart, shared) in [(0, 98), (1, 99)] {
        let nodes = start(2);
        for words in [
            format!("address flush dev eth{apart}"),
            format!("address add 10.97.0.2/24 dev eth{apart}"),
        ] {
            run(nodes.on(2, "ip").args(words.split(' ')), LIMIT)?.succeeded()?;
        }
        let places = format!("10.{shared}.0.1:2,10.{shared}.0.2:2");
        let mut oshrun = oshrun(program, &nodes, network, &places, "");
        run(oshrun.arg(program.executable()?).arg("1"), LIMIT)?.succeeded()?;
    }
    Ok(())
}

/// When the last one is pulled the other host is lost.
fn without_cables(program: &Program, network: &str) -> Result<(), Failed> {
    let nodes = start(2);
    let mut oshrun = oshrun(program, &nodes, network, "n1,n2", BOTH);
    oshrun.arg(program.executable()?);
    let mut job = Job::start(oshrun)?;
    let begun = Instant::now();
    nodes.plug(2, false);
    let (code, said) = job.ends()?;
    let took = begun.elapsed();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("PE 1 on n2 cannot be reached any more"), "{said}");
    assert!(took < Duration::from_secs(40), "{took:?}");
    Ok(())
}
