// SPDX-License-Identifier: Apache-2.0
//! A profile for programs.

use super::advice::advice;
use super::counted::End;
use super::summary::Summary;
use serde_json::{Value, json};

pub fn render(summary: &Summary) -> String {
    let pes: Vec<Value> = summary
        .pes
        .iter()
        .map(|pe| {
            json!({
                "pe": pe.pe, "machine": pe.machine, "finalized": pe.end == End::Finalize,
                "global_exit": pe.end == End::GlobalExit, "initialized": pe.end != End::Never,
                "seconds": pe.seconds,
                "threads_seconds": pe.lived,
                "library_seconds": pe.inside, "blocked_seconds": pe.blocked, "transports": pe.text,
            })
        })
        .collect();
    let routines: Vec<Value> = summary.lines.iter().map(|line| json!({
        "routine": line.routine, "size_max": line.size, "way": line.way, "distance": line.distance,
        "pes": line.pes, "calls": line.count, "bytes": line.bytes, "seconds": line.seconds,
        "longest_seconds": line.longest, "blocked_seconds": line.blocked,
    })).collect();
    let waits: Vec<Value> = summary
        .waits
        .iter()
        .map(|(words, number, seconds)| {
            json!({
                "waiting_for": words, "times": number, "seconds": seconds,
            })
        })
        .collect();
    let matrix: Vec<Value> = summary
        .matrix
        .iter()
        .enumerate()
        .flat_map(|(pe, row)| {
            let used = row.iter().enumerate().filter(|(_, pair)| **pair != Default::default());
            used.map(move |(other, pair)| {
                json!({
                    "pe": pe, "other": other, "puts": pair.puts, "put_bytes": pair.put_bytes,
                    "gets": pair.gets, "get_bytes": pair.get_bytes, "amos": pair.amos,
                })
            })
        })
        .collect();
    let pending: Vec<Value> = summary
        .pending
        .iter()
        .map(|call| {
            json!({
                "routine": call.routine, "pes": call.pes, "longest_seconds": call.longest,
            })
        })
        .collect();
    let advice: Vec<Value> = advice(summary)
        .into_iter()
        .map(|advice| {
            json!({
                "setting": advice.setting, "because": advice.why,
            })
        })
        .collect();
    let whole = json!({
        "format": "tombolo-profile", "version": 1, "size": summary.size, "pes": pes,
        "routines": routines, "waits": waits, "pairs": matrix, "not_returned": pending, "advice": advice,
    });
    format!("{whole:#}\n")
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::two_pes;
    use super::*;

    #[test]
    fn programs_find_every_number() {
        let text = render(&Summary::new(2, &two_pes(), vec!["a".into(), "b".into()]));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["format"], "tombolo-profile");
        assert_eq!(value["routines"][1]["calls"], 10);
        assert_eq!(value["pairs"][0]["put_bytes"], 640);
        assert_eq!(value["pes"][1]["machine"], "b");
        let ends = ["finalized", "global_exit", "initialized"].map(|end| &value["pes"][1][end]);
        assert_eq!(ends, [true, false, true]);
        assert_eq!(value["not_returned"], json!([]));
        assert_eq!(value["waits"][0]["times"], 2);
    }
}
