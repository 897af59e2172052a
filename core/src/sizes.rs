// SPDX-License-Identifier: Apache-2.0
//! Numbers of bytes for people. How they write them in settings: [`Bytes`](crate::config::Bytes).

/// Units, as powers of two.
const UNITS: [(u32, &str); 3] = [(30, "GiB"), (20, "MiB"), (10, "KiB")];

/// In the largest unit that is not larger, rounded to a tenth of it.
pub fn size(bytes: u64) -> String {
    for (shift, unit) in UNITS {
        if bytes >= 1 << shift {
            let number = bytes as f64 / (1u64 << shift) as f64;
            return if number.fract() == 0.0 {
                format!("{number:.0} {unit}")
            } else {
                format!("{number:.1} {unit}")
            };
        }
    }
    format!("{bytes} B")
}

/// In the largest unit of which it is a multiple.
pub fn exact(bytes: u64) -> String {
    let whole = |(shift, _): &(u32, _)| bytes > 0 && bytes.is_multiple_of(1 << shift);
    let (shift, unit) = UNITS.into_iter().find(whole).unwrap_or((0, "B"));
    format!("{} {unit}", bytes >> shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_or_exact() {
        let said = |bytes| (size(bytes), exact(bytes));
        assert_eq!(said(0), ("0 B".into(), "0 B".into()));
        assert_eq!(said(1023), ("1023 B".into(), "1023 B".into()));
        assert_eq!(said(1025), ("1.0 KiB".into(), "1025 B".into()));
        assert_eq!(said(1536 << 10), ("1.5 MiB".into(), "1536 KiB".into()));
        assert_eq!(said(64 << 30), ("64 GiB".into(), "64 GiB".into()));
    }
}
