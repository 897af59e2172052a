// SPDX-License-Identifier: Apache-2.0
//! Types of the variables about routes and measurements.

use super::value::Value;
use crate::choice;
use std::fmt;
use std::path::PathBuf;

/// Where routes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tune {
    /// Measured once per machine, then read from the cache.
    Auto,
    /// Measured at every start.
    Always,
    /// As `Auto`, and corrected while the program runs.
    Adaptive,
    /// Fixed rules.
    Off,
    /// A saved table.
    File(String),
}

choice! {
    /// How a program uses its buffers.
    Reuse {
        /// Again soon: they stay in the caches.
        Hot = "hot",
        /// Once: they come from memory and go there.
        Cold = "cold",
    }
}

/// What is said of a program's buffers from outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    /// On all contexts.
    pub all: Reuse,
    /// On contexts that the program makes; none where they are no exception.
    pub contexts: Option<Reuse>,
}

impl Hints {
    /// Whether any operation is said to use buffers so.
    pub fn mention(&self, reuse: Reuse) -> bool {
        self.all == reuse || self.contexts == Some(reuse)
    }
}

impl Value for Hints {
    const FORM: &'static str =
        "hot or cold, contexts:hot or contexts:cold, or one of each with a comma between them";

    fn parse(text: &str) -> Result<Self, String> {
        let (mut all, mut contexts) = (None, None);
        for word in text.split(',').map(str::trim) {
            let (place, word) = match word.split_once(':') {
                Some((of, word)) if of.trim().eq_ignore_ascii_case("contexts") => {
                    (&mut contexts, word)
                }
                Some(_) => return Err(format!("expected {}", Self::FORM)),
                None => (&mut all, word),
            };
            let reuse = Reuse::parse(word).map_err(|_| format!("expected {}", Self::FORM))?;
            if place.replace(reuse).is_some() {
                return Err(format!("expected {}", Self::FORM));
            }
        }
        Ok(Hints { all: all.unwrap_or(Reuse::Hot), contexts })
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all.show(f)?;
        self.contexts.map_or(Ok(()), |reuse| {
            f.write_str(",contexts:")?;
            reuse.show(f)
        })
    }
}

impl Value for Tune {
    const FORM: &'static str = "auto, always, adaptive, off, or the path of a saved table";

    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        match text.to_ascii_lowercase().as_str() {
            "auto" | "on" | "" => Ok(Tune::Auto),
            "always" => Ok(Tune::Always),
            "adaptive" => Ok(Tune::Adaptive),
            "off" => Ok(Tune::Off),
            // A bare word is a misspelt mode rather than a file.
            _ if text.contains(['/', '.']) => Ok(Tune::File(text.to_owned())),
            _ => Err(format!("expected {} (with a '/' or '.' in it)", Self::FORM)),
        }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tune::Auto => "auto",
            Tune::Always => "always",
            Tune::Adaptive => "adaptive",
            Tune::Off => "off",
            Tune::File(path) => path,
        })
    }

    /// How often a PE measures is its own business, that it agrees with the others is not.
    fn common(&self) -> String {
        match self {
            Tune::Off => "off",
            Tune::File(_) => "a saved table",
            Tune::Auto | Tune::Always | Tune::Adaptive => "on",
        }
        .to_owned()
    }
}

/// Algorithms that collective operations are to take. Which there are is known to who has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Algorithms(pub Vec<Forced>);

/// What one operation is to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forced {
    /// Name of the operation.
    pub operation: String,
    /// Names of algorithms: the first that can carry out a call is taken.
    pub algorithms: Vec<String>,
}

impl Algorithms {
    /// The algorithms named for an operation; none if nothing was said of it.
    pub fn of(&self, operation: &str) -> Option<&[String]> {
        let forced = self.0.iter().find(|forced| forced.operation == operation)?;
        Some(&forced.algorithms)
    }
}

impl Value for Algorithms {
    const FORM: &'static str = "OPERATION:ALGORITHM, or several of these separated by commas";

    fn parse(text: &str) -> Result<Self, String> {
        let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
        let mut all: Vec<Forced> = Vec::new();
        for word in words {
            let (operation, names) =
                word.split_once(':').ok_or_else(|| format!("expected {}", Self::FORM))?;
            let operation = operation.trim().to_ascii_lowercase();
            let names = names.split('+').map(|name| name.trim().to_ascii_lowercase());
            let algorithms: Vec<String> = names.collect();
            if operation.is_empty() || algorithms.iter().any(String::is_empty) {
                return Err(format!("expected {}", Self::FORM));
            }
            if all.iter().any(|forced| forced.operation == operation) {
                return Err(format!("'{operation}' is named twice"));
            }
            all.push(Forced { operation, algorithms });
        }
        Ok(Algorithms(all))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Forced { operation, algorithms }) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{operation}:{}", algorithms.join("+"))?;
        }
        Ok(())
    }
}

/// Where measurements are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheDirectory {
    /// Where programs of this user keep what can be made anew.
    Usual,
    /// A directory.
    At(PathBuf),
    /// Nowhere.
    Off,
}

impl Value for CacheDirectory {
    const FORM: &'static str = "the absolute path of a directory, or off";

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "" => Ok(CacheDirectory::Usual),
            "off" | "0" | "no" => Ok(CacheDirectory::Off),
            // The PEs of a job may have different working directories.
            _ if text.starts_with('/') => Ok(CacheDirectory::At(text.into())),
            _ => Err(format!("expected {}", Self::FORM)),
        }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheDirectory::Usual => Ok(()),
            CacheDirectory::At(path) => write!(f, "{}", path.display()),
            CacheDirectory::Off => f.write_str("off"),
        }
    }
}

choice! {
    /// The form of a report.
    ReportForm {
        /// For a terminal.
        Text = "text",
        /// For programs.
        Json = "json",
        /// For a browser, with plots.
        Html = "html",
    }
}

/// Whether a report is written, in which form and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// None.
    Off,
    /// To standard output, or to a file.
    To(ReportForm, Option<String>),
}

impl Value for Report {
    const FORM: &'static str = "off, text, json or html, with :PATH to write to a file";

    fn parse(text: &str) -> Result<Self, String> {
        let (form, path) = match text.split_once(':') {
            Some((form, path)) => (form, Some(path.trim().to_owned())),
            None => (text, None),
        };
        if ["", "off", "0", "no"].contains(&form.trim().to_ascii_lowercase().as_str()) {
            return Ok(Report::Off);
        }
        let form = ReportForm::parse(form).map_err(|_| format!("expected {}", Self::FORM))?;
        if path.as_deref() == Some("") {
            return Err("expected a path after the colon".into());
        }
        Ok(Report::To(form, path))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Off => f.write_str("off"),
            Report::To(form, path) => {
                form.show(f)?;
                path.as_ref().map_or(Ok(()), |path| write!(f, ":{path}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuning_words_are_told_from_paths() {
        assert_eq!(Tune::parse("ALWAYS"), Ok(Tune::Always));
        assert_eq!(Tune::parse("./a.json"), Ok(Tune::File("./a.json".into())));
        assert!(Tune::parse("allways").unwrap_err().contains("adaptive"));
        assert_eq!(CacheDirectory::parse("OFF "), Ok(CacheDirectory::Off));
        assert_eq!(CacheDirectory::parse("/A b"), Ok(CacheDirectory::At("/A b".into())));
        let here = CacheDirectory::parse("here");
        assert!(here.unwrap_err().contains("absolute"));
    }

    #[test]
    fn hints_are_for_all_operations_or_for_contexts_of_the_program() {
        let hints = |all, contexts| Ok(Hints { all, contexts });
        assert_eq!(Hints::parse("Cold"), hints(Reuse::Cold, None));
        assert_eq!(Hints::parse("contexts:cold"), hints(Reuse::Hot, Some(Reuse::Cold)));
        let both = hints(Reuse::Cold, Some(Reuse::Hot));
        assert_eq!(Hints::parse("contexts:hot, cold"), both);
        assert_eq!(Hints::parse("cold,contexts:hot"), both);
        for wrong in ["warm", "context:cold", "contexts:", "hot,cold", "hot,", "contexts:hot:cold"]
        {
            assert_eq!(Hints::parse(wrong), Err(format!("expected {}", Hints::FORM)), "{wrong}");
        }
    }

    #[test]
    fn reports_have_a_form_and_perhaps_a_path() {
        assert_eq!(Report::parse("off"), Ok(Report::Off));
        assert_eq!(Report::parse("text"), Ok(Report::To(ReportForm::Text, None)));
        let html = Report::To(ReportForm::Html, Some("/tmp/a:b.html".into()));
        assert_eq!(Report::parse("html:/tmp/a:b.html"), Ok(html));
        assert!(Report::parse("pdf").is_err() && Report::parse("json:").is_err());
    }
}
