//! How scarce the receive memory is that a connection draws on. Whoever hands a connection its segments says so, of the session's memory and of
//! what else bounds it, and the connection holds back: its window grows no more, and what it takes is what has come
//! (Linux: `tcp_under_memory_pressure`).

use toe_base::arena::Arena;

/// The scarcer of two is the larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    #[default]
    None,
    High,
}

impl Pressure {
    /// High once more than three quarters are in use.
    pub fn of(arena: &Arena) -> Pressure {
        if arena.available() < arena.capacity() / 4 { Pressure::High } else { Pressure::None }
    }

    pub fn is_high(self) -> bool {
        self == Pressure::High
    }
}
