// SPDX-License-Identifier: Apache-2.0
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
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
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

    /// Mean relative distance from observations.
    pub fn error(&self, seen: &[Observation]) -> f64 {
        let off = |o: &Observation| (self.at(o.bytes, o.hops) / o.ns - 1.0).abs();
        seen.iter().map(off).sum::<f64>() / seen.len().max(1) as f64
    }

    /// The terms that come closest to the observations; none with fewer observations than terms.
    ///
    /// For a given packet, and once it is settled which stage is the slowest, the time is linear in
    /// the terms: both cases of every packet are solved exactly and the best is kept.
    pub fn fit(seen: &[Observation]) -> Option<Stages> {
        if seen.len() <= TERMS {
            return None;
        }
        let cases = PACKETS.iter().flat_map(|packet| [(*packet, true), (*packet, false)]);
        let fits = cases.filter_map(|(packet, first_stage_slowest)| {
            let rows = seen.iter().map(|o| row(o, packet, first_stage_slowest));
            let [startup, hop, per_packet, send, forward] = least_squares(rows)?;
            let fitted = Stages { packet, startup, hop, per_packet, send, forward };
            Some((loss(&fitted, seen), fitted))
        });
        // The first of equals: whole transfers before packets, small packets before large ones.
        fits.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, stages)| stages)
    }
}

/// Sum of squared relative errors: a small transfer counts as much as a large one.
fn loss(stages: &Stages, seen: &[Observation]) -> f64 {
    seen.iter().map(|o| (stages.at(o.bytes, o.hops) / o.ns - 1.0).powi(2)).sum()
}

/// How often each term counts in the time of an observation, relative to that time.
fn row(o: &Observation, packet: u64, first_stage_slowest: bool) -> [f64; TERMS] {
    let count = o.bytes.div_ceil(packet).max(1);
    let whole = packet.min(o.bytes) as f64;
    let last = (o.bytes - (count - 1) * packet.min(o.bytes)) as f64;
    let (hops, more) = (f64::from(o.hops), (count - 1) as f64);
    let (sends, forwards) = if first_stage_slowest { (more, 0.0) } else { (0.0, more) };
    [1.0, hops, 1.0 + sends, last + sends * whole, hops * last + forwards * whole]
        .map(|times| times / o.ns)
}

/// Non-negative terms for which the products with the rows come closest to 1. Tries every set of
/// terms that may differ from zero, which for so few is the simplest exact way.
fn least_squares(rows: impl Iterator<Item = [f64; TERMS]>) -> Option<[f64; TERMS]> {
    let (mut products, mut sums) = ([[0.0; TERMS]; TERMS], [0.0; TERMS]);
    for row in rows {
        for i in 0..TERMS {
            sums[i] += row[i];
            for j in 0..TERMS {
                products[i][j] += row[i] * row[j];
            }
        }
    }
    // Terms differ by orders of magnitude: bytes by the million, one start-up.
    let scale: [f64; TERMS] = std::array::from_fn(|i| products[i][i].sqrt().max(f64::MIN_POSITIVE));
    for i in 0..TERMS {
        sums[i] /= scale[i];
        for j in 0..TERMS {
            products[i][j] /= scale[i] * scale[j];
        }
    }
    let mut best: Option<(f64, [f64; TERMS])> = None;
    for set in 1u32..1 << TERMS {
        let Some(terms) = solve(&products, &sums, set) else { continue };
        if terms.iter().any(|term| *term < 0.0) {
            continue;
        }
        // At a least-squares solution the squared error falls by the product of sums and terms.
        let gain: f64 = sums.iter().zip(terms).map(|(sum, term)| sum * term).sum();
        if best.is_none_or(|(most, _)| gain > most * (1.0 + 1e-12)) {
            best = Some((gain, terms));
        }
    }
    best.map(|(_, terms)| std::array::from_fn(|i| terms[i] / scale[i]))
}

/// Solves the normal equations for the terms of a set, with the others zero. None if they do not
/// determine the terms.
fn solve(products: &[[f64; TERMS]; TERMS], sums: &[f64; TERMS], set: u32) -> Option<[f64; TERMS]> {
    let inside: Vec<usize> = (0..TERMS).filter(|i| set & (1 << i) != 0).collect();
    let n = inside.len();
    let mut a: Vec<Vec<f64>> = inside
        .iter()
        .map(|i| inside.iter().map(|j| products[*i][*j]).chain([sums[*i]]).collect())
        .collect();
    for pivot in 0..n {
        let largest =
            (pivot..n).max_by(|x, y| a[*x][pivot].abs().total_cmp(&a[*y][pivot].abs()))?;
        a.swap(pivot, largest);
        if a[pivot][pivot].abs() < 1e-10 {
            return None;
        }
        for other in (0..n).filter(|other| *other != pivot) {
            let factor = a[other][pivot] / a[pivot][pivot];
            let source = a[pivot].clone();
            for (x, y) in a[other].iter_mut().zip(source) {
                *x -= factor * y;
            }
        }
    }
    let mut terms = [0.0; TERMS];
    for (k, i) in inside.iter().enumerate() {
        terms[*i] = a[k][n] / a[k][k];
    }
    Some(terms)
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
