//! The report as JSON: every run, and the medians of each row. `schema` counts changes that a reader must know of.

use super::Report;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::sample::{Figure, Measured, Sample, Stack};
use crate::stats::Summary;
use crate::targets::Verdict;
use serde::Serialize;
use std::collections::BTreeMap;

const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Whole<'a> {
    schema: u32,
    machine: &'a Machine,
    rounds: u32,
    /// What the whole took.
    seconds: u64,
    rows: Vec<Row<'a>>,
    skipped: Vec<Skipped<'a>>,
    targets: &'a [Verdict],
}

#[derive(Serialize)]
struct Row<'a> {
    name: String,
    workload: &'static str,
    link: &'static str,
    one_core: bool,
    /// What rates count and processor time is divided by.
    operation: &'static str,
    medians: BTreeMap<&'static str, BTreeMap<&'static str, Summary>>,
    /// OpenTOE's median divided by that of Linux.
    ratios: BTreeMap<&'static str, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    null_ns: Option<f64>,
    samples: &'a [Sample],
}

#[derive(Serialize)]
struct Skipped<'a> {
    name: &'a str,
    why: &'a str,
}

/// The whole report, ending with a line break.
pub(crate) fn whole(report: &Report) -> Result<String> {
    let whole = Whole {
        schema: SCHEMA,
        machine: &report.machine,
        rounds: report.rounds,
        seconds: report.took.as_secs(),
        rows: report.rows.iter().map(row).collect(),
        skipped: report.skipped.iter().map(|(name, why)| Skipped { name, why }).collect(),
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
        one_core: measured.row.one_core,
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
