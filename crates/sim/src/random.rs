//! All randomness of a run: one seed, and a stream of numbers of its own for each part of the world, so that a part
//! which draws more does not change what the others draw.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Who draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Draws {
    Swarm,
    Network,
    Meddler,
    Programs,
    Hostile,
    Drivers,
    Rings,
    /// What was added later, so that older seeds keep their worlds.
    Wider,
    /// A run against Linux.
    Linux,
    /// As [`Draws::Wider`], and later still.
    FastOpen,
    /// The same again.
    Sharing,
    /// Fast Open in a run against Linux.
    LinuxFastOpen,
    /// When memory that was given back is gone.
    GivingBack,
    /// As [`Draws::Wider`]: what programs keep apart.
    Records,
    /// A world of datagrams.
    Datagrams,
    /// A world of messages.
    Messages,
    /// A world of files.
    Files,
    /// As [`Draws::Wider`]: hosts that are at a flow which another session claims.
    Claims,
    /// As [`Draws::Wider`]: kernels whose address an engine shares.
    Kernel,
    /// Sockets of datagrams that end.
    Endings,
    /// The same again: captures.
    Watched,
    /// And unread bytes that are given back.
    GivenBack,
    /// The same again: entries that wait in rings.
    LateEntries,
    /// Links that keep the bytes of frames.
    Heads,
    /// Lanes between sockets of datagrams.
    Lanes,
    /// Sessions with much memory that is idle.
    IdleMemory,
}

/// One stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    pub fn new(seed: u64, draws: Draws) -> Random {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(draws as u64);
        Random(rng)
    }

    /// Another stream of the same seed.
    pub fn beside(&self, draws: Draws) -> Random {
        let mut rng = self.0.clone();
        rng.set_stream(draws as u64);
        rng.set_word_pos(0);
        Random(rng)
    }

    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Below `n`, which is not zero. The bias of the multiplication is of no interest here.
    pub fn below(&mut self, n: u32) -> u32 {
        ((u64::from(self.0.next_u32()) * u64::from(n)) >> 32) as u32
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    /// Draws nothing when it can only come out one way: what is off costs nothing.
    pub fn ppm(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < ppm
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u32) as usize]
    }

    /// About as often small as large: each power of two up to `max` is as likely as the next.
    pub fn any_size(&mut self, max: u32) -> u32 {
        let bits = 32 - max.leading_zeros();
        let limit = (1u64 << self.below(bits + 1)).min(u64::from(max)) as u32;
        self.between(0, limit)
    }
}
