//! What a call has returned for, everybody can see: whether histories of several processes say so.
//!
//! Pure: histories in, violations out. Each process writes down its own calls in order, with one clock for all. A call that had
//! returned before a look began *happened before* it, and the look has to find what it did; what overlaps may be seen or not.
//!
//! | returned | is seen by |
//! |---|---|
//! | connect | accept, poll and epoll of the listener |
//! | send | recv, FIONREAD, poll and epoll of the other end |
//! | shutdown, close | recv (once all is read), poll, epoll and TCP_INFO's state |
//! | what a reset answers: a send to an end that is closed, a close with bytes unread | send, poll and epoll |
//! | recv | send: there is room |

use crate::history::{Call, Event, Side, listener_of};
use std::collections::{BTreeMap, BTreeSet};

const POLLIN: i64 = 1;
const POLLHUP: i64 = 0x10;
const POLLRDHUP: i64 = 0x2000;
const EAGAIN: i64 = -11;
/// TCP_INFO's states in which the peer has not ended: ESTABLISHED, FIN_WAIT1, FIN_WAIT2.
const NOT_ENDED: [i64; 3] = [1, 4, 5];

/// What a look did not find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Missing {
    /// A connection whose connect has returned.
    Connection,
    /// Bytes whose send has returned.
    Bytes,
    /// The end of a connection: shutdown or close has returned.
    End,
    /// The reset that a returned call has been answered by.
    Reset,
    /// Room for bytes, since others were read.
    Room,
    /// Bytes before the end that was told: they never come.
    Lost,
}

/// A look that did not find what it had to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    pub missing: Missing,
    pub look: Event,
    /// When the call that it does not show had returned.
    pub since: u64,
}

impl Violation {
    /// How long ago that was when the look began, in ns.
    pub fn age(&self) -> u64 {
        self.look.begin - self.since
    }
}

/// One end of a connection, as its process has written it down. All lists in the order of the calls.
#[derive(Debug, Default)]
struct End {
    calls: Vec<Event>,
    /// Where bytes sent are counted to, and when the call had returned.
    sent: Vec<(u64, u64)>,
    /// The same of those received.
    received: Vec<(u64, u64)>,
    /// Sends that took something: begin and end.
    sends: Vec<(u64, u64)>,
    shut: Option<Event>,
    closed: Option<Event>,
}

/// The count of what had returned before `time`, and since when it is so.
fn until(counts: &[(u64, u64)], time: u64) -> (u64, u64) {
    let before = counts.partition_point(|(_, end)| *end < time);
    before.checked_sub(1).map_or((0, 0), |last| counts[last])
}

/// When the byte after `count` had been sent.
fn when(counts: &[(u64, u64)], count: u64) -> u64 {
    counts[counts.partition_point(|(sent, _)| *sent <= count)].1
}

impl End {
    fn add(&mut self, event: Event) {
        self.calls.push(event);
        let add = |counts: &mut Vec<(u64, u64)>| {
            let before = counts.last().map_or(0, |(count, _)| *count);
            counts.push((before + event.result.unsigned_abs(), event.end));
        };
        match event.call {
            Call::Send if event.result > 0 => {
                add(&mut self.sent);
                self.sends.push((event.begin, event.end));
            }
            Call::Recv if event.result > 0 => add(&mut self.received),
            Call::Shutdown if event.result == 0 => self.shut = self.shut.or(Some(event)),
            Call::Close => self.closed = Some(event),
            _ => {}
        }
    }

    /// When the end of what this one sends was told by a call that had returned: by shutdown or close.
    fn ended(&self) -> Option<u64> {
        [self.shut, self.closed].iter().flatten().map(|event| event.end).min()
    }

    fn total_sent(&self) -> u64 {
        self.sent.last().map_or(0, |(count, _)| *count)
    }

    /// When a call had returned that this end's peer, which has closed, is answered by a reset: its own close with bytes of ours
    /// unread, or the first of our sends after it.
    fn reset_by(&self, peer: &End) -> Option<u64> {
        let closed = peer.closed?;
        let read = peer.received.last().map_or(0, |(count, _)| *count);
        if until(&self.sent, closed.begin).0 > read {
            return Some(closed.end);
        }
        self.sends.iter().find(|(begin, _)| *begin > closed.end).map(|(_, end)| *end)
    }
}

/// The most bytes unread that a send has to find room beside, and that FIONREAD has to count.
pub const ROOM: u64 = 8192;

fn check_end(own: &End, peer: &End, found: &mut Vec<Violation>) {
    let reset = own.reset_by(peer);
    let mut read = 0;
    for &look in &own.calls {
        let mut violation = |missing, since| found.push(Violation { missing, look, since });
        let is_reset = reset.filter(|end| *end < look.begin);
        let (sent, _) = until(&peer.sent, look.begin);
        let bytes = (sent > read).then(|| when(&peer.sent, read));
        // The end of more than finds room here has not come.
        let has_room = peer.total_sent() - read.min(peer.total_sent()) <= ROOM;
        let ended = peer.ended().filter(|end| *end < look.begin && has_room);
        // Whoever has ended and has been read to the end.
        let end = ended.filter(|_| read >= peer.total_sent());
        match look.call {
            Call::Recv if look.result > 0 => read += look.result.unsigned_abs(),
            Call::Recv if look.result == EAGAIN => {
                if let Some(since) = bytes {
                    violation(Missing::Bytes, since);
                } else if let Some(since) = end {
                    violation(Missing::End, since);
                }
            }
            Call::Recv => {
                // A reset takes along what its sender had not got rid of.
                if let Some(since) = bytes.filter(|_| reset.is_none()) {
                    violation(Missing::Lost, since);
                }
            }
            Call::Unread => {
                // What finds no room here has not come: FIONREAD does not count it.
                let counted = look.result.unsigned_abs();
                if counted < sent.saturating_sub(read).min(ROOM) {
                    violation(Missing::Bytes, when(&peer.sent, read + counted));
                }
            }
            Call::Poll | Call::Epoll => {
                let seen = |events| look.result & events != 0;
                if let Some(since) = bytes.filter(|_| !seen(POLLIN)) {
                    violation(Missing::Bytes, since);
                } else if let Some(since) = ended.filter(|_| !seen(POLLRDHUP)) {
                    violation(Missing::End, since);
                } else if let Some(since) = is_reset.filter(|_| !seen(POLLHUP)) {
                    violation(Missing::Reset, since);
                }
            }
            Call::State => {
                if let Some(since) = ended.filter(|_| NOT_ENDED.contains(&look.result)) {
                    violation(Missing::End, since);
                }
            }
            Call::Send if look.result > 0 || look.result == EAGAIN => {
                let taken = until(&peer.received, look.begin);
                let unread = until(&own.sent, look.begin).0 - taken.0;
                if let Some(since) = is_reset {
                    violation(Missing::Reset, since);
                } else if look.result == EAGAIN && unread <= ROOM {
                    violation(Missing::Room, taken.1);
                }
            }
            _ => {}
        }
    }
}

fn check_listener(looks: &[Event], connects: &[Event], found: &mut Vec<Violation>) {
    let mut coming = connects.iter().peekable();
    let mut waiting: BTreeMap<u64, u32> = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for &look in looks {
        while let Some(connect) = coming.next_if(|connect| connect.end < look.begin) {
            waiting.insert(connect.end, connect.connection);
        }
        waiting.retain(|_, connection| !taken.contains(connection));
        let is_missed = match look.call {
            Call::Accept if look.side == Side::Server => {
                taken.insert(look.connection);
                false
            }
            Call::Accept => look.result == EAGAIN,
            _ => look.result & POLLIN == 0,
        };
        if let Some((&since, _)) = waiting.first_key_value().filter(|_| is_missed) {
            found.push(Violation { missing: Missing::Connection, look, since });
        }
    }
}

/// All violations in the processes' histories.
pub fn check(histories: &[Vec<Event>]) -> Vec<Violation> {
    let mut ends: BTreeMap<u32, [End; 2]> = BTreeMap::new();
    let mut looks: BTreeMap<u32, Vec<Event>> = BTreeMap::new();
    let mut connects: BTreeMap<u32, Vec<Event>> = BTreeMap::new();
    for &event in histories.iter().flatten() {
        let of_listener = match (event.side, event.call) {
            (Side::Listener, _) => Some(event.connection),
            (Side::Server, Call::Accept) => Some(listener_of(event.connection)),
            _ => None,
        };
        if let Some(listener) = of_listener {
            looks.entry(listener).or_default().push(event);
        }
        match (event.side, event.call) {
            (Side::Listener, _) => {}
            (_, Call::Accept) => {}
            (_, Call::Connect) if event.result == 0 => {
                connects.entry(listener_of(event.connection)).or_default().push(event);
            }
            (side, _) => ends.entry(event.connection).or_default()[side as usize].add(event),
        }
    }
    let mut found = Vec::new();
    for (listener, looks) in &looks {
        let connects = connects.entry(*listener).or_default();
        connects.sort_by_key(|connect| connect.end);
        check_listener(looks, connects, &mut found);
    }
    for [client, server] in ends.values() {
        check_end(client, server, &mut found);
        check_end(server, client, &mut found);
    }
    found
}
