// SPDX-License-Identifier: Apache-2.0
//! Jobs in virtual machines: PEs in guests of QEMU reach each other over NTB links that `oshivshmem`
//! or this program serves, through PCI devices that they drive by VFIO behind an emulated IOMMU; or over
//! verbs, with RDMA devices that their kernels make.
//!
//! Cases run one after the other, on rings that those before have left as they were; the last ones take
//! guests away.

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod support;

mod ends;
mod epf;
mod losses;
mod perftest;
mod ports;
mod rdma;
mod ring;
mod served;
mod several;
mod strangers;
mod unserved;

use libtest_mimic::{Arguments, Failed, Trial};
use rdma::Trio;
use ring::{LONG, Ring, Which, limit};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use support::crate_dir;
use support::ends::PHASES;
use support::program::Program;
use tombolo_tests::conformance;
use tombolo_tests::guests::{LIFETIME, unavailable};
use tombolo_tests::unless;

/// Programs that run on two, three and four guests, one PE each.
const QUICK: [&str; 2] = ["few", "setup"];
/// Programs that run on three guests over verbs as well: each takes less than ten seconds.
const SHORT_OVER_VERBS: [&str; 4] = ["legacy", "pointers", "processes", "profiling"];
/// Programs to which something is done while they run.
const SPECIAL: [&str; 6] = ["beating", "cables", "datagrams", "ends", "put_amo", "survivors"];
/// What runs where `TOMBOLO_GUESTS` is "few", as in CI: a job by devices of each kind, and a guest that is lost.
const FEW: [&str; 4] = [
    "few_on_2_guests",
    "devices_are_ports",
    "a_lost_guest_ends_the_job",
    "few_over_verbs_on_two_guests",
];
/// Why the others do not, unless they are asked for by `cargo dev guests --ignored`.
const SLOW: &str = "thousands of operations, each of which takes a guest long";

/// The same of cases for which alone guests boot.
const MORE_GUESTS: &str = "boots more guests for short jobs";

/// Has this program check a pair of devices, in a guest.
const CHECK_PORTS: &str = "--check-ports";
/// Has it check that a device reaches memory that is mapped for it, of this program and of another device.
const CHECK_MEMORY: &str = "--check-memory";

/// A name, and what to do.
type Afterwards = (&'static str, fn(&Stage) -> Result<(), Failed>);

/// Cases that follow, in this order.
const AFTERWARDS: [Afterwards; 18] = [
    ("oshinfo_tells_of_the_ring", ring::oshinfo_tells_of_the_ring),
    ("wrong_cables_are_told", ring::wrong_cables_are_told),
    ("lines_have_ends_with_one_device", ring::lines_have_ends_with_one_device),
    ("several_pes_on_two_guests", |stage| {
        several::run_programs(stage, Which::Two, &["few", "rma", "locks"])
    }),
    ("several_pes_conform_on_two_guests", |stage| several::conforms(stage, Which::Two)),
    ("oshinfo_tells_of_several_pes", |stage| several::oshinfo_tells(stage, Which::Two)),
    ("killed_pes_of_several_on_two_guests", |stage| several::are_killed(stage, Which::Two)),
    ("oshinfo_makes_devices_usable", ports::oshinfo_makes_devices_usable),
    ("devices_are_ports", |stage| ports::devices_are_ports(stage, Which::Two)),
    ("memory_reaches_devices", ports::memory_reaches_devices),
    ("a_killed_process_frees_its_devices", |stage| {
        ports::a_killed_process_frees(stage, Which::Two)
    }),
    ("the_others_go_on_without_a_guest", |stage| losses::the_others_go_on(stage, Which::Three)),
    ("a_lost_guest_ends_the_job", |stage| losses::a_lost_guest_ends_the_job(stage, Which::Two)),
    ("the_others_of_four_go_on_without_a_guest", |stage| {
        losses::the_others_go_on(stage, Which::Four)
    }),
    ("jobs_go_on_without_the_server_of_their_links", unserved::jobs_go_on),
    ("guests_do_not_start_without_the_server_of_their_links", unserved::guests_do_not_start),
    ("the_others_go_on_without_a_guest_and_the_server", unserved::the_others_go_on),
    ("a_lost_guest_of_four_ends_the_job", |stage| {
        losses::a_lost_guest_ends_the_job(stage, Which::Four)
    }),
];

type Case = dyn Fn(&Stage) -> Result<(), Failed> + Send;

/// What the cases share; guests boot when a case first needs them.
pub struct Stage {
    prefix: PathBuf,
    programs: Vec<Arc<Program>>,
    /// By [`Which`].
    rings: [Mutex<Option<Ring>>; Which::ALL.len()],
    trio: Mutex<Option<Trio>>,
}

impl Stage {
    fn ring(&self, which: Which) -> Result<MutexGuard<'_, Option<Ring>>, String> {
        let mut ring = self.rings[which as usize].lock().unwrap_or_else(PoisonError::into_inner);
        // They must outlive the case.
        if ring.as_ref().is_none_or(|ring| ring.guests.age() + LONG > LIFETIME) {
            drop(ring.take());
            self.end_rings(|other| other.is_served() != which.is_served());
            *ring = Some(Ring::start(&self.prefix, which)?);
        }
        Ok(ring)
    }

    /// The guests with RDMA devices.
    fn trio(&self) -> Result<MutexGuard<'_, Option<Trio>>, String> {
        let mut trio = self.trio.lock().unwrap_or_else(PoisonError::into_inner);
        // They must outlive the case.
        if trio.as_ref().is_none_or(|trio| trio.guests.age() + LONG > LIFETIME) {
            drop(trio.take());
            self.end_rings(|_| true);
            *trio = Some(Trio::start(&self.prefix)?);
        }
        Ok(trio)
    }

    /// Runs a case. Guests do not outlive one that fails: the next ones boot others.
    fn run(&self, case: &Case) -> Result<(), Failed> {
        let ran = catch_unwind(AssertUnwindSafe(|| case(self)));
        if !matches!(ran, Ok(Ok(()))) {
            self.end_guests();
        }
        ran.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Ends these rings. Idle guests take processor time from the others, so those of one kind end before those of
    /// another kind boot.
    fn end_rings(&self, these: impl Fn(Which) -> bool) {
        for which in Which::ALL.into_iter().filter(|which| these(*which)) {
            drop(self.rings[which as usize].lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    fn end_guests(&self) {
        self.end_rings(|_| true);
        drop(self.trio.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn program(&self, name: &str) -> &Arc<Program> {
        let mut all = self.programs.iter();
        all.find(|program| program.name == name).expect("a program of the folder")
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, option, left, right] = &args[..]
        && option == CHECK_PORTS
    {
        return ports::check_conformance([left, right]);
    }
    if let [_, option, address, other] = &args[..]
        && option == CHECK_MEMORY
    {
        return ports::check_memory([address, other]);
    }
    let asked = [conformance::CASE, conformance::BACK_END].map(std::env::var_os);
    if asked.iter().any(Option::is_some) {
        return conformance::main(conformance::BACK_ENDS);
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let prefix = match support::prefix() {
        Ok(prefix) => prefix,
        Err(missing) => {
            let trial = Trial::test("the_library_is_installed", || Err(missing.into()));
            libtest_mimic::run(&arguments, vec![trial]).exit();
        }
    };
    let sources = ["c", "c/attacks", "c/special"].map(|folder| crate_dir().join(folder));
    let mut files: Vec<PathBuf> = sources
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).expect("the programs are there"))
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    files.sort();
    let needed = |path: &PathBuf| {
        let usual = path.parent().is_some_and(|folder| folder.ends_with("c"));
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        usual || name == "few" || SPECIAL.contains(&&*name)
    };
    files.retain(needed);
    files.push(crate_dir().with_file_name("benches").join("c/put_amo.c"));
    let program = |path: &PathBuf| match path.ends_with("datagrams.c") {
        true => Program::new(&prefix, path, "", &strangers::FLAGS),
        false => Program::new(&prefix, path, "", &["-O1", "-pthread"]),
    };
    let programs = files.iter().map(program).collect();
    let stage =
        Arc::new(Stage { prefix, programs, rings: Default::default(), trio: Default::default() });
    let trials = trials(&stage);
    let exists = |name: &&str| trials.iter().any(|trial| trial.name() == *name);
    assert!(FEW.iter().all(exists), "there are other cases than {FEW:?}");
    let wanted = std::env::var("TOMBOLO_GUESTS").ok();
    let sleeps = |trial: &Trial| match wanted.as_deref() {
        None => true,
        Some("few") => !FEW.contains(&trial.name()),
        Some(_) => false,
    };
    let asleep = Some("boots virtual machines: cargo dev guests");
    let trials = trials.into_iter().map(|trial| match sleeps(&trial) {
        true => unless(asleep, trial),
        false => trial,
    });
    let trials = trials.collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    stage.end_guests();
    conclusion.exit();
}

fn trials(stage: &Arc<Stage>) -> Vec<Trial> {
    let missing = unavailable();
    let mut trials = Vec::new();
    let mut add = |name: String, other: Option<&'static str>, case: Box<Case>| {
        let stage = stage.clone();
        let reason = missing.or(other);
        let trial = Trial::test(name, move || stage.run(&*case));
        trials.push(unless(reason, trial));
    };
    add("a_guest_runs_programs_of_this_machine".into(), None, Box::new(runs_programs));
    for program in &stage.programs {
        if SPECIAL.contains(&&*program.name) {
            continue;
        }
        for which in [Which::Two, Which::Three, Which::Four] {
            let (name, slow) = (program.name.clone(), !QUICK.contains(&&*program.name));
            let case = format!("{name}_on_{}_guests", which.guests());
            let run = move |stage: &Stage| ring::runs(stage, &name, which, limit(slow));
            add(case, slow.then_some(SLOW), Box::new(run));
        }
    }
    for which in [Which::Two, Which::Three, Which::Four] {
        for back_end in ring::BACK_ENDS {
            let case = format!("{back_end}_conforms_on_{}_guests", which.guests());
            let slow = (which, back_end) != (Which::Two, "ntb");
            let run = move |stage: &Stage| ring::conforms(stage, which, back_end);
            add(case, slow.then_some(SLOW), Box::new(run));
        }
    }
    for (name, case) in AFTERWARDS {
        add(name.to_owned(), None, Box::new(case));
    }
    trials.extend(over_epf(stage, missing));
    trials.extend(over_verbs(stage, missing.or(rdma::unavailable())));
    trials
}

/// Cases on the two guests with endpoint functions; the last ones take a guest away.
fn over_epf(stage: &Arc<Stage>, missing: Option<&'static str>) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add = |name: String, other: Option<&'static str>, case: Box<Case>| {
        let stage = stage.clone();
        let reason = missing.or(other);
        let trial = Trial::test(name, move || stage.run(&*case));
        trials.push(unless(reason, trial));
    };
    add("linux_drives_epf".into(), epf::without_drivers(), Box::new(epf::linux_drives_it));
    for program in stage.programs.iter().filter(|program| !SPECIAL.contains(&&*program.name)) {
        for which in [Which::Epf, Which::EpfThree, Which::EpfFour] {
            let (name, slow) = (program.name.clone(), !QUICK.contains(&&*program.name));
            let case = format!("{name}_over_epf_on_{}_guests", which.guests());
            let run = move |stage: &Stage| ring::runs(stage, &name, which, limit(slow));
            let more = (which == Which::EpfFour).then_some(MORE_GUESTS);
            add(case, slow.then_some(SLOW).or(more), Box::new(run));
        }
    }
    for which in [Which::Epf, Which::EpfThree, Which::EpfFour] {
        for back_end in ring::BACK_ENDS {
            let case = format!("{back_end}_conforms_over_epf_on_{}_guests", which.guests());
            let run = move |stage: &Stage| ring::conforms(stage, which, back_end);
            add(case, Some(SLOW), Box::new(run));
        }
    }
    for (name, case) in epf::CASES {
        add(name.to_owned(), None, Box::new(case));
    }
    for (name, case) in epf::CASES_ON_FOUR {
        add(name.to_owned(), Some(MORE_GUESTS), Box::new(case));
    }
    trials
}

/// Cases on the guests with RDMA devices; the last one takes a guest away.
fn over_verbs(stage: &Arc<Stage>, missing: Option<&'static str>) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add = |name: String, slow: bool, case: Box<Case>| {
        let stage = stage.clone();
        let reason = missing.or(slow.then_some(SLOW));
        let trial = Trial::test(name, move || stage.run(&*case));
        trials.push(unless(reason, trial));
    };
    for back_end in ["verbs", "verbs_read", "verbs_target", "verbs_two", "ofi_verbs"] {
        let case = move |stage: &Stage| rdma::conforms(stage, back_end);
        add(format!("{back_end}_conforms"), false, Box::new(case));
    }
    for (back_end, slow) in [
        ("verbs", false),
        ("verbs_read", true),
        ("verbs_target", true),
        ("verbs_two", true),
        ("ofi_verbs", true),
    ] {
        let case = move |stage: &Stage| rdma::conforms_between_guests(stage, back_end);
        add(format!("{back_end}_conforms_between_guests"), slow, Box::new(case));
    }
    for program in stage.programs.iter().filter(|program| !SPECIAL.contains(&&*program.name)) {
        for (place, places, transports, settings, is_quick) in rdma::PLACES {
            let name = program.name.clone();
            let case = format!("{name}_over_verbs_{place}");
            let is_short = QUICK.contains(&&*name)
                || place == "on_three_guests" && SHORT_OVER_VERBS.contains(&&*name);
            let slow = !is_quick || !is_short;
            let run = move |stage: &Stage| {
                rdma::runs(stage, &name, places, transports, settings, limit(slow))
            };
            add(case, slow, Box::new(run));
        }
    }
    for (place, places, transports) in rdma::MIXED {
        for (amo, setting) in
            [("card", "SHMEM_VERBS_AMO=card"), ("target", "SHMEM_VERBS_AMO=target")]
        {
            let case = format!("amos_by_{amo}_over_verbs_{place}");
            let run = move |stage: &Stage| {
                rdma::runs(stage, "mixed_amos", places, transports, setting, limit(false))
            };
            add(case, false, Box::new(run));
        }
    }
    add("verbs_beside_perftest".into(), true, Box::new(perftest::compare));
    add("rdma_cards_have_ceilings".into(), true, Box::new(rdma::networks_have_ceilings));
    add("ends_over_verbs".into(), false, Box::new(ends::selected));
    for (number, phase) in PHASES.iter().enumerate() {
        let case = move |stage: &Stage| ends::of_phase(stage, number);
        add(format!("all_ends_in_{phase}_over_verbs"), true, Box::new(case));
    }
    let trial = {
        let stage = stage.clone();
        let case = move || stage.run(&strangers::datagrams_do_no_harm);
        let reason = missing.or(strangers::unavailable());
        let trial = Trial::test("datagrams_of_strangers_do_no_harm_over_verbs", case);
        unless(reason, trial)
    };
    type Function = fn(&Stage) -> Result<(), Failed>;
    let others: [(&str, Function); 8] = [
        ("oshinfo_tells_of_the_rdma_device", rdma::oshinfo_tells_of_the_device),
        ("amos_over_verbs_by_processors_are_told", rdma::amos_by_processors_are_told),
        ("wrong_settings_of_verbs_are_told", rdma::wrong_settings_are_told),
        (
            "hosts_take_the_network_that_all_are_in_over_verbs",
            rdma::takes_the_network_that_all_are_in,
        ),
        ("a_job_goes_on_without_its_first_rdma_device", |stage| {
            rdma::goes_on_without(stage, "rxe1,rxe0", "g1:1,g2:1")
        }),
        ("a_job_goes_on_without_its_second_rdma_device", |stage| {
            rdma::goes_on_without(stage, "rxe0,rxe1", "g1:1,g2:1")
        }),
        ("a_job_without_rdma_devices_ends", rdma::ends_without_devices),
        ("the_others_go_on_without_a_guest_over_verbs", rdma::the_others_go_on),
    ];
    add(
        "several_pes_go_on_without_their_first_rdma_device".into(),
        true,
        Box::new(|stage| rdma::goes_on_without(stage, "rxe1,rxe0", "g1:2,g2:2")),
    );
    for (name, case) in others {
        add(name.to_owned(), false, Box::new(case));
    }
    // Before the last case.
    trials.insert(trials.len() - 1, trial);
    trials
}

/// The fixture itself.
fn runs_programs(stage: &Stage) -> Result<(), Failed> {
    let ring = stage.ring(Which::Two)?;
    let guests = &ring.as_ref().expect("just made").guests;
    let said = guests.on(1, "hostname; echo told >&2; exit 7").output()?;
    assert_eq!((said.status.code(), &*said.stdout), (Some(7), &b"g1\n"[..]));
    assert_eq!(said.stderr, b"told\n");
    let own = std::env::current_exe()?;
    let list = format!("TOMBOLO_PREFIX={} {} --list", stage.prefix.display(), own.display());
    let listed = guests.on(1, &list).output()?;
    assert!(String::from_utf8_lossy(&listed.stdout).contains("devices_are_ports"));
    let written = guests.on(1, &format!("touch {}", own.display())).output()?;
    assert!(!written.status.success(), "files of this machine can be changed");
    Ok(())
}
