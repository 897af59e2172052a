//! Types of environment variables: how each is read and shown.

use std::fmt;
use std::time::Duration;

/// A type that a variable can have.
pub trait Value: Sized {
    /// What a value looks like, for people.
    const FORM: &'static str;
    /// Reads `text`; the error says what was expected.
    fn parse(text: &str) -> Result<Self, String>;
    /// Writes the value the way a person would.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// A number of bytes, read as `SHMEM_SYMMETRIC_SIZE` of the standard is: a non-negative integer or
/// floating point number, one optional suffix (k, m, g, t); what follows the suffix is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl Value for Bytes {
    const FORM: &'static str = "a number with an optional suffix k, m, g or t";

    fn parse(text: &str) -> Result<Self, String> {
        let expected = || format!("expected {}, such as 512m or 1.5G", Self::FORM);
        let text = text.trim();
        let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let number: f64 = text[..digits].parse().map_err(|_| expected())?;
        let shift = match text[digits..].chars().next().map(|c| c.to_ascii_lowercase()) {
            None => 0,
            Some('k') => 10,
            Some('m') => 20,
            Some('g') => 30,
            Some('t') => 40,
            Some(_) => return Err(expected()),
        };
        // A whole number is taken exactly: a float would round it above 2^53.
        if let Ok(whole) = text[..digits].parse::<u64>() {
            let bytes = whole.checked_mul(1 << shift).ok_or("larger than any address space")?;
            return Ok(Bytes(bytes));
        }
        let bytes = (number * (1u64 << shift) as f64).ceil();
        if bytes >= u64::MAX as f64 {
            return Err("larger than any address space".into());
        }
        Ok(Bytes(bytes as u64))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut number, mut suffix) = (self.0, "");
        for next in ["k", "m", "g", "t"] {
            if number == 0 || number % 1024 != 0 {
                break;
            }
            (number, suffix) = (number / 1024, next);
        }
        write!(f, "{number}{suffix}")
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show(f)
    }
}

impl Value for Option<Bytes> {
    const FORM: &'static str = Bytes::FORM;

    fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() { Ok(None) } else { Bytes::parse(text).map(Some) }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.map_or(Ok(()), |bytes| bytes.show(f))
    }
}

/// On or off. Any value switches on, save 0, off, no, false and the empty text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch(pub bool);

impl Value for Switch {
    const FORM: &'static str = "on or off";

    fn parse(text: &str) -> Result<Self, String> {
        let off = ["", "0", "off", "no", "false"].contains(&text.to_ascii_lowercase().as_str());
        Ok(Switch(!off))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { "on" } else { "off" })
    }
}

/// Which transports may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transports {
    /// Every one that works, in built-in order, save those named.
    AllBut(Vec<String>),
    /// Those named, in that order.
    Only(Vec<String>),
}

impl Transports {
    /// The names of `known` that are wanted, in order of preference.
    pub fn choose<'a>(&self, known: &[&'a str]) -> Vec<&'a str> {
        match self {
            Transports::AllBut(not) => {
                known.iter().copied().filter(|name| !not.iter().any(|n| n == name)).collect()
            }
            Transports::Only(names) => {
                names.iter().filter_map(|n| known.iter().copied().find(|k| k == n)).collect()
            }
        }
    }

    /// Every transport named in the setting.
    pub fn named(&self) -> &[String] {
        match self {
            Transports::AllBut(names) | Transports::Only(names) => names,
        }
    }
}

impl Value for Transports {
    const FORM: &'static str = "names separated by commas, or ^name to leave some out";

    fn parse(text: &str) -> Result<Self, String> {
        let names: Vec<&str> = text.split(',').map(str::trim).filter(|n| !n.is_empty()).collect();
        if names.is_empty() || names == ["all"] {
            return Ok(Transports::AllBut(vec![]));
        }
        let without: Vec<String> =
            names.iter().filter_map(|n| n.strip_prefix('^').map(str::to_owned)).collect();
        match without.len() {
            0 => Ok(Transports::Only(names.into_iter().map(str::to_owned).collect())),
            n if n == names.len() => Ok(Transports::AllBut(without)),
            _ => Err("names to use and names to leave out (^) cannot be mixed".into()),
        }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transports::AllBut(names) if names.is_empty() => f.write_str("all"),
            Transports::AllBut(names) => write!(f, "^{}", names.join(",^")),
            Transports::Only(names) => f.write_str(&names.join(",")),
        }
    }
}

impl Value for Duration {
    const FORM: &'static str = "a number of seconds";

    fn parse(text: &str) -> Result<Self, String> {
        let seconds: f64 = text.trim().parse().map_err(|_| format!("expected {}", Self::FORM))?;
        Duration::try_from_secs_f64(seconds).map_err(|_| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_secs_f64())
    }
}

impl Value for String {
    const FORM: &'static str = "text";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl Value for u32 {
    const FORM: &'static str = "a whole number";

    fn parse(text: &str) -> Result<Self, String> {
        text.trim().parse().map_err(|_| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

macro_rules! optional_number {
    ($($ty:ty),*) => { $(
        impl Value for Option<$ty> {
            const FORM: &'static str = "a whole number";

            fn parse(text: &str) -> Result<Self, String> {
                let text = text.trim();
                if text.is_empty() {
                    return Ok(None);
                }
                text.parse().map(Some).map_err(|_| format!("expected {}", Self::FORM))
            }

            fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    Some(number) => write!(f, "{number}"),
                    None => Ok(()),
                }
            }
        }
    )* };
}

optional_number!(u32, i32);

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $( $(#[$vdoc:meta])* $variant:ident = $text:literal ),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $( $(#[$vdoc])* $variant ),* }

        impl Value for $name {
            const FORM: &'static str = concat!("one of:" $(, " ", $text)*);

            fn parse(text: &str) -> Result<Self, String> {
                match text.trim().to_ascii_lowercase().as_str() {
                    $( $text => Ok($name::$variant), )*
                    _ => Err(format!("expected {}", Self::FORM)),
                }
            }

            fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $( $name::$variant => $text ),* })
            }
        }
    };
}

choice! {
    /// How static data is made reachable.
    Static {
        /// Remap, and CMA where that is refused.
        Auto = "auto",
        /// Shared mapping in place of the data segment.
        Remap = "remap",
        /// System calls on the data where it lies.
        Cma = "cma",
        /// Not reachable.
        Off = "off",
    }
}

choice! {
    /// What a PE that cannot be reached any more means for the job.
    OnLoss {
        /// The job ends.
        End = "end",
        /// The others go on.
        Continue = "continue",
    }
}

/// A time in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Millis(pub Duration);

impl Value for Millis {
    const FORM: &'static str = "a number of milliseconds";

    fn parse(text: &str) -> Result<Self, String> {
        let number = text.trim().trim_end_matches("ms").trim_end();
        let millis: f64 = number.parse().map_err(|_| format!("expected {}", Self::FORM))?;
        Duration::try_from_secs_f64(millis / 1000.0)
            .map(Millis)
            .map_err(|_| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_secs_f64() * 1000.0)
    }
}

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
    fn sizes_follow_the_standard() {
        for (text, bytes) in [
            ("20m", 20_971_520),
            ("3.1M", 3_250_586),
            (".5m", 524_288),
            ("0.5m", 524_288),
            ("20kk", 20 << 10),
            ("1T", 1 << 40),
            ("0", 0),
            ("4096", 4096),
            ("7.1", 8),
        ] {
            assert_eq!(Bytes::parse(text), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "-1", "x", "1q", ".", "1.2.3", "99999999999t", "1e3"] {
            assert!(Bytes::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn transports_are_chosen_in_the_order_named() {
        let known = ["shm", "cma", "ntb"];
        let choose = |text: &str| Transports::parse(text).unwrap().choose(&known);
        assert_eq!(choose("all"), known);
        assert_eq!(choose("ntb,shm"), ["ntb", "shm"]);
        assert_eq!(choose("^cma"), ["shm", "ntb"]);
        assert!(Transports::parse("shm,^cma").is_err());
    }

    #[test]
    fn tuning_words_are_told_from_paths() {
        assert_eq!(Tune::parse("ALWAYS"), Ok(Tune::Always));
        assert_eq!(Tune::parse("./a.json"), Ok(Tune::File("./a.json".into())));
        assert!(Tune::parse("allways").unwrap_err().contains("adaptive"));
        assert_eq!(Millis::parse("12.5ms"), Ok(Millis(Duration::from_micros(12_500))));
        assert!(Millis::parse("-1").is_err());
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
