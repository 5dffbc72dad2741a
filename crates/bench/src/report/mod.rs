//! The report of all rows: as text, JSON and HTML. Filled by `runner`.

mod html;
mod json;
mod paper;
mod svg;
pub(crate) mod text;

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::options::{Options, Sink};
use crate::row::Row;
use crate::sample::Measured;
use crate::targets::Verdict;
use crate::together;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) rounds: u32,
    pub(crate) took: Duration,
    pub(crate) rows: Vec<Measured>,
    pub(crate) unmeasured: Vec<Unmeasured>,
    pub(crate) verdicts: Vec<Verdict>,
    /// Of rows that ran side by side.
    pub(crate) together: Option<together::Seen>,
}

/// A row without figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Unmeasured {
    pub(crate) name: String,
    pub(crate) why: String,
    /// It was tried; else something for it is missing here.
    pub(crate) failed: bool,
}

impl Report {
    pub(crate) fn new(machine: Machine, rounds: u32) -> Report {
        let took = Duration::ZERO;
        Report {
            machine,
            rounds,
            took,
            rows: Vec::new(),
            unmeasured: Vec::new(),
            verdicts: Vec::new(),
            together: None,
        }
    }

    /// A row for which something is missing.
    pub(crate) fn leave_out(&mut self, row: &Row, why: String) {
        eprintln!("  left out: {why}");
        self.unmeasured.push(Unmeasured { name: row.name(), why, failed: false });
    }

    /// A row that was tried in vain.
    pub(crate) fn fail(&mut self, row: &Row, error: &Error) {
        eprintln!("  FAILED: {error}");
        self.unmeasured.push(Unmeasured { name: row.name(), why: error.to_string(), failed: true });
    }

    /// How rows ran side by side.
    pub(crate) fn together_note(&self) -> Option<String> {
        let together::Seen { most, idle_percent } = self.together.as_ref()?;
        Some(format!(
            "rows over slow wires ran side by side, up to {most} at once, each with namespaces and an engine of its own; the processors were idle \
             to {:.0} % ({:.0}..{:.0}) meanwhile, and what they did for one row alone is not known ('busy' is left out)",
            idle_percent.median, idle_percent.min, idle_percent.max
        ))
    }

    /// Names of the rows that were tried in vain.
    pub(crate) fn failed(&self) -> Vec<&str> {
        self.unmeasured.iter().filter(|row| row.failed).map(|row| row.name.as_str()).collect()
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
    if let Some(path) = &options.html {
        write(path, &html::whole(report))?;
    }
    Ok(out)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|error| Error::failed(path.display().to_string(), error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Cpu, Datagrams, Latency, Memory, Sample, Stack};
    use crate::{plan, targets};
    use std::collections::BTreeMap;

    /// A report of all rows, three rounds each, in which OpenTOE is twice as good at everything.
    pub(super) fn report() -> Report {
        let machine = Machine {
            cpu: "a processor".to_owned(),
            cpus: 2,
            cpus_used: "0,1".to_owned(),
            congestion: Some("cubic".to_owned()),
            memory_mib: 1024,
            kernel: "6.1".to_owned(),
            system: "Debian".to_owned(),
            opentoe: "0.1.0".to_owned(),
            date: "2026-01-01 00:00".to_owned(),
            commit: None,
            busy_before_percent: Some(50.0),
            tools: BTreeMap::new(),
        };
        let mut report = Report::new(machine, 3);
        for row in plan::all() {
            let sample = |round: u32, stack: Stack| {
                let factor = if stack == Stack::Toe { 2.0 } else { 1.0 };
                let latency =
                    Latency { p50: Some(10.0 / factor), p99: Some(20.0 / factor), ..Latency::default() };
                let cpu = Cpu { server: 4.0, client: 3.0, engine: 0.0, total: 7.0, machine: Some(8.0) };
                Sample {
                    stack,
                    round,
                    datagrams: Datagrams::default(),
                    rate: Some((998.0 + f64::from(round)) * factor),
                    latency_us: Some(latency),
                    cpu_us: Some(cpu.scaled(1.0 / factor)),
                    cpu_percent: None,
                    memory: Memory::default(),
                    thread_cpu_us: Some(2.0 / factor),
                }
            };
            let samples = (1..=3).flat_map(|round| Stack::BOTH.map(|stack| sample(round, stack))).collect();
            report.rows.push(Measured { row, samples, null_ns: Some(10.0) });
        }
        let why = "no <tool>".to_owned();
        report.unmeasured.push(Unmeasured { name: "local/x/y".to_owned(), why, failed: false });
        report.verdicts = targets::judge(&targets::load().expect("targets"), &report.rows, &[]);
        report
    }

    #[test]
    fn the_text_has_every_row_and_its_ratio() {
        let report = report();
        let text = text::whole(&report);
        for measured in &report.rows {
            assert!(text.contains(&measured.row.name()), "{}", measured.row.name());
        }
        assert_eq!(text.matches("rate 2.00 x").count(), report.rows.len());
        let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap_or_default();
        assert!(widest.chars().count() <= 120, "it fits a terminal: {widest}");
        assert!(text.contains("NOTE: ") && text.contains("SHORT") && text.contains("pass"), "{text}");
    }
}
