//! What was predicted for one and two threads beside what was measured when it ran.

use super::line::{Costs, Flows, Plan};
use crate::profile::HandOver;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// What `toe-profile` says.
#[derive(Debug, Deserialize)]
pub struct Report {
    cores: usize,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    size: u32,
    receive_ns: f64,
    transmit_ns: f64,
    #[serde(rename = "beside")]
    slowdown: f64,
    hand_over: HandOver,
    one_thread_ns: f64,
    two_threads_ns: Option<f64>,
    apart_ns: Option<f64>,
}

/// Millions of datagrams a second.
#[derive(Clone, Copy, Debug, Serialize)]
struct Pair {
    predicted: f64,
    measured: f64,
}

impl Pair {
    fn new(predicted_ns: f64, measured_ns: f64) -> Pair {
        Pair { predicted: 1e3 / predicted_ns, measured: 1e3 / measured_ns }
    }

    /// By how much the prediction is off, in %.
    fn off(self) -> f64 {
        100.0 * (self.predicted / self.measured - 1.0)
    }
}

#[derive(Debug, Serialize)]
struct Line {
    size: u32,
    one_thread: Pair,
    two_threads: Option<Pair>,
    apart: Option<Pair>,
}

#[derive(Debug, Serialize)]
pub struct Checked {
    cores: usize,
    rows: Vec<Line>,
    /// The largest of all, in %, without its sign.
    most_off: f64,
}

impl Checked {
    pub fn new(report: &Report) -> Checked {
        let rows: Vec<Line> = report.rows.iter().map(checked).collect();
        let pairs = rows.iter().flat_map(|row| [Some(row.one_thread), row.two_threads, row.apart]);
        let most_off = pairs.flatten().map(|pair| pair.off().abs()).fold(0.0, f64::max);
        Checked { cores: report.cores, rows, most_off }
    }

    pub fn table(&self) -> String {
        let mut out = String::from(
            "millions of datagrams a second, predicted and measured\n\
             bytes | one thread, to completion | two threads, to completion | receive | transmit, a thread each\n",
        );
        let cell = |pair: Option<Pair>| match pair {
            Some(pair) => format!("{:>8.2} {:>8.2} {:>+6.1} %", pair.predicted, pair.measured, pair.off()),
            None => format!("{:>25}", "-"),
        };
        for row in &self.rows {
            let cells = [Some(row.one_thread), row.two_threads, row.apart].map(cell);
            let _ = writeln!(out, "{:>6} | {} | {}  | {}", row.size, cells[0], cells[1], cells[2]);
        }
        let _ = writeln!(out, "most that a prediction is off: {:.1} %", self.most_off);
        if self.cores < 2 {
            out += "this process may use one core only: two threads were not run\n";
        }
        out
    }
}

/// The planner's own prediction, of the two planes as they were measured beside the layouts.
fn checked(row: &Row) -> Line {
    let costs = Costs {
        size: row.size,
        stages_ns: [0.0, row.receive_ns, row.transmit_ns, 0.0],
        put_ns: row.hand_over.put_ns,
        take_ns: row.hand_over.take_ns,
        slowdown: row.slowdown,
    };
    let ns = |rate: f64| 1e9 / rate;
    let completion = |cores| ns(Plan::new(&costs, cores, Flows::Many).completion.rate);
    let two_planes = ns(super::line::two_planes(&costs).rate);
    Line {
        size: row.size,
        one_thread: Pair::new(completion(1), row.one_thread_ns),
        two_threads: row.two_threads_ns.map(|measured| Pair::new(completion(2), measured)),
        apart: row.apart_ns.map(|measured| Pair::new(two_planes, measured)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predictions_stand_beside_what_was_measured() {
        let row = r#"{"size":64,"receive_ns":60,"transmit_ns":140,"beside":1.1,"hand_over":{"put_ns":5,"take_ns":6},
            "one_thread_ns":200,"two_threads_ns":100,"apart_ns":160}"#;
        let report = serde_json::from_str(&format!(r#"{{"cores":2,"rows":[{row}]}}"#)).expect("a report");
        let checked = Checked::new(&report);
        let row = &checked.rows[0];
        assert!(row.one_thread.off().abs() < 1e-9);
        // 1.1 x 200 / 2 and 1.1 x 140 + 6.
        assert!(row.two_threads.is_some_and(|pair| (pair.predicted - 1e3 / 110.0).abs() < 1e-9));
        assert!(row.apart.is_some_and(|pair| (pair.predicted - 6.25).abs() < 1e-9), "{row:?}");
        assert!((checked.most_off - 100.0 / 11.0).abs() < 1e-6, "{}", checked.most_off);
        assert!(checked.table().contains("6.25     6.25   +0.0 %"), "{}", checked.table());
    }
}
