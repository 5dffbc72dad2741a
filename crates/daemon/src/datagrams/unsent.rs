//! What a program had sent that is gone, or whose socket is, before the engine took it out of the lane: it goes out yet, as what lies in a
//! queue of Linux's does. Filled when a session or a socket ends; emptied by the run loop.

use super::from_socket::{BYTES_AS_ONE, FromSocket};
use crate::budget::Budget;
use crate::clock::Clock;
use crate::session::Sessions;
use std::collections::VecDeque;
use toe_base::{Cred, Instant};
use toe_engine::{ControlEvent, Engine};

/// Sockets of all users together, and of one user: what is more is lost.
const SOCKETS_MAX: usize = 256;
const USERS_SOCKETS_MAX: usize = 32;
/// Records of one socket: as many as the smallest ring holds of 10 bytes each. Who has the memory still may go on writing into it.
const RECORDS_MAX: usize = 16_384;
/// What no link has taken by then is lost: a link that takes nothing keeps nobody awake for longer.
const HELD_US: u64 = 1_000_000;
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
pub(crate) struct Unsent(VecDeque<One>);

impl Unsent {
    fn has_room_for(&self, account: Cred) -> bool {
        let of_user = self.0.iter().filter(|one| one.account == account).count();
        self.0.len() < SOCKETS_MAX && of_user < USERS_SOCKETS_MAX
    }

    /// Sockets that are gone and of which something is to be sent yet.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The engine is about to forget whose the lane is.
    pub(super) fn keep(
        &mut self,
        now: Instant,
        (engine, sessions): (&mut Engine, &mut Sessions),
        account: Cred,
        mut socket: FromSocket,
    ) {
        socket.end.close();
        if !socket.end.is_empty() && self.has_room_for(account) {
            engine.handle_control(now, ControlEvent::SenderLingers(socket.id), sessions);
            let until = now.after_us(HELD_US);
            self.0.push_back(One { account, socket, records_left: RECORDS_MAX, until });
        }
    }

    fn forget_old(&mut self, now: Instant, engine: &mut Engine, sessions: &mut Sessions) {
        let old: Vec<_> = self.0.iter().filter(|one| now >= one.until).map(|one| one.socket.id).collect();
        self.0.retain(|one| now < one.until);
        for id in old {
            engine.handle_control(now, ControlEvent::SenderForgotten(id), sessions);
        }
    }

    /// Takes some of it, of each socket in turn, at its user's expense. Returns how much it was; while something is left that is not nothing.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        (engine, sessions): (&mut Engine, &mut Sessions),
        budget: &mut Budget,
        clock: &Clock,
    ) -> usize {
        if self.0.is_empty() {
            return 0;
        }
        self.forget_old(now, engine, sessions);
        let (mut taken, mut text) = (0, Vec::new());
        while taken < DATAGRAMS_PER_ROUND && engine.takes_datagrams() {
            let Some(mut one) = self.0.pop_front() else { break };
            let id = one.socket.id;
            let header = if one.records_left > 0 { one.socket.take(&mut text) } else { None };
            let Some(header) = header else {
                engine.handle_control(now, ControlEvent::SenderForgotten(id), sessions);
                continue;
            };
            let before = clock.nanos();
            let (count, incoming) = engine.handle_datagrams(now, id, &header, &text);
            sessions.hand_over(now, engine, incoming);
            taken += count;
            taken += text.len() / BYTES_AS_ONE;
            budget.charge(one.account, clock.nanos() - before);
            one.records_left -= 1;
            self.0.push_back(one);
        }
        taken.max(usize::from(!self.0.is_empty()))
    }
}
