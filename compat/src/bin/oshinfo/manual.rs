// SPDX-License-Identifier: Apache-2.0
//! The section ENVIRONMENT of the manual pages, in mdoc.

use tombolo::variables;
use tombolo_core::config::Audience;

/// See the module.
pub fn environment() -> String {
    let mut text = String::from(".Bl -tag -width Ds\n");
    for variable in variables::all() {
        text += &format!(".It Ev {}\n{}\n", variable.name, roff(variable.help));
        text += &format!("Form: {}.\n", roff(variable.form));
        if !variable.default.is_empty() {
            text += &format!("Default: {}.\n", roff(variable.default));
        }
        for alias in variable.aliases {
            text += &format!("The name\n.Ev {alias}\nis honoured as well.\n");
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
    fn every_variable_is_described() {
        let text = environment();
        for variable in variables::all() {
            assert!(text.contains(&format!(".It Ev {}\n", variable.name)), "{}", variable.name);
            assert!(text.contains(&roff(variable.form)), "{}", variable.name);
        }
    }

    #[test]
    fn roff_text_holds_no_macros() {
        assert_eq!(roff(".x ^name \\n"), "\\&.x \\(haname \\en");
    }
}
