// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::data::{CACHED, Measurements, Point};
use crate::tuning::Origin;

fn explanation() -> Explanation {
    let curve = |channel: &str, cost: &dyn Fn(u64) -> f32| Curve {
        key: crate::data::Key {
            class: Class::Cache,
            operation: Operation::Put,
            buffer: Buffer::Heap,
            channel: channel.to_owned(),
        },
        points: [8u64, 4096, 8 << 20]
            .map(|bytes| Point { bytes, ns: cost(bytes), spread: 0.02, batches: 7 })
            .to_vec(),
        checks: vec![Point { bytes: 2052, ns: cost(2052) * 1.1, spread: 0.0, batches: 1 }],
    };
    let mut measured = Measurements {
        curves: vec![
            curve(CACHED, &|n| 10.0 + n as f32),
            curve("shm", &|n| 1000.0 + n as f32 * 0.5),
            curve("cma", &|n| 400.0 + n as f32 * 0.97),
        ],
        rejected: vec![Rejected {
            class: Class::Cache,
            channel: "ntb".into(),
            why: "no <window>".into(),
            failed: false,
        }],
        batches: Batches { taken: 140, discarded: 3 },
        ..Measurements::default()
    };
    measured.put_in_order();
    let tuning =
        Tuning::without_job(Origin::Measured, "a machine".into(), measured, &["shm", "cma"]);
    Explanation::of(&tuning)
}

#[test]
fn the_text_is_as_expected() {
    let expected = include_str!("snapshot.txt");
    let text = explanation().text();
    assert_eq!(text, expected, "new text:\n{text}");
}

#[test]
fn the_page_is_whole_escaped_and_needs_no_network() {
    let page = explanation().html();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert_eq!(page.matches("<svg").count(), 1);
    assert!(page.contains("no &lt;window&gt;") && !page.contains("no <window>"));
    for outside in ["src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    let addresses = page.matches("http").count();
    assert_eq!(addresses, page.matches("http://www.w3.org/2000/svg").count());
}

#[test]
fn programs_can_read_the_numbers() {
    let value: serde_json::Value = serde_json::from_str(&explanation().json()).unwrap();
    let rows = &value["sections"][0]["rows"];
    assert_eq!(rows[0]["chosen"], CACHED);
    assert_eq!(rows[3]["chosen"], "shm");
    assert_eq!(rows[1]["bytes"], 2052);
    assert!(rows[1]["candidates"][0]["predicted_ns"].is_number());
    let error = value["model_error"].as_f64().unwrap();
    assert!((error - 0.0909).abs() < 0.001, "{error}");
}

#[test]
fn limits_are_exact() {
    let limits = [8, 1945, 2047, 2048, (256 << 10) - 1, 256 << 10, 3 << 19, (1 << 30) - 1];
    let told = [
        "up to 8 B",
        "up to 1945 B",
        "below 2 KiB",
        "up to 2 KiB",
        "below 256 KiB",
        "up to 256 KiB",
        "up to 1536 KiB",
        "below 1 GiB",
    ];
    assert_eq!(limits.map(up_to), told);
}
