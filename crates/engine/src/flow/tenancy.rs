//! Who has a connection: one value, and the one table of its changes ([`Tenancy::after`]). Nothing beside it says the same.
//!
//! | state | who can read and write | what ends it |
//! |---|---|---|
//! | half open | nobody | the handshake's last segment, or its end |
//! | queued | nobody: it waits at its listener | a session is handed it |
//! | offered | a session, once its program accepts | the program accepts; or it goes back to the queue |
//! | owned | a session's program | the session ends or gives it up; another process shows its descriptor; close |
//! | parked | whoever shows its descriptor next | that; or its last descriptor is closed |
//! | finishing | nobody; a session may have to hear of the end | the peer has all, and the session has heard |
//!
//! Whether TCP goes on without a program is the transmission control block's (`orphaned`), which is set when this is *finishing*.

use crate::control::listen::ListenerIdx;
use crate::work::Owner;
use toe_base::{AnchorHandle, Instant, ListenerId, SessionId};

/// Who has a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tenancy {
    /// Nobody, and nobody will: the record stands for no connection, or its last user is about to give it back.
    #[default]
    Nobody,
    /// It came in, and its handshake goes on. `in_line`: of those for which their listener has no place, it has one in the line for the next.
    HalfOpen { listener: ListenerIdx, in_line: bool },
    /// It waits at its listener for a session.
    Queued(Arrival),
    /// A session was handed it, and its program has not accepted it.
    Offered(Offer),
    /// A program has it: it has accepted or made it.
    Owned(Hold),
    /// No session has it. Some process has its descriptor.
    Parked {
        anchor: AnchorHandle,
        /// The driver keeps octets for whoever shows the descriptor next, which come before those of the engine.
        has_prefix: bool,
    },
    /// Its program has let go of it. The session is to hear that its memory is its own again.
    Finishing { owner: Owner },
}

/// A connection that came in, whose program has not accepted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The listener that counts it. None: it ended while a session had it on offer.
    pub listener: Option<ListenerIdx>,
    /// Its number among all that came in, so that one which is given back waits in its old place.
    pub number: u64,
}

/// To whom a connection was handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    pub arrival: Arrival,
    pub owner: Owner,
    /// The name by which that session knows the listener.
    pub handed_to: ListenerId,
    /// From when on, if its program has not accepted it, another may have it.
    pub goes_back_at: Instant,
    /// It is the answer to that session's question.
    pub asked_for: bool,
    /// The session has been told that it goes back, and may accept it before it hears of that.
    pub is_withdrawn: bool,
}

/// How a session has a connection that its program has accepted or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    pub owner: Owner,
    /// The descriptor pair whose last close ends the connection.
    pub anchor: AnchorHandle,
    /// Octets came with it that the session before had received: it may still have some that nobody else can reach.
    pub has_carried: bool,
    pub told: Told,
}

/// What the owner has been told to do about a connection that another process shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Told {
    #[default]
    Nothing,
    /// To give it up, with what it alone has of it (`Completion::Yield`).
    ToYield,
    /// That it goes to another session, which has not got it yet (`Completion::Moved`).
    Moved,
}

/// What changes who has a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenancyEvent {
    /// A SYN, or the ACK that brought a cookie back, made the record.
    CameIn(ListenerIdx),
    /// Its program may have it: the handshake is complete, or its SYN brought a good cookie (RFC 7413).
    Opened { number: u64 },
    /// Its listener counts it no more.
    Forgotten,
    /// A session is handed it.
    Handed { owner: Owner, handed_to: ListenerId, goes_back_at: Instant, asked_for: bool },
    /// The session is told that it goes back.
    Withdrawn,
    /// That was not told yet, and never is.
    StaysAfterAll,
    /// The program accepts it, by this descriptor of its own.
    Accepted { anchor: AnchorHandle, fd: u32 },
    /// A program makes it.
    Connected { owner: Owner, anchor: AnchorHandle },
    /// The owner is told something about who wants it.
    Told(Told),
    /// The session has it no more: it has ended, given it up, lost it to another, or need not hear of the end.
    Left,
    /// What the session had received goes to the driver for who comes next.
    PrefixKept,
    /// A session shows its descriptor.
    Claimed(Owner),
    /// The program closes it, or its last descriptor is closed.
    LetGo,
}

impl Tenancy {
    /// Who has it after `event`. An event that a state does not know leaves it as it is.
    #[must_use]
    pub fn after(self, event: TenancyEvent) -> Tenancy {
        match (self, event) {
            (Tenancy::Nobody, TenancyEvent::CameIn(listener)) => {
                Tenancy::HalfOpen { listener, in_line: false }
            }
            (Tenancy::Nobody, TenancyEvent::Connected { owner, anchor }) => {
                Tenancy::Owned(Hold { owner, anchor, has_carried: false, told: Told::Nothing })
            }
            (Tenancy::HalfOpen { listener, .. }, TenancyEvent::Opened { number }) => {
                Tenancy::Queued(Arrival { listener: Some(listener), number })
            }
            (Tenancy::HalfOpen { .. } | Tenancy::Queued(_), TenancyEvent::Forgotten) => Tenancy::Nobody,
            (
                Tenancy::Queued(arrival),
                TenancyEvent::Handed { owner, handed_to, goes_back_at, asked_for },
            ) => Tenancy::Offered(Offer {
                arrival,
                owner,
                handed_to,
                goes_back_at,
                asked_for,
                is_withdrawn: false,
            }),
            (Tenancy::Offered(offer), event) => offer.after(event),
            (Tenancy::Owned(hold), event) => hold.after(event),
            (Tenancy::Parked { anchor, .. }, TenancyEvent::PrefixKept) => {
                Tenancy::Parked { anchor, has_prefix: true }
            }
            (Tenancy::Parked { anchor, has_prefix }, TenancyEvent::Claimed(owner)) => {
                Tenancy::Owned(Hold { owner, anchor, has_carried: has_prefix, told: Told::Nothing })
            }
            (Tenancy::Finishing { .. }, TenancyEvent::Left) => Tenancy::Nobody,
            (Tenancy::Parked { .. } | Tenancy::HalfOpen { .. } | Tenancy::Queued(_), TenancyEvent::LetGo) => {
                Tenancy::Nobody
            }
            (tenancy, _) => tenancy,
        }
    }

    pub fn apply(&mut self, event: TenancyEvent) {
        *self = self.after(event);
    }

    /// Gives it a place in the line of its listener, or takes it out; whether it had one.
    pub fn set_in_line(&mut self, stands: bool) -> bool {
        match self {
            Tenancy::HalfOpen { in_line, .. } => core::mem::replace(in_line, stands),
            _ => false,
        }
    }

    /// Which session has it, under what name. Session 0: none.
    #[inline]
    pub fn owner(&self) -> Owner {
        match self {
            Tenancy::Offered(offer) => offer.owner,
            Tenancy::Owned(hold) => hold.owner,
            Tenancy::Finishing { owner } => *owner,
            Tenancy::Nobody | Tenancy::HalfOpen { .. } | Tenancy::Queued(_) | Tenancy::Parked { .. } => {
                Owner::default()
            }
        }
    }

    /// Whether a program has accepted or made it and has not let go of it.
    pub fn is_held(&self) -> bool {
        matches!(self, Tenancy::Owned(_) | Tenancy::Parked { .. })
    }

    /// The listener that counts it.
    pub fn listener(&self) -> Option<ListenerIdx> {
        match self {
            Tenancy::HalfOpen { listener, .. } => Some(*listener),
            Tenancy::Queued(arrival) | Tenancy::Offered(Offer { arrival, .. }) => arrival.listener,
            Tenancy::Nobody | Tenancy::Owned(_) | Tenancy::Parked { .. } | Tenancy::Finishing { .. } => None,
        }
    }

    /// Its number among all that came in; of one whose program has not accepted it.
    pub fn arrival(&self) -> Option<u64> {
        match self {
            Tenancy::Queued(arrival) | Tenancy::Offered(Offer { arrival, .. }) => Some(arrival.number),
            _ => None,
        }
    }

    pub fn offer(&self) -> Option<&Offer> {
        if let Tenancy::Offered(offer) = self { Some(offer) } else { None }
    }

    pub fn hold(&self) -> Option<&Hold> {
        if let Tenancy::Owned(hold) = self { Some(hold) } else { None }
    }

    /// The descriptor pair whose last close ends it.
    pub fn anchor(&self) -> Option<AnchorHandle> {
        match self {
            Tenancy::Owned(hold) => Some(hold.anchor),
            Tenancy::Parked { anchor, .. } => Some(*anchor),
            _ => None,
        }
    }

    pub fn told(&self) -> Told {
        self.hold().map_or(Told::Nothing, |hold| hold.told)
    }

    /// Whether the session was handed it, by this name of its listener, and its program has not accepted it.
    pub fn was_handed(&self, session: SessionId, name: ListenerId) -> bool {
        self.offer().is_some_and(|offer| offer.owner.session == session && offer.handed_to == name)
    }
}

impl Offer {
    fn after(self, event: TenancyEvent) -> Tenancy {
        let Offer { arrival, owner, is_withdrawn, .. } = self;
        match event {
            TenancyEvent::Withdrawn => Tenancy::Offered(Offer { is_withdrawn: true, ..self }),
            TenancyEvent::StaysAfterAll => Tenancy::Offered(Offer { is_withdrawn: false, ..self }),
            TenancyEvent::Forgotten => {
                Tenancy::Offered(Offer { arrival: Arrival { listener: None, ..arrival }, ..self })
            }
            TenancyEvent::Accepted { anchor, fd } => {
                let told = if is_withdrawn { Told::Moved } else { Told::Nothing };
                Tenancy::Owned(Hold { owner: Owner { fd, ..owner }, anchor, has_carried: false, told })
            }
            TenancyEvent::Left if arrival.listener.is_some() => Tenancy::Queued(arrival),
            TenancyEvent::Left => Tenancy::Nobody,
            TenancyEvent::LetGo => Tenancy::Finishing { owner },
            _ => Tenancy::Offered(self),
        }
    }
}

impl Hold {
    fn after(self, event: TenancyEvent) -> Tenancy {
        match event {
            TenancyEvent::Told(told) => Tenancy::Owned(Hold { told, ..self }),
            TenancyEvent::Left => Tenancy::Parked { anchor: self.anchor, has_prefix: false },
            TenancyEvent::LetGo => Tenancy::Finishing { owner: self.owner },
            _ => Tenancy::Owned(self),
        }
    }
}
