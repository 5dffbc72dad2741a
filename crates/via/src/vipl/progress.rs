//! The work on a virtual interface: what has come is taken, and what there is credit for is sent.

use super::descriptor::are_allowed;
use super::memory::{Access, Registry};
use super::types::{
    CONTROL_OP_RDMAREAD, CONTROL_OP_RDMAWRITE, STATUS_FORMAT_ERROR, STATUS_LENGTH_ERROR,
    STATUS_PROTECTION_ERROR, VipErrorCode,
};
use super::vi::{Sending, Sent, Source, State, Vi};
use crate::core::operation::{Kind, Operation};
use crate::link::Link;
use crate::lock::own;
use toe_abi::via::ViaState;
use toe_ring::via::Breach;

/// Messages taken in one call: a peer that always has one more does not keep it.
const TAKE_MAX: usize = 256;

impl Vi {
    /// Takes what has come, and sends what there is credit for.
    pub fn progress(&mut self, registry: &Registry) {
        match self.state {
            State::Connected => {}
            // What is posted before a connection waits for it, what is posted after its end is done at once.
            State::Idle => return,
            State::Error => {
                // To another host the word that it has ended, and why, may be on its way still.
                self.link.as_ref().inspect(|link| link.pull());
                return self.flush(registry);
            }
        }
        let Some(mut link) = self.link.take() else { return };
        link.pull();
        // What was sent before the end comes before the end.
        let is_over = link.memory.state() == ViaState::Closed;
        let went = self.work(&mut link, registry);
        if self.state == State::Error {
            // Lost meanwhile, when the link was not at its place.
            link.move_on(ViaState::Closed);
        }
        self.link = Some(link);
        match went {
            Err(Breach) => self.lose(VipErrorCode::ConnLost, registry),
            Ok(is_all) if is_over && is_all => self.lose(VipErrorCode::ConnLost, registry),
            Ok(_) => {}
        }
    }

    /// Whether all was taken that had come.
    fn work(&mut self, link: &mut Link, registry: &Registry) -> Result<bool, Breach> {
        let mut is_all = false;
        for _ in 0..TAKE_MAX {
            is_all = self.state != State::Connected || !self.receive(link, registry)?;
            if is_all {
                break;
            }
        }
        if self.state == State::Connected {
            self.send(link, registry)?;
        }
        Ok(is_all)
    }

    fn send(&mut self, link: &mut Link, registry: &Registry) -> Result<(), Breach> {
        self.confirm(link, registry)?;
        if !link.is_settled() {
            // Sends wait for that, as they wait for credit.
            return Ok(());
        }
        loop {
            if self.sending.is_none() {
                self.sending = self.next_to_send(registry);
            }
            let Some(sending) = self.sending.as_mut() else { return Ok(()) };
            while let Some(piece) = sending.message.next() {
                let Some(room) = own(&mut link.sending).room(piece.fragment.len)? else { return Ok(()) };
                let (parts, access) = sending.parts(self.sends.posted.front());
                if !are_allowed(parts, registry, self.service.ptag, access) {
                    // Given back in the middle: the message can neither go on nor be taken back.
                    return Err(Breach);
                }
                sending.gather(parts, &link.memory, room.offset, piece)?;
                own(&mut link.sending).publish(piece.fragment, room);
                sending.message.sent(piece);
                link.wake();
            }
            if self.sending.take().is_some_and(|sending| sending.of.is_posted()) {
                self.is_sent(own(&mut link.sending).sent(), registry);
            }
        }
    }

    fn next_to_send(&mut self, registry: &Registry) -> Option<Sending> {
        if let Some(part) = self.pending.take() {
            return Some(Sending::new(Operation::answer(part.len), Source::Pending(part)));
        }
        while !self.is_asking && self.state == State::Connected {
            let posted = self.sends.posted.front()?;
            let wrong = match posted.operation {
                _ if posted.is_malformed() => STATUS_FORMAT_ERROR,
                // Who reads waits for an answer, which nobody owes him here.
                CONTROL_OP_RDMAREAD if !self.is_reliable() => STATUS_FORMAT_ERROR,
                _ if posted.parts.len > self.service.transfer_max => STATUS_LENGTH_ERROR,
                _ if !are_allowed(posted.parts.list(), registry, self.service.ptag, Access::Local) => {
                    STATUS_PROTECTION_ERROR
                }
                operation => {
                    let kind = match operation {
                        CONTROL_OP_RDMAWRITE => Kind::Write,
                        CONTROL_OP_RDMAREAD => Kind::Read,
                        _ => Kind::Send,
                    };
                    let (address, handle) = (posted.remote.address, posted.remote.handle);
                    let (immediate, len) = (posted.immediate, posted.parts.len);
                    let operation = Operation { kind, immediate, address, handle, len };
                    let of = if kind == Kind::Read { Source::Asking } else { Source::Posted };
                    return Some(Sending::new(operation, of));
                }
            };
            if !self.unconfirmed.is_empty() {
                // Descriptors are done in their order, and of those before it is not known yet how.
                return None;
            }
            self.finish_posted(wrong, registry);
            if self.is_reliable() {
                self.lose(VipErrorCode::PostDesc, registry);
            }
        }
        None
    }

    /// The first that is posted has gone, with the fragments before number `index`.
    fn is_sent(&mut self, index: u32, registry: &Registry) {
        let Some(posted) = self.sends.posted.front() else { return };
        if posted.operation == CONTROL_OP_RDMAREAD {
            self.is_asking = true;
        } else if self.service.level == 2 {
            self.unconfirmed.push_back((index, Sent::from(posted)));
            self.sends.posted.pop_front();
        } else {
            self.finish_posted(0, registry);
        }
    }
}
