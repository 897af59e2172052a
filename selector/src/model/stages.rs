//! Transfers in packets over one or more hops, with packets overlapping on their way.

/// A measured time.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// Payload in bytes.
    pub bytes: u64,
    /// Hops, at least 1.
    pub hops: u32,
    /// Nanoseconds.
    pub ns: f64,
}

/// Terms of a packetised transfer. A packet passes `1 + hops` stages: it is copied into the first
/// window and then carried on by every host on the way, the last of which delivers it.
///
/// With N packets of which the first stage takes s and every later one f, the time is
/// `startup + hops * hop + s + (N - 1) * max(s, f) + hops * f`: the parts of packets that overlap are
/// counted once, by their slowest stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stages {
    /// Payload of a packet in bytes; `u64::MAX` where transfers are not cut up.
    pub packet: u64,
    /// Once per transfer, nanoseconds.
    pub startup: f64,
    /// Per hop, nanoseconds.
    pub hop: f64,
    /// Per packet, in its first stage, nanoseconds.
    pub per_packet: f64,
    /// Per byte in the first stage, nanoseconds.
    pub send: f64,
    /// Per byte in every later stage, nanoseconds.
    pub forward: f64,
}

const TERMS: usize = 5;

/// Packets tried in a fit: none, and the powers of two a transport might use.
const PACKETS: [u64; 8] = [u64::MAX, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 18];

impl Stages {
    /// Nanoseconds of a transfer of `bytes` bytes over `hops` hops.
    pub fn at(&self, bytes: u64, hops: u32) -> f64 {
        let count = bytes.div_ceil(self.packet).max(1);
        let whole = self.packet.min(bytes) as f64;
        let last = (bytes - (count - 1) * self.packet.min(bytes)) as f64;
        let (send, forward) = (self.per_packet + whole * self.send, whole * self.forward);
        self.startup
            + f64::from(hops) * self.hop
            + (self.per_packet + last * self.send)
            + (count - 1) as f64 * send.max(forward)
            + f64::from(hops) * last * self.forward
    }

    /// The packet among `candidates` with which a transfer would take least; ties go to the first.
    pub fn best_packet(&self, bytes: u64, hops: u32, candidates: &[u64]) -> Option<u64> {
        let cost = |packet: &u64| Stages { packet: *packet, ..*self }.at(bytes, hops);
        candidates.iter().copied().min_by(|a, b| cost(a).total_cmp(&cost(b)))
    }

    /// Mean relative distance from observations.
    pub fn error(&self, seen: &[Observation]) -> f64 {
        let off = |o: &Observation| (self.at(o.bytes, o.hops) / o.ns - 1.0).abs();
        seen.iter().map(off).sum::<f64>() / seen.len().max(1) as f64
    }

    /// The terms that come closest to the observations; none with fewer observations than terms.
    pub fn fit(seen: &[Observation]) -> Option<Stages> {
        if seen.len() <= TERMS {
            return None;
        }
        let fits = PACKETS.iter().map(|&packet| {
            let stages = minimise(start(packet, seen), |s| loss(s, seen));
            (loss(&stages, seen), stages)
        });
        // The first of equals: whole transfers before packets, small packets before large ones.
        fits.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, stages)| stages)
    }

    fn terms(&self) -> [f64; TERMS] {
        [self.startup, self.hop, self.per_packet, self.send, self.forward]
    }

    fn with(&self, t: [f64; TERMS]) -> Stages {
        Stages {
            packet: self.packet,
            startup: t[0],
            hop: t[1],
            per_packet: t[2],
            send: t[3],
            forward: t[4],
        }
    }
}

/// Sum of squared relative errors: a small transfer counts as much as a large one.
fn loss(stages: &Stages, seen: &[Observation]) -> f64 {
    seen.iter().map(|o| (stages.at(o.bytes, o.hops) / o.ns - 1.0).powi(2)).sum()
}

/// A guess: the fastest transfer is all start-up, the largest all bytes.
fn start(packet: u64, seen: &[Observation]) -> Stages {
    let least = seen.iter().map(|o| o.ns).fold(f64::INFINITY, f64::min);
    let per_byte =
        seen.iter().max_by_key(|o| o.bytes).map_or(1.0, |o| o.ns / o.bytes.max(1) as f64).max(1e-6);
    Stages {
        packet,
        startup: least * 0.5,
        hop: least * 0.25,
        per_packet: least * 0.1,
        send: per_byte * 0.7,
        forward: per_byte * 0.3,
    }
}

/// Pattern search over the logarithms of the terms: steps up and down along each term, finer when
/// none helps. Deterministic, without derivatives, and terms cannot become negative.
fn minimise(from: Stages, loss: impl Fn(&Stages) -> f64) -> Stages {
    let mut best = from;
    let mut least = loss(&best);
    let mut step = 1.0f64;
    let mut previous = best.terms();
    while step > 1e-4 {
        let before = least;
        for term in 0..TERMS {
            for sign in [1.0, -1.0] {
                let mut terms = best.terms();
                terms[term] *= (sign * step).exp();
                let tried = best.with(terms);
                let cost = loss(&tried);
                if cost < least {
                    (best, least) = (tried, cost);
                    break;
                }
            }
        }
        // What helped along all terms together often helps once more.
        let here = best.terms();
        let leap: [f64; TERMS] = std::array::from_fn(|i| here[i] * here[i] / previous[i]);
        let tried = best.with(leap);
        let cost = loss(&tried);
        if cost < least {
            (best, least) = (tried, cost);
        }
        previous = here;
        if least >= before * (1.0 - 1e-3) {
            step *= 0.6;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_hop_is_the_published_formula() {
        let s = Stages { packet: 100, startup: 0., hop: 0., per_packet: 0., send: 2., forward: 3. };
        // (s1 + s2) + (N - 1) * max(s1 + s2, s3) + s3 with s1 + s2 = 200, s3 = 300, N = 5.
        assert_eq!(s.at(500, 1), 200.0 + 4.0 * 300.0 + 300.0);
        assert_eq!(s.at(0, 1), 0.0);
    }

    #[test]
    fn the_best_packet_balances_overhead_and_overlap() {
        let s = Stages { packet: 0, startup: 0., hop: 0., per_packet: 500., send: 1., forward: 1. };
        let best = s.best_packet(1 << 20, 3, &[64, 4096, 16384, 1 << 20]).unwrap();
        assert_eq!(best, 16384);
    }

    fn generate(s: Stages, sizes: &[u64], noise: f64) -> Vec<Observation> {
        let mut seen = Vec::new();
        for hops in 1..=3 {
            for (i, &bytes) in sizes.iter().enumerate() {
                let wobble = 1.0 + noise * ((i as f64 * 7.3 + f64::from(hops)).sin());
                seen.push(Observation { bytes, hops, ns: s.at(bytes, hops) * wobble });
            }
        }
        seen
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Sizes and distances that were not used for the fit are predicted within six per cent.
        #[test]
        fn generated_rings_are_recovered(
            startup in 500.0f64..20_000.0, hop in 200.0f64..20_000.0,
            per_packet in 50.0f64..2000.0, send in 0.05f64..2.0, forward in 0.05f64..2.0,
            packet in prop::sample::select(&PACKETS[1..]), noise in 0.0f64..0.02,
        ) {
            let truth = Stages { packet, startup, hop, per_packet, send, forward };
            let fitted = Stages::fit(&generate(truth, crate::probe::LADDER, noise)).unwrap();
            let mut fresh = generate(truth, crate::probe::CHECKS, 0.0);
            fresh.extend((4..7).map(|hops| {
                Observation { bytes: 48 << 10, hops, ns: truth.at(48 << 10, hops) }
            }));
            prop_assert!(fitted.error(&fresh) < 0.06, "{} {fitted:?}", fitted.error(&fresh));
        }
    }
}
