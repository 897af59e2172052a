//! `oshinfo`: what this installation of Tombolo is and how it is set up.

use clap::Parser;
use std::path::{Path, PathBuf};
use tombolo_core::config::{Audience, Config, ReportForm, VARIABLES, Value, Variable};
use tombolo_selector::cache::{self, Saved};
use tombolo_selector::pattern::{self, By, Layout, Pattern};
use tombolo_selector::{Origin, Tuning, report};

#[derive(Parser)]
#[command(
    name = "oshinfo",
    version = concat!(env!("CARGO_PKG_VERSION"), " (Tombolo, OpenSHMEM 1.6)"),
    about = "Show version, build and environment variables of this OpenSHMEM",
)]
struct Options {
    /// Print the environment variables as a section of a manual page
    #[arg(long, hide = true)]
    man_environment: bool,

    /// Explain the routes of the last job that measured, or of a saved table
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    tuning: Option<Option<PathBuf>>,

    /// Form of the explanation: text, json or html
    #[arg(long, default_value = "text", value_parser = ReportForm::parse, requires = "tuning")]
    form: ReportForm,

    /// Estimate a communication pattern from what was measured: gather, broadcast, alltoall or
    /// ring-shift
    #[arg(long, value_name = "PATTERN", conflicts_with = "tuning")]
    predict: Option<Pattern>,

    /// How the pattern is carried out: get, put or staged; all of them if left out
    #[arg(long, requires = "predict")]
    by: Option<By>,

    /// Bytes that each pair of PEs exchanges, such as 8 or 64k; several sizes if left out
    #[arg(long, requires = "predict", value_parser = size)]
    size: Option<u64>,

    /// Hosts that take part in the pattern
    #[arg(long, default_value_t = 1, requires = "predict", value_parser = clap::value_parser!(u32).range(1..))]
    hosts: u32,

    /// PEs on each of them
    #[arg(long, default_value_t = 4, requires = "predict", value_parser = clap::value_parser!(u32).range(1..))]
    pes: u32,
}

fn size(text: &str) -> Result<u64, String> {
    tombolo_core::config::Bytes::parse(text).map(|bytes| bytes.0)
}

fn main() {
    let options = Options::parse();
    let text = match &options {
        Options { man_environment: true, .. } => Ok(manual()),
        Options { tuning: Some(file), .. } => saved(file.as_deref())
            .map(|tuning| report::Explanation::of(&tuning).render(options.form)),
        Options { predict: Some(pattern), .. } => {
            saved(None).and_then(|tuning| estimates(&tuning, *pattern, &options))
        }
        _ => Ok(overview()),
    };
    let text = text.unwrap_or_else(|why| {
        eprintln!("oshinfo: {why}");
        std::process::exit(1)
    });
    use std::io::Write;
    // A reader that has seen enough, as `head`, is no error.
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// What was measured: a file, or the newest one in the cache.
fn saved(file: Option<&Path>) -> Result<Tuning, String> {
    let (path, saved) = match file {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| e.to_string());
            let saved = text.and_then(|text| Saved::parse(&text));
            (path.to_owned(), saved.map_err(|why| format!("{}: {why}", path.display()))?)
        }
        None => {
            let config = Config::from_env().map_err(|e| e.to_string())?;
            let directory = cache::directory(&config.tune_cache)
                .ok_or("no directory for measurements (SHMEM_TUNE_CACHE is off)")?;
            cache::newest(&directory).ok_or_else(|| {
                let place = directory.display();
                format!("no measurements in {place}: start a program with several PEs first")
            })?
        }
    };
    let Saved { machine, measured, .. } = saved;
    let preference = tombolo_transports::NAMES;
    Ok(Tuning::without_job(Origin::File(path), machine, measured, preference))
}

/// Estimates of a pattern, a line per size.
fn estimates(tuning: &Tuning, pattern: Pattern, options: &Options) -> Result<String, String> {
    let layout = Layout {
        hosts: options.hosts,
        pes_per_host: options.pes,
        cpus_per_host: tombolo_core::wait::usable_cpus() as u32,
    };
    let ways: Vec<By> = options.by.map_or(By::ALL.map(|(_, by)| by).to_vec(), |by| vec![by]);
    let sizes = options.size.map_or(vec![8, 1024, 65536, 1 << 20], |size| vec![size]);
    let mut text = format!(
        "{pattern} with {} PEs on each of {} hosts, estimated from {}\n  {:>10}",
        options.pes,
        options.hosts,
        tuning.origin(),
        "per pair"
    );
    ways.iter().for_each(|by| text += &format!("  {:>10}", by.to_string()));
    for bytes in sizes {
        text += &format!("\n  {:>10}", report::size(bytes));
        for by in &ways {
            let ns = pattern::predict(tuning, layout, pattern, *by, bytes)
                .ok_or("hosts or PEs at such a distance were never measured: start a job there")?;
            text += &format!("  {:>10}", report::time(ns));
        }
    }
    if let Some((error, _)) = tombolo_selector::model::error(&tuning.measured().curves) {
        text += &format!("\nSingle operations are off by {:.1} % on average.", error * 100.0);
    }
    Ok(text + "\n")
}

fn overview() -> String {
    let mut text = section("Tombolo", &build());
    text += &section("Transports", &transports());
    text += &variables("Environment variables", Audience::User);
    text += &variables("Set by launchers", Audience::Launcher);
    text
}

fn build() -> Vec<(String, String)> {
    let own = std::env::current_exe().unwrap_or_default();
    let prefix = own.parent().and_then(Path::parent).unwrap_or(Path::new(""));
    let profile = if cfg!(debug_assertions) { "debug (arguments are checked)" } else { "release" };
    let rows = [
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("standard", "OpenSHMEM 1.6".to_owned()),
        ("build", format!("{profile}, {} {}", std::env::consts::ARCH, std::env::consts::OS)),
        ("installed in", prefix.display().to_string()),
    ];
    rows.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

/// Each transport, and whether it can be used here.
fn transports() -> Vec<(String, String)> {
    let Ok(config) = Config::from_env() else { return Vec::new() };
    let mut rows = Vec::new();
    for survey in tombolo::transports::survey(&config) {
        match survey.state {
            Ok(lines) => {
                rows.push((survey.name.to_owned(), "ready".to_owned()));
                rows.extend(lines.into_iter().map(|line| (String::new(), line)));
            }
            Err(why) => rows.push((survey.name.to_owned(), format!("not available: {why}"))),
        }
    }
    rows
}

/// A heading and rows of name and value.
fn section(title: &str, rows: &[(String, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = rows.iter().map(|(name, value)| format!("  {name:width$}  {value}\n"));
    format!("{title}\n{}\n", lines.collect::<String>())
}

fn variables(title: &str, audience: Audience) -> String {
    let values = match Config::from_env() {
        Ok(config) => config.values(),
        Err(error) => return format!("{title}\n  cannot be read: {error}\n\n"),
    };
    let chosen = VARIABLES.iter().zip(values).filter(|(v, _)| v.audience == audience);
    let entries = chosen.map(|(variable, value)| describe(variable, &value));
    format!("{title}\n{}", entries.collect::<String>())
}

fn describe(variable: &Variable, value: &str) -> String {
    let set = |name: &str| std::env::var_os(name).is_some();
    let origin = match variable.alias {
        _ if set(variable.name) => "from the environment".to_owned(),
        Some(alias) if set(alias) => format!("from {alias}"),
        _ => "default".to_owned(),
    };
    let alias = variable.alias.map_or_else(String::new, |alias| format!(" (or {alias})"));
    let mut text = format!("  {}{alias} = {} [{origin}]\n", variable.name, shown(value));
    text += &wrapped(variable.help, 6, 94);
    text +=
        &wrapped(&format!("Form: {}. Default: {}.", variable.form, shown(variable.default)), 6, 94);
    text.push('\n');
    text
}

fn shown(value: &str) -> &str {
    if value.is_empty() { "(unset)" } else { value }
}

/// `text` in lines of at most `width` characters, each after `indent` spaces.
fn wrapped(text: &str, indent: usize, width: usize) -> String {
    let mut result = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        if column > 0 && indent + column + 1 + word.len() > width {
            result.push('\n');
            column = 0;
        }
        if column == 0 {
            result += &" ".repeat(indent);
        } else {
            result.push(' ');
            column += 1;
        }
        result += word;
        column += word.len();
    }
    result + "\n"
}

/// The section ENVIRONMENT of the manual pages, in mdoc.
fn manual() -> String {
    let mut text = String::from(".Bl -tag -width Ds\n");
    for variable in VARIABLES {
        text += &format!(".It Ev {}\n{}\n", variable.name, roff(variable.help));
        text += &format!("Form: {}.\n", roff(variable.form));
        if !variable.default.is_empty() {
            text += &format!("Default: {}.\n", roff(variable.default));
        }
        if let Some(alias) = variable.alias {
            text += &format!("The deprecated name\n.Ev {alias}\nis honoured as well.\n");
        }
        if variable.audience == Audience::Launcher {
            text += "Set by launchers, not meant to be set by hand.\n";
        }
    }
    text + ".El\n"
}

/// `text` as words of roff: nothing in it is a macro or an escape.
fn roff(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().collect();
    let text = words.join(" ").replace('\\', "\\e").replace('^', "\\(ha");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_shown_with_form_default_and_help() {
        let (text, manual) = (overview(), manual());
        for variable in VARIABLES {
            assert!(text.contains(&format!("  {}", variable.name)), "{}", variable.name);
            assert!(manual.contains(&format!(".It Ev {}\n", variable.name)), "{}", variable.name);
            let first = variable.help.split_whitespace().next().unwrap();
            assert!(text.contains(first) && manual.contains(&roff(variable.form)));
        }
    }

    #[test]
    fn text_is_wrapped_at_the_width() {
        assert_eq!(wrapped("aa bb cc", 2, 7), "  aa bb\n  cc\n");
    }

    #[test]
    fn roff_text_holds_no_macros() {
        assert_eq!(roff(".x ^name \\n"), "\\&.x \\(haname \\en");
    }
}
