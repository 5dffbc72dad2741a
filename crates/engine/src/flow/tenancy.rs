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

use crate::control::listener_idx::ListenerIdx;
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
    Queued(QueuePosition),
    /// A session was handed it, and its program has not accepted it.
    Offered(AcceptOffer),
    /// A program has it: it has accepted or made it.
    Owned(Ownership),
    /// No session has it. Some process has its descriptor.
    Parked { lifetime: AnchorHandle },
    /// Its program has let go of it. The session is to hear that its memory is its own again.
    Finishing { owner: Owner },
}

/// A connection that came in, whose program has not accepted it. It begins at any multiple of four, as each record has room for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed(4))]
pub struct QueuePosition {
    /// The listener that counts it. None: it ended while a session had it on offer.
    pub listener: Option<ListenerIdx>,
    /// Its number among all that came in, so that one which is given back waits in its old place.
    pub number: u64,
}

/// To whom a connection was handed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptOffer {
    pub arrival: QueuePosition,
    pub owner: Owner,
    /// The name by which that session knows the listener.
    pub handed_to: ListenerId,
    /// From when on, if its program has not accepted it, another may have it.
    pub goes_back_at: Instant,
    /// It is the answer to that session's question.
    pub asked_for: bool,
}

/// How a session has a connection that its program has accepted or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    pub owner: Owner,
    /// The descriptor pair whose last close ends the connection.
    pub lifetime: AnchorHandle,
    pub notice: Notice,
}

/// What the owner has been told to do about a connection that another process shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Notice {
    #[default]
    None,
    /// To give it up, with what it alone has of it (`Completion::Yield`).
    Yield,
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
    /// It could not be taken back yet, and is left there until then.
    StaysUntil(Instant),
    /// The program accepts it, by this descriptor of its own.
    Accepted { lifetime: AnchorHandle, fd: u32 },
    /// A program makes it.
    Connected { owner: Owner, lifetime: AnchorHandle },
    /// The owner is told something about who wants it.
    Notified(Notice),
    /// The session has it no more: it has ended, given it up, lost it to another, or need not hear of the end.
    Left,
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
            (Tenancy::Nobody, TenancyEvent::Connected { owner, lifetime }) => {
                Tenancy::Owned(Ownership { owner, lifetime, notice: Notice::None })
            }
            (Tenancy::HalfOpen { listener, .. }, TenancyEvent::Opened { number }) => {
                Tenancy::Queued(QueuePosition { listener: Some(listener), number })
            }
            (Tenancy::HalfOpen { .. } | Tenancy::Queued(_), TenancyEvent::Forgotten) => Tenancy::Nobody,
            (
                Tenancy::Queued(arrival),
                TenancyEvent::Handed { owner, handed_to, goes_back_at, asked_for },
            ) => Tenancy::Offered(AcceptOffer { arrival, owner, handed_to, goes_back_at, asked_for }),
            (Tenancy::Offered(offer), event) => offer.after(event),
            (Tenancy::Owned(hold), event) => hold.after(event),
            (Tenancy::Parked { lifetime }, TenancyEvent::Claimed(owner)) => {
                Tenancy::Owned(Ownership { owner, lifetime, notice: Notice::None })
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
            Tenancy::Queued(arrival) | Tenancy::Offered(AcceptOffer { arrival, .. }) => arrival.listener,
            Tenancy::Nobody | Tenancy::Owned(_) | Tenancy::Parked { .. } | Tenancy::Finishing { .. } => None,
        }
    }

    /// Its number among all that came in; of one whose program has not accepted it.
    pub fn arrival(&self) -> Option<u64> {
        match self {
            Tenancy::Queued(arrival) | Tenancy::Offered(AcceptOffer { arrival, .. }) => Some(arrival.number),
            _ => None,
        }
    }

    pub fn offer(&self) -> Option<&AcceptOffer> {
        if let Tenancy::Offered(offer) = self { Some(offer) } else { None }
    }

    pub fn hold(&self) -> Option<&Ownership> {
        if let Tenancy::Owned(hold) = self { Some(hold) } else { None }
    }

    /// The descriptor pair whose last close ends it.
    pub fn lifetime(&self) -> Option<AnchorHandle> {
        match self {
            Tenancy::Owned(hold) => Some(hold.lifetime),
            Tenancy::Parked { lifetime } => Some(*lifetime),
            _ => None,
        }
    }

    pub fn notice(&self) -> Notice {
        self.hold().map_or(Notice::None, |hold| hold.notice)
    }

    /// Whether the session was handed it, by this name of its listener, and its program has not accepted it.
    pub fn was_handed(&self, session: SessionId, name: ListenerId) -> bool {
        self.offer().is_some_and(|offer| offer.owner.session == session && offer.handed_to == name)
    }
}

impl AcceptOffer {
    fn after(self, event: TenancyEvent) -> Tenancy {
        let AcceptOffer { arrival, owner, .. } = self;
        match event {
            TenancyEvent::StaysUntil(goes_back_at) => Tenancy::Offered(AcceptOffer { goes_back_at, ..self }),
            TenancyEvent::Forgotten => {
                Tenancy::Offered(AcceptOffer { arrival: QueuePosition { listener: None, ..arrival }, ..self })
            }
            TenancyEvent::Accepted { lifetime, fd } => {
                let owner = Owner { fd, ..owner };
                Tenancy::Owned(Ownership { owner, lifetime, notice: Notice::None })
            }
            TenancyEvent::Left if arrival.listener.is_some() => Tenancy::Queued(arrival),
            TenancyEvent::Left => Tenancy::Nobody,
            TenancyEvent::LetGo => Tenancy::Finishing { owner },
            _ => Tenancy::Offered(self),
        }
    }
}

impl Ownership {
    fn after(self, event: TenancyEvent) -> Tenancy {
        match event {
            TenancyEvent::Notified(notice) => Tenancy::Owned(Ownership { notice, ..self }),
            TenancyEvent::Left => Tenancy::Parked { lifetime: self.lifetime },
            TenancyEvent::LetGo => Tenancy::Finishing { owner: self.owner },
            _ => Tenancy::Owned(self),
        }
    }
}

/// When it goes back whoever else takes any: its session has let go of the listener.
pub const GOES_BACK_AT_ONCE: Instant = Instant::ZERO;

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::{FlowId, QueueSetId};

    const PAGE: &str = "docs/decisions/0044-one-value-says-who-has-a-connection.md";
    const LISTENER: ListenerIdx = ListenerIdx(3);

    fn owner(session: u16) -> Owner {
        Owner { session: SessionId(session), queue_set: QueueSetId(0), flow_id: FlowId::default(), fd: 4 }
    }

    fn handle() -> AnchorHandle {
        AnchorHandle::default()
    }

    fn handed() -> TenancyEvent {
        let (handed_to, goes_back_at) = (ListenerId::default(), Instant::FAR_FUTURE);
        TenancyEvent::Handed { owner: owner(1), handed_to, goes_back_at, asked_for: true }
    }

    fn all_events() -> Vec<(&'static str, TenancyEvent)> {
        vec![
            ("came in", TenancyEvent::CameIn(LISTENER)),
            ("opened", TenancyEvent::Opened { number: 7 }),
            ("forgotten", TenancyEvent::Forgotten),
            ("handed", handed()),
            ("stays until", TenancyEvent::StaysUntil(Instant::ZERO)),
            ("accepted", TenancyEvent::Accepted { lifetime: handle(), fd: 9 }),
            ("connected", TenancyEvent::Connected { owner: owner(1), lifetime: handle() }),
            ("notified", TenancyEvent::Notified(Notice::Yield)),
            ("left", TenancyEvent::Left),
            ("claimed", TenancyEvent::Claimed(owner(2))),
            ("let go", TenancyEvent::LetGo),
        ]
    }

    /// Every state, reached by events alone.
    fn all_states() -> Vec<Tenancy> {
        let after = |events: &[TenancyEvent]| events.iter().fold(Tenancy::Nobody, |t, event| t.after(*event));
        let (came_in, opened) = (TenancyEvent::CameIn(LISTENER), TenancyEvent::Opened { number: 7 });
        let connected = TenancyEvent::Connected { owner: owner(1), lifetime: handle() };
        vec![
            Tenancy::Nobody,
            after(&[came_in]),
            after(&[came_in, opened]),
            after(&[came_in, opened, handed()]),
            after(&[connected]),
            after(&[connected, TenancyEvent::Left]),
            after(&[connected, TenancyEvent::LetGo]),
        ]
    }

    fn name(tenancy: Tenancy) -> &'static str {
        match tenancy {
            Tenancy::Nobody => "nobody",
            Tenancy::HalfOpen { .. } => "half open",
            Tenancy::Queued(_) => "queued",
            Tenancy::Offered(_) => "offered",
            Tenancy::Owned(_) => "owned",
            Tenancy::Parked { .. } => "parked",
            Tenancy::Finishing { .. } => "finishing",
        }
    }

    fn table() -> String {
        let events = all_events();
        let mut text = String::from("| |");
        events.iter().for_each(|(event, _)| text += &format!(" {event} |"));
        text += "\n|---|";
        text += &"---|".repeat(events.len());
        for state in all_states() {
            text += &format!("\n| **{}** |", name(state));
            for (_, event) in &events {
                let after = state.after(*event);
                let cell = match after {
                    after if after == state => "",
                    after if name(after) == name(state) => "other data",
                    after => name(after),
                };
                text += &format!(" {cell} |");
            }
        }
        text + "\n"
    }

    #[test]
    fn the_table_is_what_the_page_shows() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
        let text = std::fs::read_to_string(&page).expect("the page");
        let start = text.find("| | came in |").expect("a table");
        let end = text[start..].find("\n\n").map_or(text.len(), |len| start + len + 1);
        if std::env::var_os("TOE_WRITE").is_some() {
            std::fs::write(&page, [&text[..start], &table(), &text[end..]].concat()).expect("the page");
            return;
        }
        assert_eq!(text[start..end], table(), "{PAGE} is old: TOE_WRITE=1 writes it");
    }

    #[test]
    fn a_program_has_it_only_by_accept_connect_and_claim() {
        for state in all_states() {
            for (name, event) in all_events() {
                let becomes_owned = state.hold().is_none() && state.after(event).hold().is_some();
                assert!(!becomes_owned || ["accepted", "connected", "claimed"].contains(&name), "{state:?}");
            }
        }
    }

    #[test]
    fn what_goes_back_waits_in_its_old_place_and_what_ended_meanwhile_nowhere() {
        let [.., offered, _, _, _] = all_states()[..] else { panic!("an offer") };
        let queued = Tenancy::Queued(QueuePosition { listener: Some(LISTENER), number: 7 });
        assert_eq!(offered.after(TenancyEvent::Left), queued);
        let ended = offered.after(TenancyEvent::Forgotten);
        assert_eq!((ended.listener(), ended.arrival()), (None, Some(7)), "its program may still accept it");
        assert_eq!(ended.after(TenancyEvent::Left), Tenancy::Nobody);
    }

    #[test]
    fn whoever_lets_go_leaves_nothing_but_the_one_who_is_to_hear_of_it() {
        for state in all_states() {
            let after = state.after(TenancyEvent::LetGo);
            assert_eq!(after.owner(), state.owner(), "{state:?}");
            assert_eq!((after.lifetime(), after.listener()), (None, None), "{state:?}");
            assert_eq!(after.after(TenancyEvent::Left), Tenancy::Nobody, "{state:?}");
        }
    }
}
