//! From text to a [`Script`]. Every error says file, line, column and what was expected.

mod header;
mod segment;
mod statement;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use statement::errno_name;
pub use words::ParseError;
pub(crate) use words::{Words, Wrong};

use crate::script::{OnLinux, Script};
use std::path::Path;

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
    let (mut steps, mut instead) = (Vec::new(), None);
    for (number, line) in lines.iter().enumerate().skip(body) {
        let mut words = Words::of(line);
        let of_linux = words.peek() == Some("linux:");
        words.skip_if(of_linux);
        let step = statement::statement(&mut words, number + 1).map_err(|wrong| at(number, wrong))?;
        match step {
            Some(step) if of_linux && instead.is_none() && !steps.is_empty() => {
                instead = Some((steps.len() - 1, step));
            }
            _ if of_linux => return Err(at(number, wrong("one `linux:` line, behind a statement", line))),
            step => steps.extend(step),
        }
    }
    if instead.is_some() != matches!(header.linux, OnLinux::Differs(_)) {
        let expected = "a line `linux:` with what Linux does, where and only where it differs";
        return Err(at(lines.len(), wrong(expected, "the end of the file")));
    }
    if steps.is_empty() {
        return Err(at(lines.len(), wrong("statements behind the header", "the end of the file")));
    }
    let lines = lines.iter().map(|line| (*line).to_owned()).collect();
    Ok(Script { path: path.to_owned(), header, steps, instead, lines })
}

fn wrong(expected: &str, found: &str) -> Wrong {
    Wrong { column: 1, expected: expected.to_owned(), found: found.to_owned() }
}
