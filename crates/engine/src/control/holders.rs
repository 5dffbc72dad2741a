//! Who may take a listener's connections: its sessions, the anchors by which it lives, and whose turn it is.

use super::names::Twin;
use super::prefetch::Allowance;
use crate::work::Sharing;
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, ListenerId, QueueSetId, SessionId};

/// Most connections that one holder can ask for in advance.
pub const CREDIT_MAX: u32 = 4096;
/// Most lifetime handles that hold one listener.
const LIFETIMES_MAX: usize = 4096;

/// In the place of an anchor: no directory has this number.
pub const ON_ITS_WAY: AnchorHandle = AnchorHandle(toe_abi::command::NO_HANDLE);

/// A session that holds the listener, by one of its anchors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub session: SessionId,
    pub anchor: AnchorHandle,
    pub queue_set: QueueSetId,
    pub id: ListenerId,
    /// Connections that it may still be handed.
    pub credit: u32,
    /// Its program takes connections: there was credit once.
    pub takes: bool,
    /// What it may be handed besides a connection that it asks for.
    pub prefetch: Allowance,
    /// It knows that connections wait, where they are asked for.
    pub notified: bool,
    pub fd: u32,
}

impl Holder {
    /// One that does not take connections yet, and has no name for the listener.
    pub fn new(session: SessionId, queue_set: QueueSetId, anchor: AnchorHandle, fd: u32) -> Holder {
        Holder {
            session,
            anchor,
            queue_set,
            id: ListenerId::default(),
            credit: 0,
            takes: false,
            prefetch: Allowance::default(),
            notified: false,
            fd,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Holders {
    /// The listener lives as long as one of these is open. Each came with the kernel socket that gives whoever opened it the name.
    lifetimes: Vec<(AnchorHandle, Twin)>,
    pub list: Vec<Holder>,
    /// Several processes may take from it. Where only one of them does, and has given credit since it last made a child, connections are handed to it in
    /// advance, as of a listener that is not shared. Else each asks for a connection when its program wants one, or one that stands still would keep it from the others.
    pub is_shared: bool,
    /// One who let go of it said that others may have the kernel's socket: it may be on its way to them.
    pub is_passed_on: bool,
    /// Whose turn it is.
    next_at: usize,
}

impl Holders {
    /// Nobody yet. The listener lives by this anchor.
    pub fn new(anchor: AnchorHandle, twin: Twin) -> Holders {
        Holders {
            lifetimes: vec![(anchor, twin)],
            list: Vec::new(),
            is_shared: false,
            is_passed_on: false,
            next_at: 0,
        }
    }

    /// It lives by this one, too.
    pub fn add_lifetime(&mut self, anchor: AnchorHandle, twin: Twin) -> Result<(), Errno> {
        if self.lifetimes.len() >= LIFETIMES_MAX {
            return Err(Errno::EMFILE);
        }
        self.lifetimes.push((anchor, twin));
        Ok(())
    }

    /// How many sessions take connections.
    pub fn takers(&self) -> usize {
        self.list.iter().filter(|holder| holder.takes).count()
    }

    /// Whether each asks for a connection when its program wants one.
    pub fn is_asked(&self) -> bool {
        let mut takers = self.list.iter().filter(|holder| holder.takes);
        self.is_shared && !matches!((takers.next(), takers.next()), (Some(only), None) if only.credit > 0)
    }

    /// The next holder with credit, round robin.
    pub fn next_taker(&mut self) -> Option<Holder> {
        self.next(|holder| holder.credit > 0).copied()
    }

    /// The next holder to be told that connections wait, of those that can be.
    pub fn next_untold(&mut self, can_be: impl Fn(&Holder) -> bool) -> Option<Holder> {
        let holder = self.next(|holder| holder.takes && !holder.notified && can_be(holder))?;
        holder.notified = true;
        Some(*holder)
    }

    /// All holders that can be told and are not. Whose turn it is stays as it was: with two of them the first would
    /// otherwise be the first each time, and take everything.
    pub fn all_untold(&mut self, can_be: impl Fn(&Holder) -> bool) -> Vec<Holder> {
        let untold = self.list.iter_mut().filter(|holder| holder.takes && !holder.notified && can_be(holder));
        untold
            .map(|holder| {
                holder.notified = true;
                *holder
            })
            .collect()
    }

    fn next(&mut self, is_it: impl Fn(&Holder) -> bool) -> Option<&mut Holder> {
        let n = self.list.len();
        let at = (0..n).map(|step| (self.next_at + step) % n).find(|&at| is_it(&self.list[at]))?;
        self.next_at = at + 1;
        self.list.get_mut(at)
    }

    /// Whether all who listen here are of this user.
    pub fn is_of(&self, uid: u32) -> bool {
        self.lifetimes.iter().all(|(_, twin)| twin.uid == uid)
    }

    pub fn get_mut(&mut self, session: SessionId, id: ListenerId) -> Option<&mut Holder> {
        self.list.iter_mut().find(|h| h.session == session && h.id == id)
    }

    /// The kernel's socket that gives this one the name, as whoever listens by it has shown it last.
    pub fn twin_of(&self, session: SessionId, id: ListenerId) -> Option<Twin> {
        let holder = self.list.iter().find(|h| h.session == session && h.id == id)?;
        let (_, its) = self.lifetimes.iter().find(|(anchor, _)| *anchor == holder.anchor)?;
        self.twins().filter(|twin| twin.identity == its.identity).max_by_key(|twin| twin.seen)
    }

    /// Removes those that `is_gone` says.
    pub fn remove(&mut self, is_gone: impl Fn(&Holder) -> bool) {
        self.list.retain(|h| !is_gone(h));
    }

    /// The anchor holds the listener no more. Returns what it came with.
    pub fn drop_lifetime(&mut self, anchor: AnchorHandle) -> Option<Twin> {
        let at = self.lifetimes.iter().position(|(known, _)| *known == anchor)?;
        Some(self.lifetimes.remove(at).1)
    }

    /// Its last anchor is gone, and the kernel's socket holds it: that is in a message that nobody has received yet, or its
    /// receiver has not listened yet.
    pub fn is_on_its_way(&self) -> bool {
        self.lifetimes.first().is_some_and(|(anchor, _)| *anchor == ON_ITS_WAY)
    }

    /// From here on the kernel's socket alone holds it; that one is returned. `None`: it has other anchors.
    pub fn send_on_its_way(&mut self, anchor: AnchorHandle) -> Option<Twin> {
        let [(last, twin)] = self.lifetimes.as_mut_slice() else { return None };
        if *last != anchor {
            return None;
        }
        *last = ON_ITS_WAY;
        Some(*twin)
    }

    /// Whether no anchor holds it.
    pub fn is_unanchored(&self) -> bool {
        self.lifetimes.is_empty()
    }

    /// What connections that come in let others have of their name: as the socket that was shown first.
    pub fn sharing(&self) -> Sharing {
        self.lifetimes.first().map_or_else(Sharing::default, |(_, twin)| twin.sharing())
    }

    /// The kernel sockets that give its holders the name.
    pub fn twins(&self) -> impl Iterator<Item = Twin> {
        self.lifetimes.iter().map(|(_, twin)| *twin)
    }

    /// What it rests on: each anchor with its twin's identity.
    pub fn rests(&self) -> impl Iterator<Item = (u64, AnchorHandle)> {
        self.lifetimes.iter().map(|(anchor, twin)| (twin.identity, *anchor))
    }

    pub fn lifetimes(&self) -> impl Iterator<Item = AnchorHandle> {
        self.lifetimes.iter().map(|(anchor, _)| *anchor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::{Cred, Endpoint, Instant};

    /// Those of some sessions, each with its credit. Without credit a session takes all the same if `takes` says so.
    fn held_by(sessions: &[(u16, u32, bool)]) -> Holders {
        let twin = Twin::listening(Endpoint::new([0; 4], 80), 7, Cred::of_user(10), Instant::ZERO);
        let mut holders = Holders::new(AnchorHandle(1), twin);
        let holder = |&(session, credit, takes): &(u16, u32, bool)| Holder {
            credit,
            takes,
            ..Holder::new(SessionId(session), QueueSetId(0), AnchorHandle(1), 3)
        };
        holders.list.extend(sessions.iter().map(holder));
        holders
    }

    /// Node.js with two workers at one listener: on a busy machine one of them took everything.
    #[test]
    fn whoever_was_told_second_is_told_first_the_next_time_though_all_were_told() {
        let mut holders = held_by(&[(1, 0, true), (2, 0, true)]);
        let firsts = [(); 4].map(|()| {
            let first = holders.next_untold(|_| true).map(|holder| holder.session.0);
            assert_eq!(holders.all_untold(|_| true).len(), 1, "the other one, a moment later");
            holders.list.iter_mut().for_each(|holder| holder.notified = false);
            first
        });
        assert_eq!(firsts, [Some(1), Some(2), Some(1), Some(2)]);
    }

    #[test]
    fn connections_go_round_the_holders_that_asked_for_some() {
        let mut holders = held_by(&[(1, 2, true), (2, 0, false), (3, 2, true)]);
        let mut next = || {
            let taker = holders.next_taker()?;
            holders.get_mut(taker.session, taker.id).expect("holds it").credit -= 1;
            Some(taker.session.0)
        };
        let order: Vec<_> = std::iter::from_fn(&mut next).collect();
        assert_eq!(order, [1, 3, 1, 3]);
        let told: Vec<_> =
            std::iter::from_fn(|| holders.next_untold(|_| true)).map(|h| h.session.0).collect();
        assert_eq!(told, [1, 3], "each once, though the credit of both is used up");
    }
}
