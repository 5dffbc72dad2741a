//! A line as words, and the errors of reading it. Used by the other files of this folder.

use std::fmt;
use std::path::PathBuf;

/// Where a script is wrong, and what should stand there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    pub path: PathBuf,
    /// Counted from 1.
    pub line: usize,
    pub column: usize,
    pub expected: String,
    pub found: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ParseError { path, line, column, expected, found } = self;
        write!(f, "{}:{line}:{column}: expected {expected}, found {found}", path.display())
    }
}

impl std::error::Error for ParseError {}

/// An error before it is known in which file and line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(super) column: usize,
    pub(super) expected: String,
    pub(super) found: String,
}

/// The words of one line, read from left to right. A comment starts at `#`.
#[derive(Clone, Debug)]
pub(crate) struct Words<'a> {
    /// (column counted from 1, word)
    words: Vec<(usize, &'a str)>,
    at: usize,
    end: usize,
}

impl<'a> Words<'a> {
    pub(crate) fn of(line: &'a str) -> Words<'a> {
        let code = line.split('#').next().unwrap_or_default();
        let mut words = Vec::new();
        let mut start = None;
        for (at, c) in code.char_indices().chain([(code.len(), ' ')]) {
            match (c.is_whitespace(), start) {
                (false, None) => start = Some(at),
                (true, Some(from)) => {
                    words.push((from + 1, &code[from..at]));
                    start = None;
                }
                _ => {}
            }
        }
        Words { words, at: 0, end: code.trim_end().len() + 1 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at >= self.words.len()
    }

    pub(crate) fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).map(|(_, word)| *word)
    }

    pub(crate) fn next(&mut self) -> Option<&'a str> {
        let word = self.peek();
        self.at += usize::from(word.is_some());
        word
    }

    /// Takes the next word if it is this one.
    pub(crate) fn take(&mut self, word: &str) -> bool {
        let is_it = self.peek() == Some(word);
        self.at += usize::from(is_it);
        is_it
    }

    /// Goes past the next word, if so.
    pub(super) fn skip_if(&mut self, so: bool) {
        self.at += usize::from(so);
    }

    /// Goes back by one word.
    pub(crate) fn back(&mut self) {
        self.at -= 1;
    }

    /// The next word cannot be read: `expected` should stand there.
    pub(crate) fn wrong<T>(&self, expected: impl Into<String>) -> Result<T, Wrong> {
        let (column, found) = match self.words.get(self.at) {
            Some((column, word)) => (*column, format!("`{word}`")),
            None => (self.end, "the end of the line".to_owned()),
        };
        Err(Wrong { column, expected: expected.into(), found })
    }

    /// The next word read by `read`, or an error that says what was expected.
    pub(super) fn read<T>(
        &mut self,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, Wrong> {
        match self.peek().and_then(read) {
            Some(value) => {
                self.at += 1;
                Ok(value)
            }
            None => self.wrong(expected),
        }
    }

    pub(crate) fn number<T: std::str::FromStr>(&mut self, expected: &str) -> Result<T, Wrong> {
        self.read(expected, |word| word.parse().ok())
    }

    /// The rest of the line must be empty.
    pub(super) fn finish(&self) -> Result<(), Wrong> {
        if self.is_empty() { Ok(()) } else { self.wrong("the end of the line") }
    }
}

/// `40ms`, `1.5s`, `0.04` (seconds), as microseconds.
pub(super) fn time(word: &str) -> Option<u64> {
    let (digits, unit) = match word.strip_suffix("ms") {
        Some(digits) => (digits, 1_000),
        None => (word.strip_suffix('s').unwrap_or(word), 1_000_000u64),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || whole.len() > 6 || part.len() > 6 || !is_number(whole) || !is_number(part) {
        return None;
    }
    let mut us = whole.parse::<u64>().ok()? * unit;
    let mut place = unit;
    for digit in part.bytes() {
        place /= 10;
        us += u64::from(digit - b'0') * place;
    }
    Some(us)
}
