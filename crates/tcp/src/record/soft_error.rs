//! What a record has of soft errors ([`crate::soft_error`]).

use toe_abi::errno::Errno;

/// Which soft errors the program hears of as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hears {
    /// They are only noted (SHLD-20).
    #[default]
    None,
    /// Those that ICMP messages tell.
    Icmp,
    /// The same, and that retransmissions reached R1. Linux tells nobody of that, and a program that only knows Linux would take
    /// it for the end: hence a word of its own.
    IcmpAndR1,
}

impl Hears {
    /// What [`toe_abi::entry::FlowOption::SoftErrors`] says.
    pub const fn from_value(value: u32) -> Hears {
        match value {
            0 => Hears::None,
            2 => Hears::IcmpAndR1,
            _ => Hears::Icmp,
        }
    }
}

/// The last one that was noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// [`Errno::OK`]: none since the peer last acknowledged something.
    pub errno: Errno,
    /// How many were noted, modulo 256.
    pub count: u8,
}
