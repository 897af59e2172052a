// SPDX-License-Identifier: Apache-2.0
//! Hosts in processes of their own, some of which are killed.

use super::*;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

const PATIENCE: Duration = Duration::from_secs(20);

/// A forked process that plays part of a host. Killed and reaped at the latest when dropped.
struct Process(Option<Pid>);

impl Process {
    fn run(body: impl FnOnce()) -> Process {
        // SAFETY: the child runs `body`, which takes no lock that another thread of the parent may
        // have held (allocation is made safe by the C library), and leaves by `_exit`.
        match unsafe { fork() }.unwrap() {
            ForkResult::Parent { child } => Process(Some(child)),
            ForkResult::Child => {
                // Not left alone when the test program is killed.
                let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL);
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
                // SAFETY: ends the child without running what belongs to the parent.
                unsafe { libc::_exit(outcome.is_err().into()) }
            }
        }
    }

    fn pid(&self) -> Pid {
        self.0.expect("not reaped yet")
    }

    fn kill(mut self) {
        kill(self.pid(), Signal::SIGKILL).unwrap();
        let pid = self.0.take().expect("not reaped yet");
        assert_eq!(waitpid(pid, None), Ok(WaitStatus::Signaled(pid, Signal::SIGKILL, false)));
    }

    fn finish(mut self) {
        let pid = self.0.take().expect("not reaped yet");
        assert_eq!(waitpid(pid, None), Ok(WaitStatus::Exited(pid, 0)), "a check in it failed");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = kill(pid, Signal::SIGKILL);
            let _ = waitpid(pid, None);
        }
    }
}

fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

/// Opens `slot` of window 0 of `port` and says so in scratchpad `slot` of this side.
fn open_slot(port: &EmulatedPort, slot: usize) -> InboundMemory {
    let slot_size = port.capabilities().windows[0].slot_size();
    let memory = InboundMemory::new(slot_size as usize).unwrap();
    let address = port.register(&memory.region()).unwrap();
    port.mw_set_trans(0, slot, address, slot_size).unwrap();
    port.spad_write(slot, 1);
    memory
}

/// Keeps a process alive until it is killed.
fn sleep_for_good() -> ! {
    loop {
        std::thread::park();
    }
}

fn wait_open(port: &dyn NtbPort, slot: usize) {
    until("a process to open its slot", || port.peer_spad_read(slot) == 1);
}

#[test]
fn processes_of_a_host_share_its_port() {
    let fabric = Fabric::create(&spec(Profile::IntelGen3, Speed::Direct)).unwrap();
    let (a, b) = link(&fabric);
    a.link_enable().unwrap();
    b.link_enable().unwrap();
    // Each process owns a doorbell bit and a slot; it answers what it is sent, plus one, through
    // the other direction's slot of the same number.
    let processes: Vec<Process> = (0..3usize)
        .map(|lane| {
            let fabric = &fabric;
            Process::run(move || {
                let port = fabric.ports(1).unwrap().left;
                port.db_clear_mask(1 << lane);
                let memory = open_slot(&port, lane);
                let mut window = port.outbound(0).unwrap();
                let slot_size = memory.size();
                for round in 1..=50 {
                    until("a letter", || {
                        if memory.load(0) != round {
                            port.db_wait(1 << lane, Duration::from_millis(100));
                            port.db_clear(1 << lane);
                        }
                        memory.load(0) == round
                    });
                    send(&mut *window, lane * slot_size, &(round + 1).to_ne_bytes());
                }
                until("the end", || memory.load(8) == 1);
            })
        })
        .collect();
    let answers: Vec<InboundMemory> = (0..3).map(|lane| open_slot(&a, lane)).collect();
    let mut window = a.outbound(0).unwrap();
    let slot_size = answers[0].size();
    (0..3).for_each(|lane| wait_open(&*a, lane));
    for round in 1u64..=50 {
        for lane in 0..3 {
            send(&mut *window, lane * slot_size, &round.to_ne_bytes());
            a.peer_db_set(1 << lane);
        }
        for (lane, memory) in answers.iter().enumerate() {
            until("an answer", || memory.load(0) == round + 1);
            assert_eq!(memory.load(8), 0, "lane {lane}");
        }
    }
    for lane in 0..3 {
        send(&mut *window, lane * slot_size + 8, &1u64.to_ne_bytes());
    }
    processes.into_iter().for_each(Process::finish);
    let [sent, answered] = fabric.counters(0).unwrap();
    assert_eq!(sent[Event::Bytes], 3 * 51 * 8);
    assert_eq!(answered[Event::Bytes], 3 * 50 * 8, "counted over processes that are gone");
    assert_eq!(sent[Event::WindowFaults] + answered[Event::WindowFaults], 0);
}

#[test]
fn a_killed_process_leaves_registers_and_mapped_memory() {
    let fabric = Fabric::create(&spec(Profile::Plx8749, Speed::Direct)).unwrap();
    let (a, b) = link(&fabric);
    a.link_enable().unwrap();
    b.link_enable().unwrap();
    let start = || {
        let fabric = &fabric;
        Process::run(move || {
            let port = fabric.ports(1).unwrap().left;
            let _memory = [open_slot(&port, 0), open_slot(&port, 1)];
            port.spad_write(7, 77);
            sleep_for_good();
        })
    };
    let victim = start();
    wait_open(&*a, 1);
    until("the last word", || a.peer_spad_read(7) == 77);
    let mut window = a.outbound(0).unwrap();
    send(&mut *window, 0, &[1; 64]);
    victim.kill();
    assert!(a.link_state().up, "the host still runs");
    assert_eq!(a.peer_spad_read(7), 77, "scratchpads keep stale values");
    send(&mut *window, 0, &[2; 64]);
    assert_eq!(a.counters()[Event::WindowFaults], 0, "memory that is mapped stays");
    let slot_size = b.capabilities().windows[0].slot_size() as usize;
    let failed = window.open(slot_size, 64);
    assert!(matches!(failed, Err(PortError::System { .. })), "of the dead: {failed:?}");
    send(&mut *window, slot_size, &[3; 64]);
    assert_eq!(a.counters()[Event::WindowFaults], 1, "memory of the dead is not found any more");
    // Another process of the host takes over.
    [0, 1, 7].into_iter().for_each(|spad| b.spad_write(spad, 0));
    let successor = start();
    wait_open(&*a, 1);
    until("the successor", || a.peer_spad_read(7) == 77);
    send(&mut *window, 0, &[4; 64]);
    send(&mut *window, slot_size, &[4; 64]);
    assert_eq!(a.counters()[Event::WindowFaults], 1);
    let mut bytes = [0; 8];
    window.read(slot_size, &mut bytes);
    assert_eq!(bytes, [4; 8]);
    // A handle that goes away closes only what is still its own.
    let own = open_slot(&b, 2);
    let other = fabric.ports(1).unwrap().left;
    let others = open_slot(&other, 2);
    drop(b);
    send(&mut *window, 2 * slot_size, &[6; 8]);
    assert_eq!((own.load(0), others.load(0)), (0, 0x0606_0606_0606_0606));
    drop(other);
    send(&mut *window, 2 * slot_size, &[7; 8]);
    assert_eq!(a.counters()[Event::WindowFaults], 2);
    successor.kill();
}

#[test]
fn a_writer_that_is_killed_holds_up_no_barrier() {
    let tied = tied(&FabricSpec { slots: Some(1), ..spec(Profile::IntelGen3, Speed::Direct) });
    for round in 0..10 {
        tied.memory.store(0, 0);
        let fabric = &tied.fabric;
        let writer = Process::run(|| {
            let port = fabric.ports(0).unwrap().right;
            let mut window = port.outbound(0).unwrap();
            let bytes = vec![1; window.size()];
            loop {
                send(&mut *window, 0, &bytes);
            }
        });
        until("the writer", || tied.memory.load(0) != 0);
        // On a busy machine all of them might die within their first write.
        until("a write", || round > 0 || tied.a.counters()[Event::Bytes] > 0);
        writer.kill();
        // Whether or not it died with a write half placed, which shows as an odd number.
        tied.b.link_disable().unwrap();
        tied.b.link_enable().unwrap();
    }
    assert_eq!(tied.a.local().requesters().len(), 1, "the place of the dead is taken over");
    assert!(tied.a.counters()[Event::Bytes] > 0, "what the dead have written stays counted");
}

#[test]
fn a_stopped_writer_makes_a_barrier_fail_in_time() {
    let timing = LinkTiming::default();
    let tied = tied(&FabricSpec { timing, ..spec(Profile::IntelGen3, Speed::Direct) });
    let fabric = &tied.fabric;
    let writer = Process::run(|| {
        // A write half placed, for as long as the process lives.
        let port = fabric.ports(0).unwrap().right;
        let mut claim = requester::Claim::new(Arc::clone(&port.link), 0).unwrap();
        claim.enter();
        port.spad_write(0, 1);
        sleep_for_good();
    });
    until("the writer", || tied.b.peer_spad_read(0) == 1);
    let error = tied.b.mw_clear_trans(0, 0, 1).unwrap_err();
    assert!(matches!(error, PortError::Busy(_)), "{error}");
    assert!(error.to_string().contains(&writer.pid().to_string()), "{error}");
    writer.kill();
    tied.b.mw_clear_trans(0, 0, 1).unwrap();
}

#[test]
fn nothing_stays_open_in_the_system() {
    // In a process of its own, since other tests open and close descriptors meanwhile.
    Process::run(|| {
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().filter(|line| line.contains("memfd:tombolo")).count()
        };
        let before = (open(), mapped());
        let tied = tied(&spec(Profile::Switchtec, Speed::Direct));
        let mut window = tied.a.outbound(0).unwrap();
        send(&mut *window, 0, &[1; 64]);
        assert!(open() > before.0 && mapped() > before.1);
        drop(window);
        drop(tied);
        assert_eq!((open(), mapped()), before);
    })
    .finish();
}
