// SPDX-License-Identifier: Apache-2.0
//! What the rows of a paper find of the samples that they name.

use crate::against::samples::Samples;
use std::cell::RefCell;

/// Samples, and which of those that were asked for are missing.
pub struct Found<'a> {
    samples: &'a Samples,
    /// Each with what is wrong with it.
    missing: RefCell<Vec<(String, String)>>,
}

impl<'a> Found<'a> {
    /// Nothing was asked for.
    pub fn new(samples: &'a Samples) -> Found<'a> {
        Found { samples, missing: RefCell::default() }
    }

    /// The median of a series.
    pub fn median(&self, name: &str) -> Option<f64> {
        let values = self.samples.get(name).map(|series| series.values.iter().copied());
        if values.is_none() {
            self.miss(name, "the program printed none");
        }
        crate::stats::median(values?)
    }

    /// The median of one series over another, batch by batch.
    pub fn ratio(&self, over: &str, under: &str) -> Option<f64> {
        // Both are looked for, also where the first is missing.
        let both = [self.median(over), self.median(under)];
        if both.contains(&None) {
            return None;
        }
        let ratio = self.samples.ratio(&[over.to_owned()], &[under.to_owned()]);
        if ratio.is_none() {
            self.miss(over, &format!("not as many values as {under}"));
        }
        Some(ratio?.median)
    }

    fn miss(&self, name: &str, why: &str) {
        let mut missing = self.missing.borrow_mut();
        if !missing.iter().any(|(known, _)| known == name) {
            missing.push((name.to_owned(), why.to_owned()));
        }
    }

    /// What rows ask for of jobs at these places, and is not there.
    pub fn notes(&self, places: &[&str]) -> Vec<String> {
        let of_places = |(name, _): &&(String, String)| {
            name.rsplit_once('@').is_none_or(|(_, place)| places.contains(&place))
        };
        let missing = self.missing.borrow();
        missing
            .iter()
            .filter(of_places)
            .map(|(name, why)| format!("sample {name}: {why}"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_job_did_not_print_is_told_once() {
        let mut samples = Samples::default();
        samples.add("a@2", "us", [1.0, 2.0]);
        samples.add("b@2", "us", [2.0, 4.0]);
        samples.add("c@2", "us", [1.0]);
        let found = Found::new(&samples);
        assert_eq!((found.median("a@2"), found.ratio("b@2", "a@2")), (Some(1.5), Some(2.0)));
        assert!(found.notes(&["2"]).is_empty());
        assert_eq!((found.median("new@2"), found.ratio("old@2", "new@2")), (None, None));
        assert_eq!(found.ratio("a@2", "c@2"), None);
        assert_eq!(found.median("a@4"), None);
        assert_eq!(
            found.notes(&["2"]),
            [
                "sample new@2: the program printed none",
                "sample old@2: the program printed none",
                "sample a@2: not as many values as c@2"
            ]
        );
        // Nobody ran there.
        assert!(found.notes(&[]).is_empty());
    }
}
