//! What a program had sent that is gone, or whose socket is, before the engine took it out of the lane: it goes out yet, as what lies in a
//! queue of Linux's does. Filled when a session or a socket ends; emptied by the run loop.

use super::{BYTES_AS_ONE, FromSocket};
use crate::daemon::Daemon;
use std::collections::VecDeque;
use toe_base::{Cred, Instant};
use toe_engine::ControlEvent;

/// Sockets of all users together, and of one user: what is more is lost.
const SOCKETS_MAX: usize = 256;
const USERS_SOCKETS_MAX: usize = 32;
/// Records of one socket: as many as the smallest ring holds of 10 bytes each. Who has the memory still may go on writing into it.
const RECORDS_MAX: usize = 16_384;
/// What no link has taken by then is lost: a link that takes nothing keeps nobody awake for longer.
const KEPT_US: u64 = 1_000_000;
/// Datagrams taken in one round.
const DATAGRAMS_PER_ROUND: usize = 32;

#[derive(Debug)]
struct One {
    account: Cred,
    socket: FromSocket,
    records_left: usize,
    until: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Unsent(VecDeque<One>);

impl Unsent {
    fn has_room_for(&self, account: Cred) -> bool {
        let of_user = self.0.iter().filter(|one| one.account == account).count();
        self.0.len() < SOCKETS_MAX && of_user < USERS_SOCKETS_MAX
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl Daemon {
    /// The engine is about to forget whose the lane is.
    pub(super) fn keep_unsent(&mut self, account: Cred, mut socket: FromSocket) {
        socket.end.close();
        if !socket.end.is_empty() && self.sessions.datagrams.unsent.has_room_for(account) {
            let now = self.clock.now();
            self.engine.handle_control(now, ControlEvent::SenderLingers(socket.id), &mut self.sessions);
            let until = now.after_us(KEPT_US);
            let one = One { account, socket, records_left: RECORDS_MAX, until };
            self.sessions.datagrams.unsent.0.push_back(one);
        }
    }

    fn forget_old(&mut self, now: Instant) {
        let unsent = &mut self.sessions.datagrams.unsent.0;
        let old: Vec<_> = unsent.iter().filter(|one| now >= one.until).map(|one| one.socket.id).collect();
        unsent.retain(|one| now < one.until);
        for id in old {
            self.engine.handle_control(now, ControlEvent::SenderForgotten(id), &mut self.sessions);
        }
    }

    /// Takes some of it, of each socket in turn. Returns how much it was; while something is left that is not nothing.
    pub(crate) fn take_unsent(&mut self, now: Instant) -> usize {
        if self.sessions.datagrams.unsent.len() == 0 {
            return 0;
        }
        self.forget_old(now);
        let mut taken = 0;
        let mut text = std::mem::take(&mut self.record);
        while taken < DATAGRAMS_PER_ROUND && self.engine.takes_datagrams() {
            let Some(mut one) = self.sessions.datagrams.unsent.0.pop_front() else { break };
            let id = one.socket.id;
            let head = if one.records_left > 0 { one.socket.take(&mut text) } else { None };
            let Some(head) = head else {
                self.engine.handle_control(now, ControlEvent::SenderForgotten(id), &mut self.sessions);
                continue;
            };
            let before = self.clock.nanos();
            taken += self.engine.handle_datagrams(now, id, &head, &text, &mut self.sessions);
            taken += text.len() / BYTES_AS_ONE;
            self.budget.charge(one.account, self.clock.nanos() - before);
            one.records_left -= 1;
            self.sessions.datagrams.unsent.0.push_back(one);
        }
        self.record = text;
        taken.max(usize::from(self.sessions.datagrams.unsent.len() > 0))
    }
}
