//! What moves a connection's bytes: the engine, or a channel between its two programs (decision 0010).

use toe_abi::channel::Side;
use toe_base::ChannelId;

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The engine. A local connection that lasts is on the way to a channel.
    Engine(Earning),
    /// The engine, for as long as the connection lasts: it had a channel, or somebody has it to whom a channel would be of no use.
    EngineForGood,
    /// A channel, past the engine.
    Channel(Direct),
}

impl Default for Carrier {
    fn default() -> Carrier {
        Carrier::Engine(Earning::default())
    }
}

impl Carrier {
    #[inline]
    pub fn channel(&self) -> Option<Direct> {
        if let Carrier::Channel(direct) = self { Some(*direct) } else { None }
    }

    /// Takes the connection out of its channel, if it is in one.
    pub fn leave_channel(&mut self) -> Option<Direct> {
        let direct = self.channel()?;
        *self = Carrier::EngineForGood;
        Some(direct)
    }

    /// No channel from now on. One that it has it keeps until it leaves that.
    pub fn stay_with_engine(&mut self) {
        if let Carrier::Engine(_) = self {
            *self = Carrier::EngineForGood;
        }
    }

    /// How far it is on the way to a channel, if it may get one.
    pub fn earning(&mut self) -> Option<&mut Earning> {
        if let Carrier::Engine(earning) = self { Some(earning) } else { None }
    }
}

/// A connection's place in a channel. Of [`Earning`]'s bytes none lie where the side is, which says which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed(2))]
pub struct Direct {
    pub channel: ChannelId,
    pub slot: u32,
    pub generation: u16,
    pub side: Side,
}

const _: () = assert!(size_of::<Carrier>() <= 12);

/// Counts what a local connection receives, to tell when an attempt at a channel is due: at 4 units and then less and
/// less often, so that a short connection pays nothing and a refused one does not pay for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed(2))]
pub struct Earning {
    units: u32,
    next: u32,
    /// Attempts that found the channel offered and not taken yet.
    early: u8,
}

impl Earning {
    /// The first attempt: an answer in two or three pieces (a header, a file) does not make a connection one that lasts.
    const FIRST: u32 = 4;
    /// Attempts after which a refused connection makes no more.
    const UNITS_MAX: u32 = 128;
    /// A channel that is being taken is asked for at every unit, this often; then ever more seldom, as the host may be
    /// one that takes none.
    const EARLY_MAX: u8 = 64;

    /// One more; whether an attempt is due.
    pub fn unit(&mut self) -> bool {
        self.units = self.units.saturating_add(1);
        self.units == self.next
    }

    pub fn refused(&mut self) {
        self.next = if self.units < Self::UNITS_MAX { self.units.next_power_of_two().max(2) } else { 0 };
        if self.next == self.units {
            self.next = self.units * 2;
        }
    }

    /// What stood in the way is gone, or about to be: an attempt is due at the next unit, if it has come so far.
    pub fn next_unit(&mut self) {
        self.next = self.units.saturating_add(1).max(Earning::FIRST);
    }

    pub fn not_ready(&mut self) {
        let soon = self.early < Self::EARLY_MAX;
        self.early = self.early.saturating_add(1);
        self.next = if soon { self.units.saturating_add(1) } else { self.units.saturating_mul(2) };
    }
}

impl Default for Earning {
    fn default() -> Self {
        Earning { units: 0, next: Self::FIRST, early: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_channel() -> Carrier {
        Carrier::Channel(Direct { channel: ChannelId(1), slot: 2, side: Side::One, generation: 3 })
    }

    #[test]
    fn who_has_left_a_channel_gets_no_other() {
        let mut carrier = in_channel();
        assert!(carrier.leave_channel().is_some_and(|direct| direct.slot == 2));
        assert_eq!((carrier, carrier.leave_channel()), (Carrier::EngineForGood, None));
        assert!(carrier.earning().is_none());
    }

    #[test]
    fn what_is_to_stay_with_the_engine_keeps_the_channel_that_it_has() {
        let (mut carrier, mut direct) = (Carrier::default(), in_channel());
        carrier.stay_with_engine();
        direct.stay_with_engine();
        assert_eq!((carrier, direct), (Carrier::EngineForGood, in_channel()));
    }

    #[test]
    fn a_channel_is_tried_for_at_the_fourth_unit_and_then_less_and_less_often() {
        let mut earning = Earning::default();
        let mut tries = Vec::new();
        for unit in 1..=200 {
            if earning.unit() {
                tries.push(unit);
                earning.refused();
            }
        }
        assert_eq!(tries, [4, 8, 16, 32, 64, 128]);
    }
}
