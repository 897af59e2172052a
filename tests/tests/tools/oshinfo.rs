// SPDX-License-Identifier: Apache-2.0
//! `oshinfo`: settings, jobs, tables, and what is wrong with machines.

use super::{Case, variables};
use crate::support::{Ran, run, scratch, tool};
use libtest_mimic::Failed;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub const CASES: [Case; 14] = [
    ("oshinfo_shows_where_values_come_from", "sh", oshinfo_shows_where_values_come_from),
    ("oshinfo_says_what_is_wrong_with_values", "sh", oshinfo_says_what_is_wrong_with_values),
    ("oshinfo_says_why_nothing_is_kept", "sh", oshinfo_says_why_nothing_is_kept),
    ("oshinfo_refuses_options_of_another_kind", "sh", oshinfo_refuses_options_of_another_kind),
    ("oshinfo_shows_the_ring_of_its_job", "sh", oshinfo_shows_the_ring_of_its_job),
    ("oshinfo_shows_a_job_on_one_host", "sh", oshinfo_shows_a_job_on_one_host),
    ("oshinfo_measures_what_it_predicts", "sh", oshinfo_measures_what_it_predicts),
    ("oshinfo_lists_collectives_once", "sh", oshinfo_lists_collectives_once),
    ("oshinfo_compares_saved_tables", "sh", oshinfo_compares_saved_tables),
    ("jobs_that_map_static_data_measure_so", "sh", jobs_that_map_static_data_measure_so),
    ("tables_name_the_devices_they_hold_for", "sh", tables_name_the_devices_they_hold_for),
    ("rules_that_do_not_fit_are_told_once", "sh", rules_that_do_not_fit_are_told_once),
    ("oshinfo_refuses_what_has_no_meaning_in_a_job", "sh", oshinfo_refuses_in_a_job),
    ("oshinfo_finds_what_is_wrong_with_machines", "sh", oshinfo_finds_what_is_wrong),
];

fn oshinfo_shows_where_values_come_from(prefix: &Path) -> Result<(), Failed> {
    let mut command = Command::new(prefix.join("bin/oshinfo"));
    command.env("SHMEM_SYMMETRIC_SIZE", "12m").env_remove("SHMEM_DEBUG").env("SMA_DEBUG", "1");
    let text = run(&mut command, Duration::from_secs(60))?.succeeded()?.stdout;
    for line in ["= 12m [from the environment]", "= on [from SMA_DEBUG]", "OpenSHMEM 1.6"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("Mistakes in environment variables"), "{text}");
    Ok(())
}

/// One wrong value hides neither the others nor what else there is to see.
fn oshinfo_says_what_is_wrong_with_values(prefix: &Path) -> Result<(), Failed> {
    let mut command = Command::new(prefix.join("bin/oshinfo"));
    for (name, value) in [
        ("SHMEM_SYMMETRIC_SIZE", "lots"),
        ("SHMEM_TRANSPORTS", "foo"),
        ("SHMEM_COLL", "reduce:bogus"),
        ("SHMEM_FOO", "1"),
    ] {
        command.env(name, value);
    }
    let text = run(&mut command, Duration::from_secs(60))?.succeeded()?.stdout;
    for line in [
        "Mistakes in environment variables\n",
        "SHMEM_SYMMETRIC_SIZE='lots': expected a number",
        "SHMEM_TRANSPORTS='foo': there is no transport 'foo'; expected one of shm",
        "SHMEM_COLL='reduce:bogus': 'bogus' is not an algorithm of reduce; expected one of",
        "there is no environment variable SHMEM_FOO",
        "= lots [from the environment, not valid]",
        "= foo [from the environment]",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    for variable in variables() {
        assert!(text.contains(&format!("  {}", variable.name)), "{}: {text}", variable.name);
    }
    Ok(())
}

/// Options that say nothing of what is asked for are not ignored.
fn oshinfo_refuses_options_of_another_kind(prefix: &Path) -> Result<(), Failed> {
    let oshinfo = |line: &str| {
        let mut command = Command::new(prefix.join("bin/oshinfo"));
        run(command.args(line.split(' ')), Duration::from_secs(60))
    };
    for line in [
        "--host n1 --tuning",
        "--host n1 --collectives",
        "--host n1 --predict gather",
        "--rsh ssh --host n1 --collectives",
        "--root / --collectives",
        "--form json --collectives",
        "--form json --doctor",
        "--form json --predict gather",
        "--by put --tuning",
        "--size 8 --doctor",
        "--pes 3 --size 8 --collectives",
        "--hosts 2 --collectives",
        "--topology ring --tuning",
    ] {
        let ran = oshinfo(line)?;
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert!(ran.stderr.contains("cannot be used with"), "{line}: {ran:?}");
    }
    for (line, why) in [
        ("--host n1", "--doctor"),
        ("--by put", "--predict"),
        ("--form json", "--tuning"),
        ("--doctor --host n1,,n2", "the list has an empty entry"),
        ("--doctor --host=-oProxyCommand=false", "is not a name of a host"),
        ("--doctor --host n1:x", "expected a number of PEs"),
        ("--doctor --root /nonexist", "expected a directory with copies of /proc and /sys"),
        ("--predict gather --pes 0", "expected a whole number, at least 1"),
        ("--predict gather --size 0", "expected 1 byte to 1 TiB"),
        ("--predict gather --size 9223372036854775808", "expected 1 byte to 1 TiB"),
    ] {
        let ran = oshinfo(line)?;
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert!(ran.stderr.contains(why), "{line}: {ran:?}");
    }
    let help = oshinfo("--help")?.succeeded()?.stdout;
    assert!(help.contains("--tuning=diff OLD NEW") && !help.contains("TABLE"), "{help}");
    Ok(())
}

fn oshinfo_says_why_nothing_is_kept(prefix: &Path) -> Result<(), Failed> {
    let refused = |variables: &[(&str, &str)]| -> Result<String, Failed> {
        let mut command = Command::new(prefix.join("bin/oshinfo"));
        for name in ["HOME", "XDG_CACHE_HOME", "SHMEM_TUNE_CACHE"] {
            command.env_remove(name);
        }
        command.arg("--tuning").envs(variables.iter().copied());
        let ran = run(&mut command, Duration::from_secs(60))?;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
        Ok(ran.stderr)
    };
    let homeless = "neither SHMEM_TUNE_CACHE nor XDG_CACHE_HOME nor HOME is the absolute path";
    for variables in [&[][..], &[("HOME", "")], &[("HOME", "here"), ("XDG_CACHE_HOME", "there")]] {
        let said = refused(variables)?;
        assert!(said.contains(homeless) && !said.contains("off"), "{said}");
    }
    let said = refused(&[("SHMEM_TUNE_CACHE", "off")])?;
    assert!(said.contains("SHMEM_TUNE_CACHE is off"), "{said}");
    Ok(())
}

/// `oshrun JOB oshinfo ARGUMENTS`, with measurements of its own, which have time on a busy machine.
fn oshinfo_in_a_job(prefix: &Path, job: &str, arguments: &str) -> Result<Ran, Failed> {
    let mut command = Command::new(prefix.join("bin/oshrun"));
    command.env("SHMEM_TUNE_CACHE", "off").env("SHMEM_TUNE_BUDGET", "600");
    for name in ["SHMEM_TUNE", "SHMEM_TRANSPORTS", "SHMEM_NTB_DIRECT", "SHMEM_NTB_PROFILE"] {
        command.env_remove(name);
    }
    command.args(job.split_whitespace()).arg(prefix.join("bin/oshinfo"));
    command.args(arguments.split_whitespace());
    // PEs that are more than the processors measure for a minute where other processes are busy.
    Ok(run(&mut command, Duration::from_secs(240))?)
}

/// The numbers, in hexadecimal, that stand behind `word`.
fn hex_behind(text: &str, word: &str) -> Vec<u64> {
    let parts = text.split(word).skip(1);
    let digits =
        parts.map(|rest| rest.trim_start_matches("0x").split(|c: char| !c.is_ascii_hexdigit()));
    let first = digits.map(|mut words| words.next().unwrap_or_default().to_owned());
    first.map(|word| u64::from_str_radix(&word, 16).expect("a number")).collect()
}

fn oshinfo_shows_the_ring_of_its_job(prefix: &Path) -> Result<(), Failed> {
    for (job, hosts, pes) in [("-n 4 --hosts 4", 4, 4), ("-n 5 --hosts 2 --placement cyclic", 2, 5)]
    {
        let text = oshinfo_in_a_job(prefix, job, "")?.succeeded()?.stdout;
        let count = |part: &str| text.matches(part).count();
        assert!(text.contains(&format!("{pes} on {hosts} hosts")), "{text}");
        // Once for the whole job, once per host, once per link end, once per PE.
        for (part, times) in [
            ("Environment variables\n", 1),
            ("\nJob\n", 1),
            ("\nRoutes to and between PEs\n", 1),
            ("\nHost ", hosts),
            (&format!("of a ring of {hosts}, epoch 0x"), hosts),
            ("  window 0 of each port: 64 MiB in 128 slots of 512 KiB", hosts),
            ("  window 1 of each port: 4 GiB in 128 slots of 32 MiB", hosts),
            ("doorbells: 16 bits, interrupt vectors: 1", hosts),
            ("right: link up, Gen3 x", hosts),
            ("left: link up, Gen3 x", hosts),
            ("right: counters bytes=", hosts),
            ("\nPE ", pes),
            ("lanes in use: right ", pes),
            ("direct windows: ", pes),
            ("ring: packets injected ", pes),
        ] {
            assert_eq!(count(part), times, "{part:?} in {job}: {text}");
        }
        let epochs = hex_behind(&text, "epoch ");
        assert_eq!(epochs.len(), 3 * hosts, "{text}");
        assert!(epochs.iter().all(|epoch| *epoch >= 1), "{epochs:?}: {text}");
        let ways = |class: &str| {
            let lines = text.lines().filter_map(|line| line.trim().strip_prefix(class));
            lines.map(str::trim_start).map(str::to_owned).collect::<Vec<_>>()
        };
        let far = ways("PEs of a neighbouring host ");
        assert!(far.len() == 1 && far[0].starts_with("put ntb at every size; get ntb"), "{text}");
        // PEs of one host share a cache, a NUMA node, or no more than the host.
        let near = ways("PEs that share ").len() + ways("PEs of the same ").len();
        assert_eq!(near, usize::from(pes > hosts), "{text}");
    }
    Ok(())
}

fn oshinfo_shows_a_job_on_one_host(prefix: &Path) -> Result<(), Failed> {
    let text = oshinfo_in_a_job(prefix, "-n 2", "")?.succeeded()?.stdout;
    for part in ["2 on 1 host\n", "mapped of other PEs: 1 heaps", "\n  itself ", "broadcast"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("epoch"), "a ring where there is none: {text}");
    let text =
        oshinfo_in_a_job(prefix, "-n 2 -x SHMEM_INFO=1", "--collectives")?.succeeded()?.stdout;
    // The same facts are printed at start.
    for part in ["2 on 1 host\n", "mapped of other PEs: 1 heaps", "SHMEM_INFO (or SMA_INFO) = on"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    Ok(())
}

fn oshinfo_measures_what_it_predicts(prefix: &Path) -> Result<(), Failed> {
    let check = |job: &str, arguments: &str, rows: usize| -> Result<(), Failed> {
        let text = oshinfo_in_a_job(prefix, job, arguments)?.succeeded()?.stdout;
        // Where PEs outnumber processors no range is said.
        let is_row = |line: &&str| line.contains(" to ") || line.contains("not known");
        let table = text.lines().filter(|line| line.contains(" %  ")).filter(is_row);
        assert_eq!(table.count(), rows, "{job} {arguments}: {text}");
        let within = format!("over {rows} estimate");
        let mean = text.lines().filter(|line| line.starts_with("Mean error ")).count();
        let counted = text.contains(" measurements were in the stated range");
        assert!(text.contains(&within) && (counted || text.contains("not known")), "{text}");
        assert!(mean == 1 && text.contains("All received bytes were checked."), "{text}");
        Ok(())
    };
    check("-n 3", "--predict gather", 12)?;
    check("-n 2 --hosts 2", "--predict broadcast --by put --size 64k", 1)?;
    check("-n 3 --hosts 2", "--predict alltoall --size 100", 3)?;
    check("-n 3 --hosts 3", "--predict ring-shift --by staged", 4)?;
    let text = oshinfo_in_a_job(prefix, "-n 2 -x SHMEM_TUNE=off", "--predict gather --by get")?;
    let text = text.succeeded()?.stdout;
    assert!(text.matches("unknown").count() == 4 && text.contains("Nothing is known"), "{text}");
    let alone = oshinfo_in_a_job(prefix, "-n 1", "--predict gather")?;
    assert!(alone.code == Some(1) && alone.stderr.contains("several PEs"), "{alone:?}");
    Ok(())
}

fn oshinfo_lists_collectives_once(prefix: &Path) -> Result<(), Failed> {
    let alone = tool(prefix.join("bin/oshinfo"), &["--collectives"])?;
    let operations =
        ["sync", "broadcast", "collect", "fcollect", "alltoall", "alltoalls", "reduce", "scan"];
    for operation in operations {
        let line = |line: &str| line.split_whitespace().next() == Some(operation);
        assert_eq!(alone.lines().filter(|text| line(text)).count(), 1, "{operation}: {alone}");
    }
    let job = oshinfo_in_a_job(prefix, "-n 3", "--collectives")?.succeeded()?.stdout;
    let chosen = |operation: &str| {
        let row = |line: &&str| line.split_whitespace().next() == Some(operation);
        job.lines().find(row).is_some_and(|row| row.ends_with(" above") || row.ends_with(" size"))
    };
    assert!(chosen("broadcast") && chosen("reduce"), "{job}");
    let share = job.lines().find(|line| line.trim_start().starts_with("share  "));
    let share: Vec<&str> = share.unwrap_or("").split_whitespace().collect();
    assert!(share.len() == 19 && share[2] == "/" && share[17] == "/", "{share:?}: {job}");
    let time = share[18].parse::<f64>()?;
    assert!(time > 0.0 && time < 60e6, "4 MiB took {time} us: {job}");
    let losses = job.lines().filter(|line| line.trim_start().starts_with("taken / fastest "));
    let losses: Vec<f64> = losses
        .flat_map(|line| line.split_whitespace().skip(3).map(str::parse::<f64>))
        .collect::<Result<_, _>>()?;
    // One size of a barrier, six of each of the seven that move data.
    assert!(losses.len() == 43 && losses.iter().all(|loss| *loss >= 1.0), "{losses:?}: {job}");
    let asked = "-n 3 -x SHMEM_COLL=broadcast:tree";
    let asked = oshinfo_in_a_job(prefix, asked, "--collectives")?.succeeded()?.stdout;
    assert!(asked.contains("broadcast  tree at every size"), "{asked}");
    let refused = "-n 2 -x SHMEM_COLL=sync:hosts,reduce:ringg";
    let refused = oshinfo_in_a_job(prefix, refused, "--collectives")?;
    let why = "'ringg' is not an algorithm of reduce; expected one of publish, share,";
    assert!(refused.code == Some(1) && refused.stderr.contains(why), "{}", refused.stderr);
    let whole = tool(prefix.join("bin/oshinfo"), &["--predict"]).expect_err("no pattern is named");
    assert!(whole.contains("exit code 2") && whole.contains("--predict <PATTERN>"), "{whole}");
    Ok(())
}

fn oshinfo_compares_saved_tables(prefix: &Path) -> Result<(), Failed> {
    let cache = scratch("tools-tables");
    let _ = std::fs::remove_dir_all(&cache);
    let mut command = Command::new(prefix.join("bin/oshrun"));
    command.args(["-n", "2"]).arg(prefix.join("bin/oshinfo")).arg("--collectives");
    command.env("SHMEM_TUNE_CACHE", &cache).env_remove("SHMEM_TUNE");
    run(&mut command, Duration::from_secs(240))?.succeeded()?;
    let table = std::fs::read_dir(&cache)?.next().ok_or("no table was kept")??.path();
    let table = table.to_str().ok_or("a path in UTF-8")?;
    // Estimates go by what was measured over the transports that the environment asks for, not by what came last.
    let mut by_cma = Command::new(prefix.join("bin/oshrun"));
    by_cma.args(["-n", "2", "-x", "SHMEM_TRANSPORTS=cma"]).arg(prefix.join("bin/oshinfo"));
    by_cma.env("SHMEM_TUNE_CACHE", &cache).env_remove("SHMEM_TUNE");
    run(&mut by_cma, Duration::from_secs(240))?.succeeded()?;
    for (transports, told) in [("shm,cma", "over shm+cma\n"), ("cma", "over cma\n")] {
        let mut predict = Command::new(prefix.join("bin/oshinfo"));
        predict.args(["--predict", "gather", "--pes", "2", "--size", "8", "--by", "put"]);
        predict.env("SHMEM_TUNE_CACHE", &cache).env("SHMEM_TRANSPORTS", transports);
        let text = run(&mut predict, Duration::from_secs(60))?.succeeded()?.stdout;
        assert!(text.contains(told), "{transports}: {text}");
    }
    let compare =
        |old: &str, new: &str| tool(prefix.join("bin/oshinfo"), &["--tuning=diff", old, new]);
    let same = compare(table, table)?;
    assert!(same.contains("  0 differ, ") && same.contains("both take the same ones"), "{same}");
    let absent = compare(table, "/no/such/table.json").expect_err("a table that is not there");
    assert!(absent.contains("oshinfo: /no/such/table.json: No such file"), "{absent}");
    let other = cache.join("one-class.json");
    let text = std::fs::read_to_string(table)?;
    let (head, _) = text.split_once("\"curves\":[").ok_or("a table has curves")?;
    std::fs::write(&other, format!("{head}\"curves\":[]}}"))?;
    let other = other.to_str().ok_or("a path in UTF-8")?;
    for both in [compare(table, other)?, compare(other, table)?] {
        assert!(both.contains("not measured") && !both.contains("same ones"), "{both}");
    }
    for arguments in [
        &["--tuning=diff"][..],
        &["--tuning=diff", table],
        &["--tuning", table, table, table],
        &["collectives"],
        &["--collectives", table],
    ] {
        let mut command = Command::new(prefix.join("bin/oshinfo"));
        let ran = run(command.args(arguments), Duration::from_secs(60))?;
        assert_eq!(ran.code, Some(2), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("two saved tables"), "{ran:?}");
    }
    Ok(())
}

/// A job whose static data are copied by the kernel leaves no table to jobs that map them.
fn jobs_that_map_static_data_measure_so(prefix: &Path) -> Result<(), Failed> {
    let cache = scratch("tools-statics");
    let _ = std::fs::remove_dir_all(&cache);
    let gets_by = |how: &str| {
        let mut command = Command::new(prefix.join("bin/oshrun"));
        command.args(["-n", "2"]).arg(prefix.join("bin/oshinfo")).arg("--tuning");
        command.env("SHMEM_TUNE_CACHE", &cache).env("SHMEM_STATIC", how);
        command.env("SHMEM_TUNE_BUDGET", "600").env_remove("SHMEM_TUNE");
        command.env_remove("SHMEM_TRANSPORTS");
        let text = run(&mut command, Duration::from_secs(60))?.succeeded()?.stdout;
        let heading = text.lines().find(|line| line.contains(", static buffers: "));
        Ok::<String, Failed>(heading.ok_or("gets from static data were not measured")?.to_owned())
    };
    let copied = gets_by("cma")?;
    assert!(copied.ends_with("static buffers: cma at every size"), "{copied}");
    let mapped = gets_by("remap")?;
    assert!(mapped.contains("static buffers: cached"), "{mapped}");
    Ok(())
}

/// Another network interface, or another bridge, is measured anew.
fn tables_name_the_devices_they_hold_for(prefix: &Path) -> Result<(), Failed> {
    let mut command = Command::new(prefix.join("bin/oshrun"));
    command.args(["-n", "2", "--hosts", "2"]).arg(prefix.join("bin/oshinfo")).arg("--tuning");
    command.env("SHMEM_TUNE", "always").env("SHMEM_TUNE_CACHE", "off");
    command.env("SHMEM_TUNE_BUDGET", "5").env("SHMEM_TRANSPORTS", "shm,ntb,tcp");
    let ran = run(&mut command, Duration::from_secs(60))?.succeeded()?;
    assert!(ran.stdout.contains("; shm+ntb (plx8749)+tcp (lo)"), "{}", ran.stdout);
    Ok(())
}

fn rules_that_do_not_fit_are_told_once(prefix: &Path) -> Result<(), Failed> {
    let said = |rules: &str| {
        let mut command = Command::new(prefix.join("bin/oshrun"));
        command.args(["-n", "3", "--hosts", "2"]).arg(prefix.join("bin/oshinfo"));
        command.env("SHMEM_TUNE", "off").env("SHMEM_ROUTE", rules).env_remove("SHMEM_TRANSPORTS");
        Ok::<String, Failed>(run(&mut command, Duration::from_secs(60))?.succeeded()?.stderr)
    };
    // One PE is alone on its host: it has no use for the rule.
    let used = said("put:heap:>=64K=cma")?;
    assert!(!used.contains("SHMEM_ROUTE"), "{used}");
    let unused = said("far-node:put=cma")?;
    assert_eq!(unused.matches("'far-node:put=cma' is not used").count(), 1, "{unused}");
    let many = said("put:8..16=cma,put:100..200=streaming")?;
    assert_eq!(many.matches("more than 4 ranges of sizes").count(), 1, "{many}");
    assert!(many.contains("'put:100..200=streaming'"), "{many}");
    Ok(())
}

fn oshinfo_refuses_in_a_job(prefix: &Path) -> Result<(), Failed> {
    for (arguments, word) in [
        ("--predict gather --hosts 2", "this job has the hosts"),
        ("--predict gather --pes 2", "this job has the hosts"),
        ("--predict gather --topology ring", "this job has the hosts"),
        ("--tuning /no/such/table.json", "takes no file"),
        ("--tuning=diff /no/such/a.json /no/such/b.json", "without oshrun"),
        ("--doctor", "examines machines"),
    ] {
        let ran = oshinfo_in_a_job(prefix, "-n 2", arguments)?;
        assert_eq!(ran.code, Some(2), "{arguments}: {ran:?}");
        assert_eq!(ran.stderr.matches(word).count(), 1, "{arguments}: {ran:?}");
        assert!(ran.stdout.is_empty(), "{ran:?}");
    }
    let routes = oshinfo_in_a_job(prefix, "-n 2", "--tuning")?.succeeded()?.stdout;
    assert_eq!(routes.matches("Routes\n").count(), 1, "{routes}");
    let much = oshinfo_in_a_job(
        prefix,
        "-n 2 -x SHMEM_SYMMETRIC_SIZE=4m",
        "--predict gather --by put --size 1g",
    )?;
    assert!(much.code == Some(1) && much.stderr.contains("SHMEM_SYMMETRIC_SIZE"), "{much:?}");
    let mut estimate = Command::new(prefix.join("bin/oshinfo"));
    estimate.args(["--predict", "gather", "--hosts", "100", "--pes", "100"]);
    let ran = run(&mut estimate, Duration::from_secs(60))?;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    Ok(())
}

fn oshinfo_finds_what_is_wrong(prefix: &Path) -> Result<(), Failed> {
    let oshinfo = |arguments: &[&str]| {
        let mut command = Command::new(prefix.join("bin/oshinfo"));
        command.arg("--doctor").args(arguments).env_remove("SHMEM_SYMMETRIC_SIZE");
        run(&mut command, Duration::from_secs(60))
    };
    let here = oshinfo(&[])?;
    assert!(matches!(here.code, Some(0 | 3 | 4)) && here.stderr.is_empty(), "{here:?}");
    for subject in ["processors", "huge pages", "CMA", "locked memory", "libfabric", "PMIx", "ssh"]
    {
        let told = here
            .stdout
            .lines()
            .filter(|line| line.get(9..).is_some_and(|l| l.starts_with(subject)));
        assert_eq!(told.count(), 1, "{subject}: {here:?}");
    }
    // Jobs run here, or these tests would not.
    assert!(here.code != Some(4), "{here:?}");

    let other = scratch("tools-doctor");
    for (path, text) in [
        ("proc/meminfo", "MemTotal: 8388608 kB\n"),
        ("proc/self/cgroup", "0::/a\n"),
        ("sys/fs/cgroup/a/memory.max", "1048576\n"),
        ("proc/sys/kernel/yama/ptrace_scope", "3\n"),
        ("proc/sys/kernel/hostname", "far\n"),
    ] {
        let path = other.join(path);
        fs::create_dir_all(path.parent().expect("below the folder"))?;
        fs::write(path, text)?;
    }
    let there = oshinfo(&["--root", other.to_str().ok_or("not UTF-8")?])?;
    assert_eq!(there.code, Some(4), "{there:?}");
    for part in ["impossible on far ", "echo max > /sys/fs/cgroup/a/memory.max", "ptrace_scope=1"] {
        assert!(there.stdout.contains(part), "{part}: {there:?}");
    }

    // Another machine, as far as the command that reaches it says so.
    let rsh = other.join("rsh");
    fs::write(&rsh, "#!/bin/sh\nshift\nexec sh -c \"$*\"\n")?;
    tool("chmod", &["+x".as_ref(), rsh.as_os_str()])?;
    let both = oshinfo(&["--host", "n1:4,n1", "--rsh", rsh.to_str().ok_or("not UTF-8")?])?;
    assert_eq!(both.code, here.code, "{both:?}");
    assert_eq!(
        both.stdout.matches("What makes jobs slow or impossible on ").count(),
        2,
        "{both:?}"
    );
    let away = oshinfo(&["--host", "n1", "--rsh", "false"])?;
    assert!(away.code == Some(4) && away.stdout.contains("no job starts"), "{away:?}");
    Ok(())
}
