//! `docs/conformance.md`, read: its rows, for the tests that check what they say, and those that take the behaviour of a row away.

use crate::bins::workspace;
use std::fs;

pub const PAGE: &str = "docs/conformance.md";
const LEVELS: [&str; 4] = ["MUST", "SHOULD", "MAY", "text"];

/// How far a requirement is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Presented,
    Unshown,
    NotMet,
    DoesNotApply,
}

/// One row of a table.
#[derive(Debug)]
pub struct Row {
    pub line: usize,
    pub rfc: String,
    pub section: String,
    /// `MUST-13` and the like.
    pub number: Option<String>,
    pub level: String,
    /// What the RFC asks.
    pub what: String,
    pub where_: String,
    pub presented: String,
    pub state: State,
}

impl Row {
    pub fn name(&self) -> String {
        let number = self.number.as_ref().map(|number| format!(" {number}")).unwrap_or_default();
        format!("{PAGE}:{}: RFC {} section {}{number}", self.line, self.rfc, self.section)
    }
}

/// What the page says.
#[derive(Debug, Default)]
pub struct Page {
    /// RFCs with a table, in the page's order.
    pub tables: Vec<String>,
    pub rows: Vec<Row>,
    pub findings: Vec<String>,
}

pub fn page_text() -> String {
    fs::read_to_string(workspace().join(PAGE)).expect("the page")
}

pub fn page(text: &str) -> Page {
    let mut page = Page::default();
    for (at, line) in text.lines().enumerate() {
        if let Some(rest) = line.strip_prefix("## RFC ") {
            let rfc: String = rest.chars().take_while(char::is_ascii_digit).collect();
            page.tables.push(rfc);
        } else if let Some(rest) = line.strip_prefix("## ") {
            // A draft goes by its name's first word.
            page.tables.push(rest.split(' ').next().unwrap_or_default().to_owned());
        } else if line.starts_with("| ") && !line.starts_with("| section ") && !page.tables.is_empty() {
            let rfc = page.tables.last().cloned().unwrap_or_default();
            match row(line, at + 1, &rfc) {
                Ok(row) => page.rows.push(row),
                Err(wrong) => page.findings.push(format!("{PAGE}:{}: {wrong}", at + 1)),
            }
        }
    }
    page
}

fn row(line: &str, at: usize, rfc: &str) -> Result<Row, String> {
    let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [place, level, what, where_, presented] = cells[..] else {
        return Err(format!("a row has 5 cells, this one {}", cells.len()));
    };
    let (section, number) = place.split_once(' ').map_or((place, None), |(s, n)| (s, Some(n.to_owned())));
    if section.is_empty() || what.is_empty() {
        return Err("a row needs a section and says what the RFC asks".to_owned());
    }
    if !LEVELS.contains(&level) {
        return Err(format!("the level is one of {LEVELS:?}, not `{level}`"));
    }
    let state = state(presented)?;
    if matches!(state, State::Presented | State::Unshown) && code_in(where_).next().is_none() {
        return Err("a row that is met names the file that meets it".to_owned());
    }
    Ok(Row {
        line: at,
        rfc: rfc.to_owned(),
        section: section.to_owned(),
        number,
        level: level.to_owned(),
        what: what.to_owned(),
        where_: where_.to_owned(),
        presented: presented.to_owned(),
        state,
    })
}

/// What the last cell says. Whatever is not proved has a reason.
fn state(presented: &str) -> Result<State, String> {
    let reasons = [
        ("**no script yet**", State::Unshown, false),
        ("**not met**", State::NotMet, true),
        ("**does not apply**", State::DoesNotApply, true),
    ];
    for (mark, state, needs_reason) in reasons {
        if let Some(rest) = presented.strip_prefix(mark) {
            let reason = rest.trim_start_matches(':').trim();
            return if needs_reason && reason.len() < 8 {
                Err(format!("{mark} needs its reason: `{mark}: why`"))
            } else {
                Ok(state)
            };
        }
    }
    if code_in(presented).next().is_some() {
        Ok(State::Presented)
    } else {
        Err("the last cell names scripts or tests between backticks, or is **no script yet**, **not met**: why, or \
             **does not apply**: why"
            .to_owned())
    }
}

/// What stands between backticks.
pub fn code_in(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// A file of the page's short form: below the engine's source, or below `crates`.
pub fn file_text(path: &str) -> Option<String> {
    ["crates/engine/src", "crates"]
        .iter()
        .find_map(|root| fs::read_to_string(workspace().join(root).join(path)).ok())
}
