// SPDX-License-Identifier: Apache-2.0
//! `oshivshmem`: ties virtual machines into a ring of NTB links.

#[path = "../tool.rs"]
mod tool;

use clap::{CommandFactory, Parser};
use std::path::PathBuf;
use std::process::ExitCode;
use tombolo_core::config::{Bytes, Value};
use tombolo_transports::ntb::port::ivshmem::server::{Change, Server};

const EXAMPLES: &str = "\
Each PATH is one link, between two virtual machines. A ring of machines has a
link from each to the next and from the last to the first; each machine has two
devices:

  oshivshmem /run/link0 /run/link1 &
  qemu-system-x86_64 -machine q35 -device intel-iommu,intremap=on \\
      -chardev socket,id=right,path=/run/link0 \\
      -device ivshmem-doorbell,chardev=right,vectors=2 \\
      -chardev socket,id=left,path=/run/link1 \\
      -device ivshmem-doorbell,chardev=left,vectors=2 ...

`oshinfo`, in the machine, shows what its devices still need.";

/// Options.
#[derive(Parser)]
#[command(
    name = "oshivshmem",
    version = tool::VERSION,
    about = "Serve NTB links to virtual machines, as shared memory and doorbells (ivshmem)",
    after_help = EXAMPLES,
)]
struct Options {
    /// Shared memory of each link: a power of two from 1m
    #[arg(long, default_value = "32m", value_parser = size)]
    size: usize,

    /// Interrupts for each side, 1 to 16; the machines' devices are given the same number
    #[arg(long, default_value = "2", value_parser = tool::whole(1, 16))]
    vectors: u32,

    /// Sockets to listen at; those that a killed oshivshmem has left are used again
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = usize::try_from(Bytes::parse(text)?.0).map_err(|e| e.to_string())?;
    match bytes.is_power_of_two() && bytes >= 1 << 20 {
        true => Ok(bytes),
        false => Err("expected a power of two from 1m".into()),
    }
}

fn main() -> ExitCode {
    if tool::completes(Options::command) {
        return ExitCode::SUCCESS;
    }
    let Options { size, vectors, paths } = tool::options();
    let mut servers = Vec::new();
    for path in &paths {
        match Server::bind(path, size, vectors as usize) {
            Ok(server) => servers.push(server),
            Err(error) => {
                tool::complain(format_args!("oshivshmem: {}: {error}", path.display()));
                return ExitCode::FAILURE;
            }
        }
    }
    // Whoever starts it waits for this line before machines are started.
    tool::print("ready\n");
    let threads: Vec<_> =
        servers.into_iter().map(|server| std::thread::spawn(move || serve(server))).collect();
    for thread in threads {
        // A panic has been printed already.
        let _ = thread.join();
    }
    ExitCode::FAILURE
}

/// Serves a link until the program ends.
fn serve(mut server: Server) {
    let path = server.path().display().to_string();
    loop {
        let what = match server.wait() {
            Ok(Change::Came(side)) => format!("side {side} has come"),
            Ok(Change::Went(side)) => format!("side {side} has gone"),
            Ok(Change::Refused) => "one was turned away, a link has two sides".into(),
            Err(error) => return tool::complain(format_args!("oshivshmem: {path}: {error}")),
        };
        tool::complain(format_args!("oshivshmem: {path}: {what}"));
    }
}
