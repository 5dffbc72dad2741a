//! Names that others chose, as they are put before people: whatever a terminal would heed, or a line would end by, is written out.

use std::fmt::{self, Display, Formatter, Write};

/// Shows text of somebody else's.
#[derive(Clone, Copy, Debug)]
pub struct Presented<'a>(pub &'a str);

impl Display for Presented<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut presented = String::new();
        for c in self.0.chars() {
            // Also what turns the direction of writing, and what a file name that was no text has become.
            let is_plain = !c.is_control()
                && !matches!(c, '"' | '\\')
                && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
            if is_plain { presented.push(c) } else { write!(presented, "{}", c.escape_default())? }
        }
        f.pad(&presented)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_heeds_comes_through() {
        assert_eq!(Presented("nginx: worker").to_string(), "nginx: worker");
        assert_eq!(Presented("Größe").to_string(), "Größe");
        let hostile = "a\u{1b}[31m\nLISTEN\u{9b}2J\u{202e}\u{7f}\t";
        assert_eq!(Presented(hostile).to_string(), "a\\u{1b}[31m\\nLISTEN\\u{9b}2J\\u{202e}\\u{7f}\\t");
        assert_eq!(format!("{:>4}|{:<3}|", Presented("ab"), Presented("c")), "  ab|c  |");
    }
}
