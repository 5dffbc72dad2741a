//! Algorithms of congestion control: their numbers in entries and flow information, and the names that programs
//! (TCP_CONGESTION) and configurations give them.

/// Names by number, from 1 on. A number never changes its meaning.
pub const NAMES: [&str; 4] = ["reno", "cubic", "dctcp", "bbr"];

/// What an engine uses when nothing else is said.
pub const DEFAULT: &str = "cubic";

/// Longest name with its zero byte, as TCP_CONGESTION has it (TCP_CA_NAME_MAX).
pub const NAME_MAX: usize = 16;

/// The number of a name.
pub fn number_of(name: &str) -> Option<u8> {
    NAMES.iter().position(|known| *known == name).map(|at| at as u8 + 1)
}

/// The name of a number; `None` for 0, which is "not told", and for those that are not known here.
pub fn name_of(number: u8) -> Option<&'static str> {
    NAMES.get(usize::from(number).checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_belong_together() {
        for name in NAMES {
            assert_eq!(number_of(name).and_then(name_of), Some(name));
            assert!(name.len() < NAME_MAX);
        }
        assert_eq!((number_of("vegas"), name_of(0), name_of(5)), (None, None, None));
        assert_eq!(name_of(4), Some("bbr"), "numbers are for ever");
    }
}
