// SPDX-License-Identifier: Apache-2.0
//! The page with plots: one file that needs no network.

use super::overtakes;
use super::report::Report;
use serde::Serialize;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// What the page shows.
#[derive(Serialize)]
struct Content<'a> {
    report: &'a Report,
    /// Name and sentences of each test.
    remarks: Vec<(&'a str, Vec<String>)>,
}

/// The whole page.
pub fn page(report: &Report) -> Result<String, String> {
    let remarks = report.by_test().into_iter();
    let remarks = remarks.map(|(name, all)| (name, overtakes::sentences(&all))).collect();
    let content = serde_json::to_string(&Content { report, remarks });
    // Nothing in the data ends the element that holds it.
    let content = content.map_err(|why| why.to_string())?.replace('<', "\\u003c");
    // The data comes last: nothing in it is taken for a place to fill.
    let page = PAGE.replace("@STYLE@", STYLE).replace("@SCRIPT@", SCRIPT);
    Ok(page.replacen("@CONTENT@", &content, 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::report;

    #[test]
    fn data_cannot_end_its_element_and_the_page_asks_for_nothing() {
        let page = page(&report()).unwrap();
        assert_eq!(page.matches("</script>").count(), 2, "that of the data, and the script");
        assert!(page.contains("not on this \\u003chost>"));
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            let found = page.replace("http://www.w3.org/2000/svg", "").contains(outside);
            assert!(!found, "{outside}");
        }
    }
}
