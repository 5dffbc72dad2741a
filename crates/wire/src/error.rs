//! Why a frame was refused: one list for all protocols, because each reason becomes a counter of the engine.

use core::fmt;

/// Reason to drop what arrived. A peer can cause any of them, so none is more than a counted drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParseError {
    /// Shorter than its fixed header, or than the length that the header states.
    Truncated,
    /// Not the version of the protocol that this parser reads.
    BadVersion,
    /// The stated header length is below the minimum.
    BadHeaderLength,
    /// The stated total length is below the header's.
    BadTotalLength,
    /// The checksum does not match.
    BadChecksum,
    /// An option's length is zero, one, or reaches past the header.
    BadOption,
    /// An IPv6 extension header that asks for the packet to be dropped, or one of too many.
    BadExtension,
    /// A well-formed message of a kind that is not spoken here (such as ARP for something other than IPv4).
    Unsupported,
}

impl ParseError {
    /// Every reason, in the order of [`ParseError::index`].
    pub const ALL: [ParseError; 8] = [
        ParseError::Truncated,
        ParseError::BadVersion,
        ParseError::BadHeaderLength,
        ParseError::BadTotalLength,
        ParseError::BadChecksum,
        ParseError::BadOption,
        ParseError::BadExtension,
        ParseError::Unsupported,
    ];

    /// Place in [`ParseError::ALL`], for an array of counters.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The reason's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            ParseError::Truncated => "truncated",
            ParseError::BadVersion => "bad_version",
            ParseError::BadHeaderLength => "bad_header_length",
            ParseError::BadTotalLength => "bad_total_length",
            ParseError::BadChecksum => "bad_checksum",
            ParseError::BadOption => "bad_option",
            ParseError::BadExtension => "bad_extension_header",
            ParseError::Unsupported => "unsupported",
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl core::error::Error for ParseError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_the_place_in_all() {
        for (place, reason) in ParseError::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), place);
        }
    }
}
