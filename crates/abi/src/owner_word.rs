//! Owner words: one for each place of a session's flow table, in memory that engine and host share. It says whether a host may touch a
//! flow that can become another's: one that was handed out and is not taken, and one whose descriptor other processes hold.
//!
//! | word | put there by | from |
//! |---|---|---|
//! | offered | engine: it hands out a connection | anything |
//! | held | engine: the host connects or claims; host: `Accept`, the end of a use | anything; offered; in use |
//! | in use | host: a thread takes or gives bytes | held |
//! | withdrawn | engine: the flow goes to somebody else | offered, held |
//!
//! All but the engine's first are by compare and swap, so that of two who want a flow one has it: neither asks the other.

use toe_base::FlowId;

/// What a word says of the flow that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    /// The host may accept it.
    Offered,
    /// It is the host's, and no thread is at it.
    Held,
    /// The host's, and a thread is at it: the engine waits.
    InUse,
    /// It is the host's no more.
    Withdrawn,
}

/// Bits of the word: the flow's id from bit 0 on, what is said of it from bit 32 on.
const SAYS_SHIFT: u32 = 32;

impl Owned {
    /// The word of this flow. Memory that nobody wrote to says nothing of any flow.
    pub const fn word(self, flow: FlowId) -> u64 {
        let says: u64 = match self {
            Owned::Offered => 1,
            Owned::Held => 2,
            Owned::InUse => 3,
            Owned::Withdrawn => 4,
        };
        says << SAYS_SHIFT | flow.raw() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_words_are_alike_and_none_is_zero() {
        let all = [Owned::Offered, Owned::Held, Owned::InUse, Owned::Withdrawn];
        let words: Vec<u64> =
            [0, 7].into_iter().flat_map(|raw| all.map(|says| says.word(FlowId::from_raw(raw)))).collect();
        assert!(words.iter().enumerate().all(|(at, word)| *word != 0 && !words[..at].contains(word)));
    }
}
