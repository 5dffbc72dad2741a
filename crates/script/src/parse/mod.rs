//! From text to a [`Script`]. Every error says file, line, column and what was expected.

mod header;
mod segment;
mod statement;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use statement::errno_name;
pub use words::ParseError;

use crate::script::Script;
use std::path::Path;
use words::{Words, Wrong};

/// The script that stands in a file.
pub fn parse(path: &Path, text: &str) -> Result<Script, ParseError> {
    let lines: Vec<&str> = text.lines().collect();
    let at = |line: usize, wrong: Wrong| ParseError {
        path: path.to_owned(),
        line: line + 1,
        column: wrong.column,
        expected: wrong.expected,
        found: wrong.found,
    };
    let (header, body) = header::header(&lines).map_err(|(line, wrong)| at(line, wrong))?;
    let mut steps = Vec::new();
    for (number, line) in lines.iter().enumerate().skip(body) {
        let step = statement::statement(&mut Words::of(line), number + 1);
        steps.extend(step.map_err(|wrong| at(number, wrong))?);
    }
    if steps.is_empty() {
        let wrong = Wrong {
            column: 1,
            expected: "statements behind the header".to_owned(),
            found: "the end of the file".to_owned(),
        };
        return Err(at(lines.len(), wrong));
    }
    let lines = lines.iter().map(|line| (*line).to_owned()).collect();
    Ok(Script { path: path.to_owned(), header, steps, lines })
}
