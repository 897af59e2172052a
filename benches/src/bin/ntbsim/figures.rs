// SPDX-License-Identifier: Apache-2.0
//! The published figures 4 to 7 redone, and the cost up to 64 hosts.
//!
//! Published: Lim & Cha, 3 to 5 hosts, PEX8749, Gen3 x8. Only ranges are known of its curves; they
//! stand beside ours. "Prototype" is a model of its way of working on the same modelled link.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use tombolo_core::sizes::size;
use tombolo_transports::ntb::sim::{Breakdown, Operation, Pattern, Prototype, Writer, tlp_bytes};

use crate::base;
use crate::plot::{Band, Curve, Plot};
use crate::targets::{play, single, stream};

const SIZES: [usize; 9] = [4096, 8192, 16384, 32768, 65536, 131_072, 262_144, 524_288, 1 << 20];
const THREADS: [u16; 4] = [1, 2, 4, 8];
/// The published boards move data by DMA; so do these figures, except where they say CPU.
const WRITER: Writer = Writer::Dma;

/// Text of figures.md, and where the plots go.
struct Page<'a> {
    dir: &'a Path,
    text: String,
}

/// Runs everything and writes figures.md and the plots to `dir`.
pub fn draw(dir: &Path) -> Result<(), String> {
    fs::create_dir_all(dir).map_err(|error| format!("cannot make {}: {error}", dir.display()))?;
    let mut page = Page { dir, text: String::new() };
    page.line("# The NTB ring, simulated");
    page.line("");
    page.line(
        "All figures are modelled: the real protocol code under virtual time, one PE per host, \
         service threads polling, links Gen3 x8, MPS 256, 24 bytes per TLP, 8 % for ACK, flow \
         control and SKP. Made by `cargo dev sim figures DIR`. The published figures are of real \
         hardware (Lim & Cha, PEX8749, Gen3 x8, 3 to 5 hosts); of their curves only the ranges \
         quoted here are known. The prototype is a model of the published way of working (one \
         transfer at a time, scratchpads, interrupts, store and forward) on the same link.",
    );
    efficiency(&mut page)?;
    all_to_neighbours(&mut page)?;
    steps(&mut page)?;
    latency(&mut page)?;
    throughput(&mut page)?;
    turn_around(&mut page)?;
    growth(&mut page)?;
    let path = dir.join("figures.md");
    fs::write(&path, &page.text)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    crate::tool::print(&page.text);
    Ok(())
}

/// Figure 4: throughput of puts to the neighbour by size, raw and through the library.
fn efficiency(page: &mut Page<'_>) -> Result<(), String> {
    page.heading("Figure 4: put to the neighbour by size");
    page.line(
        "Published: raw above 6000 MB/s at 1 MiB, put 4500 to 5000 MB/s, 80 to 85 % of raw. Raw \
         is a DMA engine's write of that size for the prototype, and the endless stream of TLPs \
         for the ring.",
    );
    page.row(&[
        "size",
        "ring MB/s",
        "of raw",
        "ring, CPU copies",
        "of raw",
        "prototype (model)",
        "of raw",
    ]);
    page.rule(7);
    let prototype = prototype();
    let mut curves = ["ring, DMA", "ring, CPU copies", "prototype (model)", "raw, DMA (model)"]
        .map(|name| Curve { name: name.into(), points: Vec::new() });
    for bytes in SIZES {
        let dma = stream(Writer::Dma, bytes, 1)?;
        let cpu = stream(Writer::Cpu, bytes, 1)?;
        let (old, raw) =
            (prototype.throughput(bytes as u64, 1), prototype.raw_throughput(bytes as u64));
        let rates = [dma.throughput_gbs, cpu.throughput_gbs, old, raw];
        for (curve, rate) in curves.iter_mut().zip(rates) {
            curve.points.push((bytes as f64, rate * 1000.0));
        }
        let share = |share: Option<f64>| format!("{:.1} %", share.unwrap_or(0.0) * 100.0);
        page.row(&[
            &size(bytes as u64),
            &format!("{:.0}", dma.throughput_gbs * 1000.0),
            &share(dma.of_ceiling),
            &format!("{:.0}", cpu.throughput_gbs * 1000.0),
            &share(cpu.of_ceiling),
            &format!("{:.0}", old * 1000.0),
            &share(Some(old / raw)),
        ]);
    }
    page.plot(
        "figure-4.svg",
        &Plot {
            title: "Put to the neighbour by size (modelled)",
            x_label: "bytes of a put",
            y_label: "MB/s",
            log_x: true,
            curves: curves.into(),
            bands: vec![Band { x: (524_288.0, 1_048_576.0), y: (4500.0, 5000.0) }],
        },
    )
}

/// Figure 4 with all links in use at the same time.
fn all_to_neighbours(page: &mut Page<'_>) -> Result<(), String> {
    page.heading("Figure 4, all hosts sending: puts to the right neighbour by size");
    page.line(
        "MB/s of each host, DMA engines, and their share of what the link carries. A host sends, takes in and \
         acknowledges at the same time.",
    );
    page.row(&["size", "3 hosts", "of raw", "4 hosts", "of raw", "5 hosts", "of raw"]);
    page.rule(7);
    for bytes in SIZES {
        let mut cells = vec![size(bytes as u64)];
        for hosts in 3..=5u16 {
            let mut case = base(hosts, Pattern::Neighbour(1), Operation::Put, WRITER);
            case.workload.size = bytes;
            case.workload.count = (16 << 20) / bytes.max(64 << 10) as u64;
            case.workload.depth = 16;
            let report = play(&case)?;
            let of_host = report.throughput_gbs / f64::from(hosts) * 1000.0;
            let share = report.of_ceiling.unwrap_or(0.0) * 100.0;
            cells.extend([format!("{of_host:.0}"), format!("{share:.1} %")]);
        }
        page.row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    Ok(())
}

/// What each step takes of a put of 64 KiB and of one of 8 bytes over two links.
fn steps(page: &mut Page<'_>) -> Result<(), String> {
    page.heading("What each step costs");
    page.line(
        "Ring: mean of all packets of single acknowledged puts over two links, per packet and link, in ns, where \
         processors copy; acknowledgements are packets, too. Steps of different packets overlap.",
    );
    page.row(&["step", "8 bytes", "64 KiB"]);
    page.rule(3);
    let hop = |bytes: usize| -> Result<_, String> {
        let mut case = base(5, Pattern::Pair(2), Operation::Put, Writer::Cpu);
        case.workload.size = bytes;
        case.workload.count = 20;
        case.workload.depth = 1;
        Ok(play(&case)?.per_hop)
    };
    let (short, long) = (hop(8)?, hop(64 << 10)?);
    for (step, of) in STEPS {
        page.row(&[step, &format!("{:.0}", of(&short)), &format!("{:.0}", of(&long))]);
    }
    page.line("");
    page.line("The model of the prototype, per link, in ns; here the steps follow each other.");
    page.row(&["step", "ns"]);
    page.rule(2);
    let model = prototype();
    for (step, ns) in [
        ("start of the DMA engine", model.dma_start_ns),
        ("four scratchpads and the doorbell written", model.announce_ns),
        ("doorbell to interrupt handler", model.interrupt_ns),
        ("handler to service thread", model.wake_ns),
        ("four scratchpads read", model.read_ns),
        ("a free thread found", model.dispatch_ns),
        ("64 KiB on the wire", 65_536.0 / model.raw_throughput(65_536) - model.dma_start_ns),
    ] {
        page.row(&[step, &format!("{ns:.0}")]);
    }
    Ok(())
}

/// A step of a packet: what it is, and its time.
type Step = (&'static str, fn(&Breakdown) -> f64);

const STEPS: [Step; 10] = [
    ("payload into the first window", |hop| hop.inject_ns),
    ("payload from a slot to the next window, where it is passed on", |hop| hop.relay_ns),
    ("payload to its destination", |hop| hop.deliver_ns),
    ("header and control lines written", |hop| hop.store_ns),
    ("lines found and taken in, looks in vain included", |hop| hop.detect_ns),
    ("CRC", |hop| hop.crc_ns),
    ("processor stalled because posted writes backed up", |hop| hop.backed_up_ns),
    ("behind other writes", |hop| hop.queue_ns),
    ("on the wire", |hop| hop.wire_ns),
    ("under way", |hop| hop.propagation_ns),
];

/// Figure 5: time of one acknowledged put of 1 MiB to the last host, by hosts and threads.
fn latency(page: &mut Page<'_>) -> Result<(), String> {
    page.heading("Figure 5: latency of one put by hosts and threads");
    page.line(
        "1 MiB from host 0 over all links but one to the last host, and the acknowledgement, in \
         us. Published: threads 1 to 2 take off 38 to 45 %, 2 to 4 another 12 to 25 %, 8 are no \
         better. The model of the prototype shows the same order but smaller gains. The ring has \
         no bubble for more threads to fill. The last column has all hosts send at once, each as far.",
    );
    page.row(&["hosts", "threads", "ring us", "prototype (model) us", "ring, all sending us"]);
    page.rule(5);
    let prototype = prototype();
    let mut curves = Vec::new();
    for hosts in 3..=5u16 {
        let mut ring = Curve { name: format!("ring, {hosts} hosts"), points: Vec::new() };
        let mut old = Curve { name: format!("prototype, {hosts} hosts"), points: Vec::new() };
        for threads in THREADS {
            let ours = one_way_round(hosts, 1 << 20, threads)? / 1000.0;
            let links = u32::from(hosts) - 1;
            let theirs = prototype.put_ns(1 << 20, links, 1, u32::from(threads)) / 1000.0;
            ring.points.push((f64::from(threads), ours));
            old.points.push((f64::from(threads), theirs));
            page.row(&[
                &hosts.to_string(),
                &threads.to_string(),
                &format!("{ours:.1}"),
                &format!("{theirs:.1}"),
                &format!("{:.1}", all_one_way_round(hosts, 1 << 20, threads)? / 1000.0),
            ]);
        }
        curves.extend([ring, old]);
    }
    page.plot(
        "figure-5.svg",
        &Plot {
            title: "Latency of one 1 MiB put to the last host (modelled)",
            x_label: "service threads",
            y_label: "us",
            log_x: false,
            curves,
            bands: Vec::new(),
        },
    )
}

/// Figure 6: throughput of a stream of 64 KiB puts to the neighbour, by threads.
fn throughput(page: &mut Page<'_>) -> Result<(), String> {
    page.heading("Figure 6: throughput by threads");
    page.line("A stream of puts to the neighbour from one PE, MB/s.");
    page.row(&[
        "threads",
        "ring 64 KiB",
        "ring 1 MiB",
        "prototype (model) 64 KiB",
        "prototype (model) 1 MiB",
    ]);
    page.rule(5);
    let prototype = prototype();
    let mut curves = ["ring, 64 KiB", "ring, 1 MiB", "prototype, 64 KiB", "prototype, 1 MiB"]
        .map(|name| Curve { name: name.into(), points: Vec::new() });
    for threads in THREADS {
        let rates = [
            stream(WRITER, 65536, threads)?.throughput_gbs,
            stream(WRITER, 1 << 20, threads)?.throughput_gbs,
            prototype.throughput(65536, u32::from(threads)),
            prototype.throughput(1 << 20, u32::from(threads)),
        ]
        .map(|rate| rate * 1000.0);
        for (curve, rate) in curves.iter_mut().zip(rates) {
            curve.points.push((f64::from(threads), rate));
        }
        let cells = rates.map(|rate| format!("{rate:.0}"));
        page.row(&[&threads.to_string(), &cells[0], &cells[1], &cells[2], &cells[3]]);
    }
    page.plot(
        "figure-6.svg",
        &Plot {
            title: "Stream of puts to the neighbour by threads (modelled)",
            x_label: "service threads",
            y_label: "MB/s",
            log_x: false,
            curves: curves.into(),
            bands: Vec::new(),
        },
    )
}

/// Figure 7: growth of the turn-around with the number of hosts.
fn turn_around(page: &mut Page<'_>) -> Result<(), String> {
    page.heading("Figure 7: turn-around by hosts");
    page.line(
        "As figure 5, one thread, and what each added host adds. Published: +22 to +36 % per \
         added host. The last two columns have all hosts send at once, each as far.",
    );
    page.row(&[
        "size",
        "hosts",
        "ring us",
        "added",
        "prototype (model) us",
        "added",
        "ring, all sending us",
        "added",
    ]);
    page.rule(8);
    let prototype = prototype();
    let mut curves = Vec::new();
    for bytes in [4096usize, 65536, 1 << 20] {
        let name = size(bytes as u64);
        let mut ring = Curve { name: format!("ring, {name}"), points: Vec::new() };
        let mut old = Curve { name: format!("prototype, {name}"), points: Vec::new() };
        let mut before: Option<[f64; 3]> = None;
        for hosts in 3..=6u16 {
            let ours = one_way_round(hosts, bytes, 1)? / 1000.0;
            let theirs = prototype.put_ns(bytes as u64, u32::from(hosts) - 1, 1, 1) / 1000.0;
            let all = all_one_way_round(hosts, bytes, 1)? / 1000.0;
            let added = |now: f64, was: Option<f64>| {
                was.map_or("-".into(), |was| format!("+{:.1} %", (now / was - 1.0) * 100.0))
            };
            page.row(&[
                &name,
                &hosts.to_string(),
                &format!("{ours:.1}"),
                &added(ours, before.map(|b| b[0])),
                &format!("{theirs:.1}"),
                &added(theirs, before.map(|b| b[1])),
                &format!("{all:.1}"),
                &added(all, before.map(|b| b[2])),
            ]);
            ring.points.push((f64::from(hosts), ours));
            old.points.push((f64::from(hosts), theirs));
            before = Some([ours, theirs, all]);
        }
        curves.extend([ring, old]);
    }
    page.plot(
        "figure-7.svg",
        &Plot {
            title: "Turn-around by hosts (modelled)",
            x_label: "hosts",
            y_label: "us",
            log_x: false,
            curves,
            bands: Vec::new(),
        },
    )
}

/// What 2 to 64 hosts cost.
fn growth(page: &mut Page<'_>) -> Result<(), String> {
    page.heading("Up to 64 hosts");
    page.line(
        "Shortest ways, one PE per host: 8 bytes to the opposite host, and all-to-all puts of \
         8 KiB as a share of what all raw links carry. One core that copies everything it sends, \
         passes on and takes in cannot fill both directions of both links; more threads or the \
         DMA engine can. (Several threads that load one link are modelled as a lower bound.) \
         With 2 hosts only two of the four directions are used.",
    );
    page.row(&[
        "hosts",
        "farthest, hops",
        "8-byte put and acknowledgement us",
        "all-to-all, CPU, 1 thread",
        "CPU, 4 threads",
        "DMA, 1 thread",
        "DMA, 2 threads",
    ]);
    page.rule(7);
    let mut curve = Curve { name: "8-byte put, farthest host".into(), points: Vec::new() };
    for hosts in [2u16, 3, 4, 8, 16, 32, 64] {
        let hops = hosts / 2;
        let single = single(Writer::Cpu, hosts, Pattern::Pair(hops), 8, 1)? / 1000.0;
        let mut cells = [hosts.to_string(), hops.to_string(), format!("{single:.2}")].to_vec();
        for (writer, threads) in
            [(Writer::Cpu, 1), (Writer::Cpu, 4), (Writer::Dma, 1), (Writer::Dma, 2)]
        {
            let mut case = base(hosts, Pattern::Alltoall, Operation::Put, writer);
            case.lanes = threads;
            case.workload.size = 8192;
            case.workload.count = 16 * u64::from(hosts);
            case.workload.depth = 32;
            let report = play(&case)?;
            let share = report.of_ceiling.unwrap_or(0.0) * 100.0;
            cells.push(format!("{:.1} GB/s, {share:.0} %", report.throughput_gbs));
        }
        curve.points.push((f64::from(hosts), single));
        page.row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    }
    page.plot(
        "hosts.svg",
        &Plot {
            title: "8 bytes to the farthest host and back (modelled)",
            x_label: "hosts",
            y_label: "us",
            log_x: false,
            curves: vec![curve],
            bands: Vec::new(),
        },
    )
}

/// Host 0 over all links but one to the last host, as in the published ring, which sends one way
/// only. Ours would take the short way: a target as many hops off in a larger ring has none.
fn one_way_round(hosts: u16, bytes: usize, lanes: u16) -> Result<f64, String> {
    let far = hosts - 1;
    single(WRITER, 2 * far + 1, Pattern::Pair(far), bytes, lanes)
}

/// The same while all hosts send, in the same sense round the ring.
fn all_one_way_round(hosts: u16, bytes: usize, lanes: u16) -> Result<f64, String> {
    let far = hosts - 1;
    single(WRITER, 2 * far + 1, Pattern::Neighbour(far), bytes, lanes)
}

fn prototype() -> Prototype {
    let link = base(2, Pattern::Pair(1), Operation::Put, WRITER).link;
    debug_assert_eq!(tlp_bytes(&link, WRITER), u64::from(link.mps_bytes));
    Prototype::new(link)
}

impl Page<'_> {
    fn heading(&mut self, text: &str) {
        let _ = write!(self.text, "\n## {text}\n\n");
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn row(&mut self, cells: &[&str]) {
        if !self.text.ends_with("|\n") && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
        let _ = writeln!(self.text, "| {} |", cells.join(" | "));
    }

    fn rule(&mut self, columns: usize) {
        let _ = writeln!(self.text, "|{}", "---|".repeat(columns));
    }

    fn plot(&mut self, name: &str, plot: &Plot) -> Result<(), String> {
        plot.save(&self.dir.join(name))?;
        let _ = write!(self.text, "\n![{}]({name})\n", plot.title);
        Ok(())
    }
}
