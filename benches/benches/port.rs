// SPDX-License-Identifier: Apache-2.0
//! The emulated NTB port alone, without the protocol: what its model lets through on the clock of the
//! wall. The ring protocol over it cannot do better.
//!
//! `cargo bench -p tombolo-benches --bench port`

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tombolo_transports::ntb::port::emulated::{Fabric, FabricSpec, Speed};
use tombolo_transports::ntb::port::{InboundMemory, Line, LinkTiming, NtbPort};

const CHUNK: usize = 8192;
const CHUNKS: usize = 16;
/// Where chunks begin; header lines come first, as in the rings.
const PAYLOAD: usize = 4096;

fn chunks_with_headers(c: &mut Criterion) {
    let ceiling = LinkTiming::default().ceiling_bytes_per_s(64) / f64::from(1 << 30);
    println!("ceiling of a modelled link for stores by the CPU: {ceiling:.3} GiB/s");
    let mut group = c.benchmark_group("8 KiB and a header line");
    // What counts against the ceiling are payloads, the header's too.
    group.throughput(Throughput::Bytes((CHUNK + Line::BYTES) as u64));
    for speed in [Speed::Modelled, Speed::Direct] {
        let fabric = Fabric::create(&FabricSpec { speed, ..FabricSpec::new(3) }).expect("a fabric");
        let near = fabric.ports(0).expect("host 0").right;
        let far = fabric.ports(1).expect("host 1").left;
        for port in [&near, &far] {
            port.link_enable().expect("a link that nobody has cut");
        }
        let slot = far.capabilities().windows[0].slot_size();
        let memory = InboundMemory::new(slot as usize).expect("memory");
        let address = far.register(&memory.region()).expect("registered memory");
        far.mw_set_trans(0, 0, address, slot).expect("a translation");
        let mut window = near.outbound(0).expect("a window");
        window.open(0, slot as usize).expect("a range that the peer has opened");
        let source = vec![1u8; CHUNK];
        let mut sent = 0;
        group.bench_function(BenchmarkId::from_parameter(format!("{speed:?}")), |b| {
            b.iter(|| {
                let at = sent % CHUNKS;
                // SAFETY: the source has as many bytes.
                unsafe { window.write(PAYLOAD + at * CHUNK, source.as_ptr(), CHUNK) };
                window.write_line(at * Line::BYTES, &Line([sent as u64; 8]));
                window.flush();
                near.poll();
                sent += 1;
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = port;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_millis(800));
    targets = chunks_with_headers
}
criterion_main!(port);
