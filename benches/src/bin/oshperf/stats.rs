// SPDX-License-Identifier: Apache-2.0
//! Statistics of samples.

use serde::{Deserialize, Serialize};

/// Median and quartiles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// A quarter of the values is below.
    pub lower: f64,
    /// Half of the values is below.
    pub median: f64,
    /// Three quarters are below.
    pub upper: f64,
    /// How many values there were.
    pub count: usize,
}

/// The value below which a part of sorted values lies, between the two nearest ones. At least one.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (low, rest) = (place.floor() as usize, place.fract());
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] * (1.0 - rest) + sorted[high] * rest
}

/// The values in increasing order.
pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values
}

/// The median of at least one value.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    Summary::of(values).map(|summary| summary.median)
}

impl Summary {
    /// Of at least one value.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let values = sorted(values);
        if values.is_empty() {
            return None;
        }
        let at = |part| quantile(&values, part);
        Some(Summary { lower: at(0.25), median: at(0.5), upper: at(0.75), count: values.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_the_values() {
        let summary = Summary::of([4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((summary.lower, summary.median, summary.upper), (1.75, 2.5, 3.25));
        assert_eq!(Summary::of([]), None);
        assert_eq!(quantile(&[1.0], 0.99), 1.0);
    }
}
