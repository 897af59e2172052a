// SPDX-License-Identifier: Apache-2.0
use super::*;

fn plan(line: &str) -> Result<Plan, clap::Error> {
    Plan::try_from_args(
        std::iter::once("oshrun").chain(line.split_whitespace()).map(OsString::from),
    )
}

#[test]
fn np_is_an_option_before_the_program_and_an_argument_after_it() {
    let plan = plan("--label -np 3 ./app -np 7 --label").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((plan.size(), plan.label), (3, true));
    assert_eq!(plan.programs[0].arguments, ["-np", "7", "--label"]);
}

#[test]
fn np_is_found_after_options_with_and_without_values() {
    for line in ["-x A=-np -np 2 ./app", "--timeout 9 -l -np 2 ./app", "--bind=none -np 2 ./app"] {
        let plan = plan(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!((plan.size(), plan.programs[0].command.to_str()), (2, Some("./app")));
    }
}

#[test]
fn faults_that_concern_packets_meet_packets() {
    let set = |line: &str| -> Vec<Vec<String>> {
        let words = format!("oshrun -n 2 --hosts 2 --fault {line}");
        let words = words.split(' ').map(|word| word.replace('~', " ").into());
        let words: Vec<OsString> = words.collect();
        // Whatever the environment of this test has.
        let plan = Plan::try_from_args(words.into_iter()).unwrap().prepared_for_faults(|_| false);
        let of = |program: &Program| {
            let variables = program.environment.iter();
            let text = |(name, value): &(OsString, OsString)| {
                format!("{}={}", name.display(), value.display())
            };
            variables.map(text).collect()
        };
        plan.programs.iter().map(of).collect()
    };
    let (crc, packets) = ("SHMEM_NTB_CRC=on", "SHMEM_NTB_DIRECT=off");
    assert_eq!(set("link~0~corrupt~5 a : b"), [[crc, packets], [crc, packets]]);
    assert_eq!(set("link~0~delay~5us a"), [[packets, "SHMEM_NTB_SPEED=modelled"]]);
    assert_eq!(set("link~0~down a : b"), [[], []] as [[&str; 0]; 2]);
    assert_eq!(set("link~0~corrupt~0 a"), [[]] as [[&str; 0]; 1]);
    let line = "link~0~corrupt~5 -x SHMEM_NTB_CRC=off a : -x SHMEM_NTB_DIRECT=on b";
    assert_eq!(set(line), [["SHMEM_NTB_CRC=off"], ["SHMEM_NTB_DIRECT=on"]]);
}

#[test]
fn a_job_goes_on_if_all_its_programs_ask_for_it() {
    for (line, goes_on) in [
        ("-x SHMEM_ON_LOSS=continue a", true),
        ("-x SHMEM_ON_LOSS=end a", false),
        ("-x SHMEM_ON_LOSS=end -x SHMEM_ON_LOSS=Continue a", true),
        ("-x SHMEM_ON_LOSS=continue a : -x SHMEM_ON_LOSS=end b", false),
    ] {
        let plan = plan(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(plan.goes_on(), goes_on, "{line}");
    }
}

#[test]
fn calls_are_checked_where_the_environment_of_the_pes_asks_for_it() {
    for (line, checked) in [
        ("-x SHMEM_DEBUG=1 a", true),
        ("-x SHMEM_DEBUG=off a", false),
        ("-x SHMEM_DEBUG=0 -x SMA_DEBUG=1 a", false),
        ("-x SHMEM_DEBUG= -x SMA_DEBUG=1 a", true),
        ("-x SHMEM_DEBUG=1 -x SHMEM_DEBUG=no a", false),
    ] {
        let plan = plan(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(plan.programs[0].is_checked(), checked, "{line}");
    }
}

#[test]
fn programs_are_separated_by_colons() {
    let plan = plan("-n 1 -x A=1=2 a x : -n 2 -x B= b : c").unwrap_or_else(|e| panic!("{e}"));
    let found: Vec<_> =
        plan.programs.iter().map(|p| (p.count, p.command.to_str().unwrap())).collect();
    assert_eq!(found, [(1, "a"), (2, "b"), (1, "c")]);
    assert_eq!(plan.programs[0].environment, [("A".into(), "1=2".into())]);
    assert_eq!(plan.programs[1].environment, [("B".into(), "".into())]);
}

#[test]
fn wrong_usage_is_refused() {
    for line in [
        "",
        "-n 0 a",
        "-n -1 a",
        "-n x a",
        "-n 18446744073709551615 a",
        "-n 4194305 a",
        "--timeout 1e19 a",
        "--timeout nan a",
        "-n",
        "--timeout 0 a",
        "--timeout -1 a",
        "--hosts 3 -n 2 a",
        "a : --label b",
        "a :",
        ": a",
        "--unknown a",
        "--bind socket a",
        "--hosts 2 -n 2 --fault sometimes a",
        "-x =3 a",
        "-x= a",
        "a : -x =3 b",
    ] {
        assert!(plan(line).is_err(), "{line}");
    }
}

/// What is said of a line that is refused.
fn refusal(line: &str) -> String {
    match plan(line) {
        Ok(_) => panic!("{line}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn options_of_other_launchers_are_answered_with_those_of_this_one() {
    for (line, said) in [
        ("-np 2 --map-by node ./p", "no option '--map-by': use --placement block or cyclic"),
        ("--tag-output -n 2 p", "no option '--tag-output': use --label"),
        ("-n 2 --bind-to=core p", "no option '--bind-to': use --bind core"),
        ("-H n1,n2 p", "no option '-H': use --host"),
        ("-hosts n1,n2 p", "no option '-hosts': use --host"),
        ("-machinefile m -n 2 p", "no option '-machinefile': use --hostfile"),
        ("p : -launcher ssh p", "no option '-launcher': use --rsh"),
    ] {
        let told = refusal(line);
        assert!(told.contains(said) && told.contains("Usage:"), "{line}: {told}");
    }
    let line =
        "--allow-run-as-root --mca a b -np 4 --oversubscribe -x A=b --hostfile f -N 2 ./p -H";
    let told = refusal(line);
    let named: Vec<&str> = told.split("no option '").skip(1).collect();
    let named: Vec<&str> = named.iter().map(|part| part.split('\'').next().unwrap()).collect();
    assert_eq!(named, ["--allow-run-as-root", "--mca", "--oversubscribe", "-N"], "{told}");
    // What belongs to the program, and values of options, are none of ours.
    for line in ["./p --map-by node", "-x A=1 ./p -H", "-- p --mca"] {
        assert!(plan(line).is_ok(), "{line}");
    }
}

#[test]
fn nobody_is_told_to_pass_an_option_as_a_value() {
    for line in ["--speed 3 ./p", "-q ./p", "p : --speed 3 ./p"] {
        let told = refusal(line);
        assert!(told.contains("unexpected argument") && !told.contains("as a value"), "{told}");
    }
    assert!(refusal("--lable ./p").contains("'--label'"));
    for (line, said) in [
        ("--timeout -5 p", "expected a number of seconds"),
        ("--ppn -1 --host a.x p", "expected a whole number, at least 1"),
        ("--hosts -2 p", "expected a whole number, at least 1"),
    ] {
        let told = refusal(line);
        assert!(told.contains(said), "{line}: {told}");
    }
}

#[test]
fn the_program_is_not_taken_for_a_variable() {
    for line in ["-n 2 -x ./prog", "-x a.out", "-x /bin/true", "-x 1A p", "p : -x ./q"] {
        let told = refusal(line);
        assert!(told.contains("not a name of a variable"), "{line}: {told}");
    }
    for line in ["-x PATH p", "-x not_set_anywhere_1 p", "-x my.name=1 p", "-x A-b= p"] {
        assert!(plan(line).is_ok(), "{line}");
    }
}

#[test]
fn machines_take_as_many_pes_as_they_are_said_to() {
    let plan = |line: &str| plan(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    let dealt = |line: &str| plan(line).machines.map(|machines| machines.of_pe);
    assert_eq!(dealt("--host a.x:2,b.x:1 app"), Some(vec![0, 0, 1]));
    assert_eq!(dealt("-host a.x,b.x -ppn 2 app"), Some(vec![0, 0, 1, 1]));
    assert_eq!(dealt("--host a.x,b.x -n 3 app"), Some(vec![0, 0, 1]));
    assert_eq!(dealt("--host a.x,b.x app : -n 2 other"), Some(vec![0, 0, 1]));
    assert_eq!(dealt("--host localhost -n 3 app"), None);
    assert_eq!(plan("--host localhost:3 app").size(), 3);
    let ssh = |rsh: &Rsh| *rsh == Rsh::Command(vec!["ssh".into()]);
    assert!(ssh(&plan("--rsh ssh app").remote.rsh));
    assert!(ssh(&plan("--host a.x app").remote.rsh), "of these Slurm need not know");
}

#[test]
fn srun_starts_agents_on_hosts_that_slurm_has_named_alone() {
    let remote = |line: &[&str], has_srun| {
        let options = Options::try_parse_from([&["oshrun"][..], line].concat()).unwrap();
        options.remote(has_srun).rsh
    };
    assert_eq!(remote(&["app"], true), Rsh::Srun);
    assert_eq!(remote(&["app"], false), Rsh::default());
    assert_eq!(remote(&["--host", "a", "app"], true), Rsh::default());
    assert_eq!(remote(&["--hostfile", "f", "app"], true), Rsh::default());
    let own = Rsh::Command(vec!["rsh".into()]);
    assert_eq!(remote(&["--rsh", "rsh", "app"], true), own);
}

#[test]
fn the_command_for_other_machines_has_the_quotes_of_a_shell() {
    let rsh = |line: &str| {
        let plan =
            Plan::try_from_args(["oshrun", "--rsh", line, "app"].map(Into::into).into_iter());
        let words = |rsh| match rsh {
            Rsh::Command(words) => words,
            Rsh::Srun => panic!("not asked for"),
        };
        plan.map(|plan| words(plan.remote.rsh)).map_err(|error| error.to_string())
    };
    let found = rsh("ssh -o 'ProxyCommand nc %h %p' -i \"a b\" c\\ d").unwrap();
    assert_eq!(found, ["ssh", "-o", "ProxyCommand nc %h %p", "-i", "a b", "c d"]);
    for (line, why) in [("ssh -o 'a b", "a quote is not closed"), (" ", "no command is given")] {
        let found = rsh(line).unwrap_err();
        assert!(found.contains(why) && found.contains("--rsh"), "{found}");
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    for line in [
        "--host a.x --hosts 2 -n 2 app",
        "--host a.x --hostfile f app",
        "--host a.x:1 -n 2 app",
        "--host 3 app",
        "--hostfile /no/such/file app",
        "--ppn 2 app",
        "--host a.x --silence 0.5 app",
        "--host a.x --rsh= app",
    ] {
        assert!(plan(line).is_err(), "{line}");
    }
}

#[test]
fn a_profile_takes_no_word_that_follows() {
    let asked = plan("--profile -np 4 a").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((asked.size(), asked.programs[0].command.to_str()), (4, Some("a")));
    assert!(asked.wish.profile.is_some() && asked.wish.trace.is_none());
    let trace = plan("--trace=t.json --trace-events 9 a").unwrap_or_else(|e| panic!("{e}"));
    assert!(trace.wish.trace.is_some_and(|path| path.is_absolute()));
    assert_eq!(trace.wish.events, 9);
    for wrong in ["--profile=xml a", "--trace-events 9 a", "--trace=x --trace-events 0 a"] {
        assert!(plan(wrong).is_err(), "{wrong}");
    }
}
