// SPDX-License-Identifier: Apache-2.0
//! Programs built with MPICH as clients of our PMI server.

use crate::harness::{Outcome, run};
use libtest_mimic::Trial;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use tombolo_tests::unless;

const PROGRAM: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    int rank, size, sum, *appnum, found;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc > 1 && rank == size - 1) MPI_Abort(MPI_COMM_WORLD, atoi(argv[1]));
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &appnum, &found);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d, sum %d, program %d\n", rank, size, sum, found ? *appnum : -1);
    MPI_Finalize();
    return 0;
}
"#;

/// MPICH's compiler wrapper, if it finds its headers: other MPIs install an `mpicc` too.
static MPICC: LazyLock<Option<&str>> = LazyLock::new(|| {
    ["mpicc.mpich", "mpicc"].into_iter().find(|name| {
        let shown = Command::new(name).arg("-show").output();
        let is_mpich = shown.is_ok_and(|o| {
            o.status.success() && String::from_utf8_lossy(&o.stdout).contains("mpich")
        });
        let preprocess = ["-E", "-include", "mpi.h", "-x", "c", "/dev/null"];
        is_mpich && Command::new(name).args(preprocess).output().is_ok_and(|o| o.status.success())
    })
});

pub fn trials() -> Vec<Trial> {
    let cases: [(&str, fn()); 3] = [
        ("mpich_clients_join_and_talk", clients_join_and_talk),
        ("mpich_clients_learn_their_program", clients_learn_their_program),
        ("mpich_abort_ends_the_job_with_its_code", abort_ends_the_job),
    ];
    let missing = MPICC.is_none().then_some("needs mpicc of MPICH");
    let trial = |(name, case): (&str, fn())| {
        let trial = Trial::test(name, move || {
            case();
            Ok(())
        });
        unless(missing, trial)
    };
    cases.map(trial).into()
}

fn clients_join_and_talk() {
    let outcome = job(&["-n", "4"], &[]).well();
    let expected: Vec<String> =
        (0..4).map(|rank| format!("rank {rank} of 4, sum 6, program 0")).collect();
    assert_eq!(outcome.sorted(), expected);
}

fn clients_learn_their_program() {
    let program = program();
    let program = program.to_str().expect("a plain path");
    let outcome = job(&["-n", "1"], &[":", "-n", "2", program]);
    let expected =
        [0, 1, 2].map(|rank| format!("rank {rank} of 3, sum 3, program {}", usize::from(rank > 0)));
    assert_eq!(outcome.well().sorted(), expected);
}

fn abort_ends_the_job() {
    let outcome = job(&["-n", "3"], &["42"]);
    assert_eq!(outcome.code(), 42);
    assert!(!outcome.stderr.contains("oshrun:"), "{}", outcome.stderr);
}

#[track_caller]
fn job(options: &[&str], args: &[&str]) -> Outcome {
    let mut command = crate::harness::oshrun("");
    command.args(options).arg(program()).args(args);
    run(command)
}

/// The program, compiled at its first use.
fn program() -> PathBuf {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (source, program) = (directory.join("mpich_client.c"), directory.join("mpich_client"));
        std::fs::write(&source, PROGRAM).expect("cargo's directory for tests is writable");
        let mpicc = MPICC.expect("the trials are ignored without it");
        let compiled = Command::new(mpicc).arg(&source).arg("-o").arg(&program).status();
        assert!(compiled.expect("mpicc runs").success(), "mpicc cannot compile");
        program
    });
    BUILT.clone()
}
