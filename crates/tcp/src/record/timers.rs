//! When a connection has something to do though nothing comes. One part of the record ([`super::Tcb`]); [`crate::timeout`] works on it.
//!
//! A new timer has one of six homes. [`Timers`] has what any connection may arm, and costs each of them its bytes. [`PeerTimer`] has a wait
//! for the peer that excludes the others. [`super::RackTimers`] has what is for losses on a link. [`super::Deadlines`] has what few
//! connections arm. A deadline that follows from the record is computed in [`crate::Tcp::deadline`] and armed nowhere. What is of no single
//! connection is in the engine's `timers.rs`.
//!
//! A timer must not take a connection of [`super::Tcb::is_local`] for idle: its bytes may pass outside of TCP, by a channel.

use toe_base::Instant;

/// Deadlines, but for those that few connections have ([`super::Deadlines`]) or that are for losses ([`super::RackTimers`]); `FAR_FUTURE` when not armed. The wheel holds the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    pub peer: PeerTimer,
    pub delayed_ack: Instant,
    /// Idle receive memory goes back.
    pub release: Instant,
    /// When the peer was last heard.
    pub heard: Instant,
    /// Since when the oldest unacknowledged data waits without progress.
    pub stalled_since: Instant,
}

/// How long the peer is waited for, and what for: one thing at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerTimer {
    #[default]
    Off,
    /// What is out is to be acknowledged.
    Retransmit(Instant),
    /// Its window is closed: the next probe (RFC 9293 section 3.8.6.1).
    Persist(Instant),
    /// Nothing more is to come: TIME_WAIT, or FIN_WAIT_2 without a program.
    Linger(Instant),
}

impl PeerTimer {
    const fn at(self) -> Instant {
        match self {
            PeerTimer::Off => Instant::FAR_FUTURE,
            PeerTimer::Retransmit(at) | PeerTimer::Persist(at) | PeerTimer::Linger(at) => at,
        }
    }
}

impl Default for Timers {
    fn default() -> Self {
        let off = Instant::FAR_FUTURE;
        Timers {
            peer: PeerTimer::Off,
            delayed_ack: off,
            release: off,
            heard: Instant::ZERO,
            stalled_since: off,
        }
    }
}

impl Timers {
    /// The earliest of these: [`crate::Tcp::deadline`] knows the others.
    pub(crate) fn earliest(&self) -> Instant {
        let Timers { peer, delayed_ack, release, .. } = *self;
        peer.at().min(delayed_ack).min(release)
    }

    /// Disarms everything that concerns the peer.
    pub(crate) fn stop_all(&mut self) {
        let Timers { heard, release, .. } = *self;
        *self = Timers { heard, release, ..Timers::default() };
    }

    pub const fn retransmit(&self) -> Instant {
        if let PeerTimer::Retransmit(at) = self.peer { at } else { Instant::FAR_FUTURE }
    }

    pub const fn persist(&self) -> Instant {
        if let PeerTimer::Persist(at) = self.peer { at } else { Instant::FAR_FUTURE }
    }

    pub const fn linger(&self) -> Instant {
        if let PeerTimer::Linger(at) = self.peer { at } else { Instant::FAR_FUTURE }
    }

    pub(crate) const fn stop_retransmit(&mut self) {
        if let PeerTimer::Retransmit(_) = self.peer {
            self.peer = PeerTimer::Off;
        }
    }

    pub(crate) const fn stop_persist(&mut self) {
        if let PeerTimer::Persist(_) = self.peer {
            self.peer = PeerTimer::Off;
        }
    }
}
