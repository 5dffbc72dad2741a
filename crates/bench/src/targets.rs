//! The targets (`targets.toml`) and whether the medians reach them. Used by `runner`; shown by `report`.

use crate::error::{Error, Result};
use crate::options::Neighbour;
use crate::sample::{Figure, Measured, Stack};
use serde::{Deserialize, Serialize};

const TEXT: &str = include_str!("targets.toml");

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Targets {
    target: Vec<Target>,
}

/// One bound. Exactly one of the four is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    pub(crate) row: String,
    pub(crate) figure: Judged,
    /// Ratios are to OpenTOE's own figure of this row, not to Linux's; a star is what the star of `row` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) than: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) most: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) least: Option<f64>,
}

/// A figure that a target bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Judged {
    Rate,
    LostPercent,
    /// The rate at overload, of its peak.
    KeptPercent,
    P50,
    P99,
    Max,
    /// Nanoseconds more than on Linux.
    P50OverLinuxNs,
    ServerCpu,
    TotalCpu,
    ThreadCpu,
    /// Soft interrupts and all.
    MachineCpu,
    ServerCpuOverNullNs,
    ConnectionKib,
    CpuPercent,
}

/// A target with what was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) target: Target,
    /// The row that was judged: with a star, the one that is worst.
    pub(crate) row: Option<String>,
    /// The ratio, or for `most` the figure itself.
    pub(crate) measured: Option<f64>,
    /// `None` when its row was not measured.
    pub(crate) reached: Option<bool>,
}

/// The targets that ship with this program.
pub(crate) fn load() -> Result<Vec<Target>> {
    let targets: Targets = toml::from_str(TEXT).map_err(|error| Error::failed("targets.toml", error))?;
    Ok(targets.target)
}

/// Whether a target needs to know what the handler of `toe-load` takes without a socket.
pub(crate) fn judges_by_null(row: &str) -> bool {
    let targets = load().unwrap_or_default();
    targets.iter().any(|target| target.figure == Judged::ServerCpuOverNullNs && target.is_of(row))
}

/// Judges all targets. A row that `failed` has not reached its own.
pub(crate) fn judge(targets: &[Target], rows: &[Measured], failed: &[&str]) -> Vec<Verdict> {
    targets.iter().map(|target| target.judge(rows, failed)).collect()
}

impl Target {
    fn is_of(&self, row: &str) -> bool {
        let Some((start, end)) = self.row.split_once('*') else { return self.row == row };
        // One processor, full and shared ones are targets of their own.
        let is_as_special = |mark| self.row.contains(mark) == row.contains(mark);
        row.starts_with(start)
            && row.ends_with(end)
            && is_as_special("-onecore")
            && is_as_special("-full")
            && is_as_special(Neighbour::Loops.row_name())
    }

    fn judge(&self, rows: &[Measured], failed: &[&str]) -> Verdict {
        if let Some(row) = failed.iter().find(|row| self.is_of(row)) {
            let row = Some((*row).to_owned());
            return Verdict { target: self.clone(), row, measured: None, reached: Some(false) };
        }
        let of_this = rows.iter().map(|m| (m.row.name(), m)).filter(|(name, _)| self.is_of(name));
        let mut figures: Vec<(String, f64)> =
            of_this.filter_map(|(name, m)| Some((name, self.measured(m, rows)?))).collect();
        figures.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        // The one that is farthest from the bound.
        let worst =
            if self.ratio_min.or(self.least).is_some() { figures.into_iter().next() } else { figures.pop() };
        let (row, measured) = worst.unzip();
        let reached = measured.map(|measured| {
            self.ratio_min.is_none_or(|min| measured >= min)
                && self.ratio_max.is_none_or(|max| measured <= max)
                && self.most.is_none_or(|most| measured <= most)
                && self.least.is_none_or(|least| measured >= least)
        });
        Verdict { target: self.clone(), row, measured, reached }
    }

    fn measured(&self, row: &Measured, rows: &[Measured]) -> Option<f64> {
        let figure = self.figure.figure();
        if let Some(than) = &self.than {
            let name = row.row.name();
            let (start, end) = self.row.split_once('*').unwrap_or((&name, ""));
            let star = name.strip_prefix(start).and_then(|rest| rest.strip_suffix(end)).unwrap_or_default();
            let than = than.replace('*', star);
            let other = rows.iter().find(|other| other.row.name() == than)?;
            let (own, other) =
                (row.summary(Stack::Toe, figure)?.median, other.summary(Stack::Toe, figure)?.median);
            return (other > 0.0).then(|| own / other);
        }
        if self.most.or(self.least).is_none() {
            return row.ratio(figure);
        }
        let own = row.summary(Stack::Toe, figure)?.median;
        match self.figure {
            Judged::ServerCpuOverNullNs => Some(own * 1000.0 - row.null_ns?),
            Judged::P50OverLinuxNs => Some((own - row.summary(Stack::Linux, figure)?.median) * 1000.0),
            _ => Some(own),
        }
    }

    /// The bound in words: `>= 3.0 x`.
    pub(crate) fn bound(&self) -> String {
        let of = self.than.as_ref().map(|than| format!(" of {than}")).unwrap_or_default();
        match (self.ratio_min, self.ratio_max, self.most, self.least) {
            (Some(min), ..) => format!(">= {min} x{of}"),
            (_, Some(max), ..) => format!("<= {max} x{of}"),
            (_, _, Some(most), _) => format!("<= {most} {}", self.figure.unit()),
            (.., Some(least)) => format!(">= {least} {}", self.figure.unit()),
            (None, None, None, None) => String::new(),
        }
    }
}

impl Verdict {
    /// What was measured, in words.
    pub(crate) fn presented(&self) -> String {
        let Some(measured) = self.measured else {
            return if self.reached.is_some() { "failed" } else { "-" }.to_owned();
        };
        match self.target.most.or(self.target.least) {
            Some(_) => format!("{measured:.2} {}", self.target.figure.unit()),
            None if measured < 0.2 => format!("{measured:.3} x"),
            None => format!("{measured:.2} x"),
        }
    }

    pub(crate) fn word(&self) -> &'static str {
        match self.reached {
            Some(true) => "pass",
            Some(false) => "SHORT",
            None => "not run",
        }
    }
}

impl Judged {
    fn figure(self) -> Figure {
        match self {
            Judged::Rate => Figure::Rate,
            Judged::LostPercent => Figure::Lost,
            Judged::KeptPercent => Figure::Kept,
            Judged::P50 | Judged::P50OverLinuxNs => Figure::P50,
            Judged::P99 => Figure::P99,
            Judged::Max => Figure::Max,
            Judged::ServerCpu | Judged::ServerCpuOverNullNs => Figure::ServerCpu,
            Judged::TotalCpu => Figure::TotalCpu,
            Judged::ThreadCpu => Figure::ThreadCpu,
            Judged::MachineCpu => Figure::MachineCpu,
            Judged::ConnectionKib => Figure::ConnectionMemory,
            Judged::CpuPercent => Figure::CpuPercent,
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Judged::Rate => "rate",
            Judged::LostPercent => "datagrams lost",
            Judged::KeptPercent => "rate at overload, of its peak",
            Judged::P50 => "p50",
            Judged::P99 => "p99",
            Judged::Max => "longest wait",
            Judged::P50OverLinuxNs => "p50 over Linux",
            Judged::ServerCpu => "server's CPU per operation",
            Judged::TotalCpu => "all CPU per operation",
            Judged::ThreadCpu => "the calling thread's CPU per operation",
            Judged::MachineCpu => "all CPU per operation, soft interrupts too",
            Judged::ServerCpuOverNullNs => "server's CPU per request over an empty handler",
            Judged::ConnectionKib => "memory per connection",
            Judged::CpuPercent => "CPU of all together",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Judged::Rate => "/s",
            Judged::P50
            | Judged::P99
            | Judged::Max
            | Judged::ServerCpu
            | Judged::TotalCpu
            | Judged::ThreadCpu
            | Judged::MachineCpu => "us",
            Judged::ServerCpuOverNullNs | Judged::P50OverLinuxNs => "ns",
            Judged::ConnectionKib => "KiB",
            Judged::CpuPercent | Judged::LostPercent | Judged::KeptPercent => "%",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use crate::sample::{Cpu, Datagrams, Latency, Memory, Sample};

    /// All rows with a rate ratio of 2, a p50 ratio of 0.5, and 500 ns of the server's time on OpenTOE.
    fn rows() -> Vec<Measured> {
        let sample = |stack, factor: f64| Sample {
            stack,
            round: 1,
            rate: Some(100.0 * factor),
            datagrams: Datagrams { lost_percent: None, kept_percent: Some(95.0) },
            latency_us: Some(Latency { p50: Some(1.0 / factor), ..Latency::default() }),
            cpu_us: Some(Cpu { server: 1.0 / factor, ..Cpu::default() }),
            cpu_percent: None,
            memory: Memory::default(),
            thread_cpu_us: None,
        };
        let samples = vec![sample(Stack::Linux, 1.0), sample(Stack::Toe, 2.0)];
        plan::all()
            .into_iter()
            .map(|row| Measured { row, samples: samples.clone(), null_ns: Some(100.0) })
            .collect()
    }

    fn target(text: &str) -> Target {
        toml::from_str(text).expect("a target")
    }

    #[test]
    fn every_target_is_of_a_row_and_has_one_bound() {
        let rows = plan::all_beside(&Neighbour::ALL);
        let names: Vec<String> = rows.iter().map(|row| row.name()).collect();
        for target in load().expect("targets") {
            assert!(names.iter().any(|name| target.is_of(name)), "{target:?}");
            let bounds = [target.ratio_min, target.ratio_max, target.most, target.least];
            assert_eq!(bounds.iter().flatten().count(), 1, "{target:?}");
        }
        assert!(judges_by_null("local/rr/64B-d1-c64"));
        assert!(!judges_by_null("local/rr/64B-d1-c1"));
    }

    #[test]
    fn ratios_and_figures_are_judged() {
        let judged = |text: &str| {
            let verdict = target(text).judge(&rows(), &[]);
            (verdict.measured, verdict.reached)
        };
        let row = "row = \"local/rr/64B-d1-c64\"\n";
        let of = |rest: &str| judged(&format!("{row}{rest}"));
        assert_eq!(of("figure = \"rate\"\nratio_min = 2.0"), (Some(2.0), Some(true)));
        assert_eq!(of("figure = \"rate\"\nratio_min = 2.1"), (Some(2.0), Some(false)));
        assert_eq!(of("figure = \"p50\"\nratio_max = 0.5"), (Some(0.5), Some(true)));
        assert_eq!(of("figure = \"server_cpu_over_null_ns\"\nmost = 350"), (Some(400.0), Some(false)));
        assert_eq!(of("figure = \"kept_percent\"\nleast = 90"), (Some(95.0), Some(true)));
        assert_eq!(of("figure = \"kept_percent\"\nleast = 96"), (Some(95.0), Some(false)));
        assert_eq!(of("figure = \"p99\"\nratio_max = 0.5"), (None, None));
    }

    #[test]
    fn a_star_is_judged_by_its_worst_row() {
        let mut rows = rows();
        let slow = rows.iter_mut().find(|m| m.row.name() == "local/rr/1KiB-d8-c64").expect("the row");
        slow.samples[1].rate = Some(50.0);
        let all = target("row = \"local/rr/*\"\nfigure = \"rate\"\nratio_min = 1.0");
        let verdict = all.judge(&rows, &[]);
        assert_eq!((verdict.row.as_deref(), verdict.reached), (Some("local/rr/1KiB-d8-c64"), Some(false)));
        let verdict = all.judge(&rows, &["local/rr/64B-d1-c1"]);
        assert_eq!(
            (verdict.measured, verdict.reached, verdict.presented().as_str()),
            (None, Some(false), "failed")
        );
        assert!(!all.is_of("local/rr/64B-d1-c1-onecore") && !all.is_of("local/rr/64B-d1-c1-busy"));
        let busy = target("row = \"local/rr/*-busy\"\nfigure = \"rate\"\nratio_min = 1.0");
        assert!(busy.is_of("local/rr/64B-d1-c1-busy"));
        assert!(!busy.is_of("local/rr/64B-d1-c1") && !busy.is_of("local/rr/64B-d1-c1-busy-nice"));
    }
}
