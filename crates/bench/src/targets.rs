//! The targets (`targets.toml`) and whether the medians reach them. Used by `runner`; shown by `report`.

use crate::error::{Error, Result};
use crate::sample::{Figure, Measured, Stack};
use serde::{Deserialize, Serialize};

const TEXT: &str = include_str!("targets.toml");

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Targets {
    target: Vec<Target>,
}

/// One bound. Exactly one of the three is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Target {
    pub(crate) row: String,
    pub(crate) figure: Judged,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) most: Option<f64>,
}

/// A figure that a target bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Judged {
    Rate,
    P50,
    P99,
    ServerCpu,
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

/// Judges all targets.
pub(crate) fn judge(targets: &[Target], rows: &[Measured]) -> Vec<Verdict> {
    targets.iter().map(|target| target.judge(rows)).collect()
}

impl Target {
    fn is_of(&self, row: &str) -> bool {
        match self.row.strip_suffix('*') {
            // One processor is a target of its own.
            Some(start) => row.starts_with(start) && !row.ends_with("-onecore"),
            None => self.row == row,
        }
    }

    fn judge(&self, rows: &[Measured]) -> Verdict {
        let of_this = rows.iter().map(|m| (m.row.name(), m)).filter(|(name, _)| self.is_of(name));
        let mut figures: Vec<(String, f64)> =
            of_this.filter_map(|(name, m)| Some((name, self.measured(m)?))).collect();
        figures.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        // The one that is farthest from the bound.
        let worst = if self.ratio_min.is_some() { figures.into_iter().next() } else { figures.pop() };
        let (row, measured) = worst.unzip();
        let reached = measured.map(|measured| {
            self.ratio_min.is_none_or(|min| measured >= min)
                && self.ratio_max.is_none_or(|max| measured <= max)
                && self.most.is_none_or(|most| measured <= most)
        });
        Verdict { target: self.clone(), row, measured, reached }
    }

    fn measured(&self, row: &Measured) -> Option<f64> {
        let figure = self.figure.figure();
        if self.most.is_none() {
            return row.ratio(figure);
        }
        let own = row.summary(Stack::Toe, figure)?.median;
        match self.figure {
            Judged::ServerCpuOverNullNs => Some(own * 1000.0 - row.null_ns?),
            _ => Some(own),
        }
    }

    /// The bound in words: `>= 3.0 x`.
    pub(crate) fn bound(&self) -> String {
        match (self.ratio_min, self.ratio_max, self.most) {
            (Some(min), ..) => format!(">= {min} x"),
            (_, Some(max), _) => format!("<= {max} x"),
            (_, _, Some(most)) => format!("<= {most} {}", self.figure.unit()),
            (None, None, None) => String::new(),
        }
    }
}

impl Verdict {
    /// What was measured, in words.
    pub(crate) fn shown(&self) -> String {
        let Some(measured) = self.measured else { return "-".to_owned() };
        match self.target.most {
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
            Judged::P50 => Figure::P50,
            Judged::P99 => Figure::P99,
            Judged::ServerCpu | Judged::ServerCpuOverNullNs => Figure::ServerCpu,
            Judged::ConnectionKib => Figure::ConnectionMemory,
            Judged::CpuPercent => Figure::CpuPercent,
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Judged::Rate => "rate",
            Judged::P50 => "p50",
            Judged::P99 => "p99",
            Judged::ServerCpu => "server's CPU per operation",
            Judged::ServerCpuOverNullNs => "server's CPU per request over an empty handler",
            Judged::ConnectionKib => "memory per connection",
            Judged::CpuPercent => "CPU of all together",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Judged::Rate => "/s",
            Judged::P50 | Judged::P99 | Judged::ServerCpu => "us",
            Judged::ServerCpuOverNullNs => "ns",
            Judged::ConnectionKib => "KiB",
            Judged::CpuPercent => "%",
        }
    }
}
