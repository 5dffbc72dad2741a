//! The report as JSON: every run, and the medians of each row. `schema` counts changes that a reader must know of.

use super::{Report, Unmeasured};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::options::Neighbour;
use crate::row::Cores;
use crate::sample::{Figure, Measured, Sample, Stack};
use crate::stats::Summary;
use crate::targets::Verdict;
use crate::together;
use serde::Serialize;
use std::collections::BTreeMap;

const SCHEMA: u32 = 2;

#[derive(Serialize)]
struct Whole<'a> {
    schema: u32,
    machine: &'a Machine,
    rounds: u32,
    /// What the whole took.
    seconds: u64,
    /// Rows over slow wires ran side by side.
    #[serde(skip_serializing_if = "Option::is_none")]
    together: Option<&'a together::Seen>,
    rows: Vec<Row<'a>>,
    unmeasured: &'a [Unmeasured],
    targets: &'a [Verdict],
}

#[derive(Serialize)]
struct Row<'a> {
    name: String,
    workload: &'static str,
    link: &'static str,
    cores: Cores,
    /// What ran on the same processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<Neighbour>,
    /// What rates count and processor time is divided by.
    operation: &'static str,
    medians: BTreeMap<&'static str, BTreeMap<&'static str, Summary>>,
    /// OpenTOE's median divided by that of Linux.
    ratios: BTreeMap<&'static str, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    null_ns: Option<f64>,
    samples: &'a [Sample],
}

/// The whole report, ending with a line break.
pub(crate) fn whole(report: &Report) -> Result<String> {
    let whole = Whole {
        schema: SCHEMA,
        machine: &report.machine,
        rounds: report.rounds,
        seconds: report.took.as_secs(),
        together: report.together.as_ref(),
        rows: report.rows.iter().map(row).collect(),
        unmeasured: &report.unmeasured,
        targets: &report.verdicts,
    };
    let text = serde_json::to_string_pretty(&whole).map_err(|error| Error::failed("JSON", error))?;
    Ok(text + "\n")
}

fn row(measured: &Measured) -> Row<'_> {
    let of = |stack| {
        let found =
            Figure::ALL.iter().filter_map(|(name, figure)| Some((*name, measured.summary(stack, *figure)?)));
        found.collect()
    };
    Row {
        name: measured.row.name(),
        workload: measured.row.workload.name(),
        link: measured.row.link.name(),
        cores: measured.row.cores,
        beside: measured.row.beside,
        operation: measured.row.operation(),
        medians: [("linux", of(Stack::Linux)), ("toe", of(Stack::Toe))].into(),
        ratios: Figure::ALL
            .iter()
            .filter_map(|(name, figure)| Some((*name, measured.ratio(*figure)?)))
            .collect(),
        null_ns: measured.null_ns,
        samples: &measured.samples,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn every_run_and_every_median_is_there() {
        let report = report();
        let json: serde_json::Value = serde_json::from_str(&whole(&report).expect("JSON")).expect("JSON");
        assert_eq!(json["schema"], 2);
        let rows = json["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), report.rows.len());
        let row = rows.iter().find(|row| row["name"] == "local/rr/64B-d1-c1").expect("the row");
        assert_eq!(row["samples"].as_array().map(Vec::len), Some(6));
        assert_eq!(row["medians"]["linux"]["rate"]["median"], 1000.0);
        assert_eq!(row["ratios"]["rate"], 2.0);
        assert_eq!(row["samples"][0]["stack"], "linux");
        assert!(json["targets"].as_array().is_some_and(|targets| !targets.is_empty()));
        assert_eq!(json["unmeasured"][0]["failed"], false);
    }
}
