//! What went wrong, as a person wants to read it.

use crate::script::Script;
use std::fmt;
use std::path::PathBuf;

/// Lines of the script shown before the one that failed.
const LINES_BEFORE: usize = 4;
/// Segments shown that came before.
const TRACE_SHOWN: usize = 12;

/// A script that did not go as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub path: PathBuf,
    pub line: usize,
    /// Whether the stack could not even be used.
    pub is_trouble: bool,
    pub why: String,
    /// Lines of the script up to the one that failed.
    around: Vec<(usize, String)>,
    /// Segments on the wire so far.
    trace: Vec<String>,
}

impl Failure {
    pub(super) fn new(script: &Script, line: usize, why: String, trace: &[String]) -> Failure {
        let from = line.saturating_sub(LINES_BEFORE).max(1);
        let around = (from..=line).filter_map(|n| Some((n, script.lines.get(n - 1)?.clone()))).collect();
        let trace = trace[trace.len().saturating_sub(TRACE_SHOWN)..].to_vec();
        Failure { path: script.path.clone(), line, is_trouble: false, why, around, trace }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:{}: {}", self.path.display(), self.line, self.why)?;
        for (number, text) in &self.around {
            let mark = if *number == self.line { '>' } else { ' ' };
            writeln!(f, "  {mark} {number:3}  {text}")?;
        }
        if !self.trace.is_empty() {
            writeln!(f, "    on the wire:")?;
        }
        self.trace.iter().try_for_each(|line| writeln!(f, "      {line}"))
    }
}

impl std::error::Error for Failure {}
