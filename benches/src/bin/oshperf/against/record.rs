// SPDX-License-Identifier: Apache-2.0
//! The outcome of a whole run, and keeping it in files.

use super::figures::{Figure, figures};
use super::implementation::Implementation;
use super::report;
use super::samples::Samples;
use crate::files;
use crate::machine::Machine;
use crate::stats::Summary;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Everything that is reported.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Where and when.
    pub machine: Machine,
    /// How often each program ran.
    pub repetitions: u32,
    /// This library against references of the same run.
    pub figures: Vec<Figure>,
    /// This library first, then what it is compared with.
    pub implementations: Vec<Measured>,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
}

/// What one implementation measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Name and version.
    pub title: String,
    /// In the order of measurement.
    pub series: Vec<Times>,
}

impl Measured {
    /// The times of a series.
    pub fn get(&self, name: &str) -> Option<&Times> {
        self.series.iter().find(|times| times.name == name)
    }
}

/// Times of one series.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    /// Name of the series.
    pub name: String,
    /// Unit of the times.
    pub unit: String,
    /// Over all batches of all repetitions.
    #[serde(flatten)]
    pub summary: Summary,
}

impl Comparison {
    /// Draws the conclusions from the samples, given in the order of the implementations.
    pub fn new(
        machine: Machine,
        implementations: &[Implementation],
        samples: &[Samples],
        repetitions: u32,
        notes: Vec<String>,
    ) -> Comparison {
        let measured = |(implementation, samples): (&Implementation, &Samples)| Measured {
            title: implementation.title.clone(),
            series: samples
                .iter()
                .filter_map(|(name, series)| {
                    let summary = Summary::of(series.values.iter().copied())?;
                    Some(Times { name: name.clone(), unit: series.unit.clone(), summary })
                })
                .collect(),
        };
        Comparison {
            machine,
            repetitions,
            figures: figures(&samples[0]),
            implementations: implementations.iter().zip(samples).map(measured).collect(),
            notes,
        }
    }
}

/// Makes the directory: what cannot be kept is to be known before all is measured.
pub fn prepare(directory: &Path) -> Result<(), String> {
    fs::create_dir_all(directory).map_err(|why| format!("{}: {why}", directory.display()))
}

/// Writes `DATE-MACHINE.md` and `.json` and answers where.
pub fn write(outcome: &Comparison, directory: &Path) -> Result<[PathBuf; 2], String> {
    let stem = format!("{}-{}", outcome.machine.date, outcome.machine.slug());
    let paths = ["md", "json"].map(|kind| directory.join(format!("{stem}.{kind}")));
    files::put(&paths[0], &report::markdown(outcome))?;
    files::json(&Some(paths[1].clone()), outcome)?;
    Ok(paths)
}
