// SPDX-License-Identifier: Apache-2.0
//! What programs measured: samples by name, and the statistics made from them.

use crate::stats::Summary;

/// Values of one name, one per batch, over all repetitions in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// "ns", "ms" or "us".
    pub unit: String,
    /// Never empty once something was added.
    pub values: Vec<f64>,
}

/// Series by name, in the order in which they were first measured; a name ends with `@` and
/// the place it was measured at: PES, or PESxHOSTS.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<(String, Series)>);

impl Samples {
    /// Takes the `sample NAME UNIT VALUE...` lines of a program's output; how many there were.
    pub fn read(&mut self, output: &str, place: &str) -> Result<usize, String> {
        let mut lines = 0;
        for line in output.lines().filter_map(|line| line.strip_prefix("sample ")) {
            let mut words = line.split_whitespace();
            let (Some(name), Some(unit)) = (words.next(), words.next()) else {
                return Err(format!("a sample without name or unit: {line}"));
            };
            let values: Result<Vec<f64>, _> = words.map(str::parse).collect();
            let values = values.map_err(|e| format!("sample {name}: {e}"))?;
            if values.is_empty() || values.iter().any(|v| !v.is_finite() || *v <= 0.0) {
                return Err(format!("sample {name} has values that are no times"));
            }
            self.add(&format!("{name}@{place}"), unit, values);
            lines += 1;
        }
        Ok(lines)
    }

    /// Appends values to a series.
    pub fn add(&mut self, name: &str, unit: &str, values: impl IntoIterator<Item = f64>) {
        let place = self.0.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
            self.0.push((name.to_string(), Series::default()));
            self.0.len() - 1
        });
        let series = &mut self.0[place].1;
        series.unit = unit.to_string();
        series.values.extend(values);
    }

    /// The series of a name.
    pub fn get(&self, name: &str) -> Option<&Series> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, series)| series)
    }

    /// All series and their names.
    pub fn iter(&self) -> impl Iterator<Item = &(String, Series)> {
        self.0.iter()
    }

    /// The product of some series over the product of others, batch by batch: what was measured at
    /// the same time is compared with each other. None if one is missing or they do not match.
    pub fn ratio(&self, over: &[String], under: &[String]) -> Option<Summary> {
        let find = |names: &[String]| {
            names.iter().map(|name| Some(&self.get(name)?.values)).collect::<Option<Vec<_>>>()
        };
        let (over, under) = (find(over)?, find(under)?);
        let count = over.first()?.len();
        if over.iter().chain(&under).any(|values| values.len() != count) {
            return None;
        }
        let product = |series: &[&Vec<f64>], k: usize| series.iter().map(|v| v[k]).product::<f64>();
        Summary::of((0..count).map(|k| product(&over, k) / product(&under, k)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_pair_the_batches_and_need_all_of_them() {
        let mut samples = Samples::default();
        let text = "noise\nsample a ns 2 20\nsample b ns 1 10\nsample c ns 1\n";
        assert_eq!(samples.read(text, "2"), Ok(3));
        let name = |name: &str| vec![format!("{name}@2")];
        assert_eq!(samples.ratio(&name("a"), &name("b")).unwrap().median, 2.0);
        assert_eq!(samples.ratio(&name("a"), &name("c")), None);
        assert_eq!(samples.ratio(&name("a"), &name("d")), None);
        assert!(samples.read("sample a ns 0", "2").is_err());
        assert!(samples.read("sample a ns x", "2").is_err());
    }
}
