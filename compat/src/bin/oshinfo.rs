//! `oshinfo`: what this installation of Tombolo is and how it is set up.

use clap::Parser;
use std::path::Path;
use tombolo_core::config::{Audience, Config, VARIABLES, Variable};

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
}

fn main() {
    let options = Options::parse();
    let text = if options.man_environment { manual() } else { overview() };
    use std::io::Write;
    // A reader that has seen enough, as `head`, is no error.
    let _ = std::io::stdout().write_all(text.as_bytes());
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
