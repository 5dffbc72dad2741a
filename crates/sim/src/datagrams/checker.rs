//! What must hold: a datagram that comes was sent, from where it says and to where it came, is whole and nothing but itself, and comes no more often than
//! the links have brought its beginning.

use std::collections::BTreeMap;
use toe_base::Endpoint;

/// What each text begins with: which it is.
pub(super) const NAME_LEN: usize = 8;
/// What a hostile host sends has this name.
pub(super) const HOSTILE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Sent {
    from: Endpoint,
    to: Endpoint,
    len: usize,
    /// How often its beginning came to the receiver's engine, and how often it was delivered.
    brought: u32,
    delivered: u32,
    must_come: bool,
}

#[derive(Debug, Default)]
pub(super) struct Checker {
    sent: BTreeMap<u64, Sent>,
    hostile: Vec<Endpoint>,
    next: u64,
    wrong: Option<String>,
}

/// The text of a datagram.
pub(super) fn text(name: u64, len: usize) -> Vec<u8> {
    let mut text = name.to_le_bytes().to_vec();
    text.extend((NAME_LEN..len).map(|n| (name as usize).wrapping_mul(31).wrapping_add(n) as u8));
    text
}

pub(super) fn name_of(text: &[u8]) -> Option<u64> {
    text.first_chunk().map(|name| u64::from_le_bytes(*name))
}

impl Checker {
    pub(super) fn fail(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    pub(super) fn take(&mut self) -> Option<String> {
        self.wrong.take()
    }

    /// A program sends: what is in it.
    pub(super) fn sends(&mut self, from: Endpoint, to: Endpoint, len: usize, must_come: bool) -> Vec<u8> {
        let name = self.next;
        self.next += 1;
        let sent = Sent { from, to, len, brought: 0, delivered: 0, must_come };
        self.sent.insert(name, sent);
        text(name, len)
    }

    /// From here a hostile host may send.
    pub(super) fn hostile_at(&mut self, from: Endpoint) {
        self.hostile.push(from);
    }

    /// Its beginning has come to an engine, by a link or from that engine itself.
    pub(super) fn brought(&mut self, text: &[u8]) {
        if let Some(sent) = name_of(text).and_then(|name| self.sent.get_mut(&name)) {
            sent.brought += 1;
        }
    }

    pub(super) fn delivered(&mut self, from: Endpoint, to: Endpoint, bytes: &[u8]) {
        let name = name_of(bytes);
        if name == Some(HOSTILE) {
            // He may send what he likes, but from where he is.
            if !self.hostile.contains(&from) {
                self.fail(format!("a hostile host has sent from {from}"));
            }
            return;
        }
        let Some((name, sent)) = name.and_then(|name| Some((name, self.sent.get_mut(&name)?))) else {
            return self.fail(format!("{} bytes came from {from} that nobody sent", bytes.len()));
        };
        sent.delivered += 1;
        let Sent { from: sender, to: receiver, len, brought, delivered, .. } = *sent;
        if (sender, receiver) != (from, to) {
            self.fail(format!("{name} went from {sender} to {receiver} and came from {from} to {to}"));
        } else if bytes != text(name, len) {
            self.fail(format!("{name} was {len} bytes and came as {} others", bytes.len()));
        } else if delivered > brought {
            self.fail(format!("{name} came {delivered} times, and its beginning {brought} times"));
        }
    }

    /// At the end: what had to come, with nothing in its way.
    pub(super) fn all_came(&mut self) {
        let lost = self.sent.iter().find(|(_, sent)| sent.must_come && sent.delivered != 1);
        let said = lost.map(|(name, sent)| {
            let Sent { from, to, len, delivered, .. } = sent;
            format!("{name} of {len} bytes from {from} to {to} came {delivered} times over a sound link")
        });
        if let Some(said) = said {
            self.fail(said);
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.sent.values().map(|sent| u64::from(sent.delivered)).sum()
    }
}
