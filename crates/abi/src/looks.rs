//! The engine's own page: what every host can see of how far the engine is. One for all sessions, written by the engine alone and
//! sealed against writing by anybody else.
//!
//! A *whole look* takes all that hosts had published before it began, delivers what goes between connections of this engine, and posts
//! the completions of all that. What a call of any process had handed to the engine before a host reads [`LOOKS`] is seen by everybody
//! once the word has gone up by two: the first of the two looks may have begun before.

/// Its length in bytes.
pub const LOOKS_LEN: u64 = crate::region::PAGE;
/// Offset of the count of whole looks (u64).
pub const LOOKS: u64 = 0;
/// Offset of a word (u32): above its lowest bit the number of the engine's last sleep, which changes before hosts are told to ring; the
/// bit is set once the engine sleeps, having looked at everything after that. Then nothing is under way but what was rung for in this
/// very sleep. In a line of its own: it changes less often.
pub const SLEEP: u64 = 64;
