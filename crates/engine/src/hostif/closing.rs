//! Sessions that are closed and give up what they had, some connections at a time.

use toe_base::SessionId;

/// Which connections of a session end with RST when it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resets {
    None,
    /// Those that its program has taken: it was fenced.
    Accepted,
    All,
}

/// A session that is closed and gives up what it had.
#[derive(Clone, Copy, Debug)]
pub struct Closing {
    pub session: SessionId,
    pub resets: Resets,
    /// The place of its next flow.
    pub next: usize,
}
