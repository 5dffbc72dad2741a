//! The report of all rows: as text, JSON and HTML. Filled by `runner`.

pub(crate) mod json;
pub(crate) mod text;

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::options::{Options, Sink};
use crate::row::Row;
use crate::sample::Measured;
use crate::targets::Verdict;
use std::path::Path;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) rounds: u32,
    pub(crate) took: Duration,
    pub(crate) rows: Vec<Measured>,
    /// Rows that could not be measured, and why.
    pub(crate) skipped: Vec<(String, String)>,
    pub(crate) verdicts: Vec<Verdict>,
}

impl Report {
    pub(crate) fn new(machine: Machine, rounds: u32) -> Report {
        let took = Duration::ZERO;
        Report { machine, rounds, took, rows: Vec::new(), skipped: Vec::new(), verdicts: Vec::new() }
    }

    /// A row that cannot be measured.
    pub(crate) fn skip(&mut self, row: &Row, why: String) {
        eprintln!("  skipped: {why}");
        self.skipped.push((row.name(), why));
    }
}

/// Writes what the options ask for; gives what goes to the standard output.
pub(crate) fn deliver(options: &Options, report: &Report) -> Result<String> {
    let mut out = text::whole(report);
    match &options.json {
        Some(Sink::Stdout) => out = json::whole(report)?,
        Some(Sink::File(path)) => write(path, &json::whole(report)?)?,
        None => {}
    }
    Ok(out)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| Error::failed(path.display().to_string(), error))
}
