//! A virtual interface: what was posted, what is on its way, and what is done. Nobody works for it in the background: each call on it
//! takes what has come and sends what there is credit for ([`super::progress`]), but for that which posts a receive.

use super::descriptor::{Finish, Part, Posted, finish, to_connection, within};
use super::memory::{Access, Registry};
use super::types::{
    CONTROL_OP_RDMAREAD, CONTROL_OP_RDMAWRITE, STATUS_FLUSHED_ERROR, STATUS_OP_RDMA_READ,
    STATUS_OP_RDMA_WRITE, STATUS_OP_RECEIVE, STATUS_TRANSPORT_ERROR, VipErrorCode, VipReturn,
};
use crate::core::operation::{HEADER_LEN, Operation};
use crate::core::{Outgoing, Piece};
use crate::link::Link;
use crate::lock::own;
use std::collections::VecDeque;
use toe_abi::via::ViaState;
use toe_ring::ViaMemory;
use toe_ring::via::Breach;

/// Descriptors that may be posted to a queue and not fetched when they are done.
pub const QUEUE_MAX: usize = 1024;
/// What a virtual interface is made with.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// 0 unreliable, 1 reliable delivery, 2 reliable reception.
    pub level: u64,
    pub ptag: u32,
    pub may_write: bool,
    pub may_read: bool,
    pub transfer_max: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Idle,
    Connected,
    /// The connection has ended, not by this side's wish.
    Error,
}

/// What has happened in a call, for those who are to be told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A descriptor of the queue for receives, or for sends, is done.
    Done {
        of_receives: bool,
    },
    Error {
        code: VipErrorCode,
        descriptor: u64,
    },
}

/// A queue: what is posted, and what is done and not fetched.
#[derive(Debug, Default)]
pub struct Queue {
    pub posted: VecDeque<Posted>,
    /// With whether it went wrong.
    done: VecDeque<(u64, bool)>,
}

/// A send that has gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    at: u64,
    handle: u32,
    operation: u16,
    len: u32,
}

impl From<&Posted> for Sent {
    fn from(posted: &Posted) -> Sent {
        Sent { at: posted.at, handle: posted.handle, operation: posted.operation, len: posted.parts.len }
    }
}

/// A message on its way out.
#[derive(Debug)]
pub(super) struct Sending {
    header: [u8; HEADER_LEN],
    pub(super) of: Source,
    pub(super) message: Outgoing,
}

/// What a message's data are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    /// Those of the first send that is posted.
    Posted,
    /// None: it asks, and is the first send that is posted.
    Asking,
    /// Memory that the peer has asked for.
    Pending(Part),
    /// None: it refuses what the peer has sent.
    Refusal,
}

impl Source {
    /// Something that is posted is done when it has gone.
    pub(super) const fn is_posted(self) -> bool {
        matches!(self, Source::Posted | Source::Asking)
    }
}

impl Sending {
    pub(super) fn new(operation: Operation, of: Source) -> Sending {
        Sending { header: operation.encode(), of, message: Outgoing::new(operation.message_len()) }
    }

    /// Its data, and who touches them; `posted` is the first of the queue.
    pub(super) fn parts<'a>(&'a self, posted: Option<&'a Posted>) -> (&'a [Part], Access) {
        match &self.of {
            Source::Posted => (posted.map_or(&[][..], |posted| posted.parts.list()), Access::Local),
            Source::Pending(part) => (std::slice::from_ref(part), Access::RemoteRead),
            Source::Asking | Source::Refusal => (&[][..], Access::Local),
        }
    }

    /// Copies a piece to its place.
    pub(super) fn gather(
        &self,
        parts: &[Part],
        memory: &ViaMemory,
        offset: u64,
        piece: Piece,
    ) -> Result<(), Breach> {
        let (mut offset, mut from, mut len) = (offset, piece.at, u64::from(piece.fragment.len));
        if from < HEADER_LEN as u64 {
            // A head is never cut.
            memory.write(offset, &self.header).map_err(|_| Breach)?;
            (offset, from, len) = (offset + HEADER_LEN as u64, HEADER_LEN as u64, len - HEADER_LEN as u64);
        }
        for (part, at) in within(parts, from - HEADER_LEN as u64, len) {
            to_connection(part, memory, offset + at).map_err(|_| Breach)?;
        }
        Ok(())
    }
}

/// The message that comes in. What was posted for it stays the first of its queue until it is whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arriving {
    pub(super) operation: Operation,
    /// It uses up the first receive.
    pub(super) has_receive: bool,
    pub(super) into: Target,
}

/// Where a message's data go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Nowhere,
    /// To the receive that was posted first.
    Receive,
    /// To the read that was posted first.
    Asked,
    /// To memory that the peer names.
    Memory(Part),
}

/// See the module. What is inside its lock.
#[derive(Debug)]
pub struct Vi {
    pub service: Service,
    pub state: State,
    /// In a box because it is taken out for each call.
    pub link: Option<Box<Link>>,
    pub sends: Queue,
    pub receives: Queue,
    pub(super) sending: Option<Sending>,
    /// The answer that the peer waits for. It has one question at a time.
    pub(super) pending: Option<Part>,
    /// What was sent and is to be known as received: the number of its last fragment.
    pub(super) unconfirmed: VecDeque<(u32, Sent)>,
    /// The first that is posted is a read that was sent.
    pub(super) is_asking: bool,
    pub(super) arriving: Option<Arriving>,
    pub(super) events: Vec<Event>,
    /// Whether somebody is to be told of what is done, of sends and of receives.
    have_cq: [bool; 2],
}

impl Vi {
    pub fn new(service: Service, have_cq: [bool; 2]) -> Vi {
        Vi {
            service,
            state: State::Idle,
            link: None,
            sends: Queue::default(),
            receives: Queue::default(),
            sending: None,
            pending: None,
            unconfirmed: VecDeque::new(),
            is_asking: false,
            arriving: None,
            events: Vec::new(),
            have_cq,
        }
    }

    pub fn connect(&mut self, link: Link) {
        self.link = Some(Box::new(link));
        self.state = State::Connected;
    }

    pub fn is_reliable(&self) -> bool {
        self.service.level != 0
    }

    pub fn post(&mut self, posted: Posted, of_receives: bool) -> Result<(), VipReturn> {
        let queue = if of_receives { &mut self.receives } else { &mut self.sends };
        let unconfirmed = if of_receives { 0 } else { self.unconfirmed.len() };
        if queue.posted.len() + queue.done.len() + unconfirmed >= QUEUE_MAX {
            return Err(VipReturn::ErrorResource);
        }
        queue.posted.push_back(posted);
        Ok(())
    }

    /// The descriptor that is done longest, and whether it went wrong.
    pub fn done(&mut self, of_receives: bool) -> Option<(u64, bool)> {
        if of_receives { &mut self.receives } else { &mut self.sends }.done.pop_front()
    }

    /// As it was made; what is done and not fetched outlives the connection.
    pub fn again(&mut self) -> Vi {
        let mut again = Vi::new(self.service, self.have_cq);
        again.sends.done = std::mem::take(&mut self.sends.done);
        again.receives.done = std::mem::take(&mut self.receives.done);
        again
    }

    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// What was received is done, with reliable reception.
    pub(super) fn confirm(&mut self, link: &mut Link, registry: &Registry) -> Result<(), Breach> {
        if self.unconfirmed.is_empty() {
            return Ok(());
        }
        let sender = own(&mut link.sending);
        while let Some((index, sent)) = self.unconfirmed.front().copied() {
            if !sender.is_taken(index)? {
                break;
            }
            self.unconfirmed.pop_front();
            self.finish_send(sent, 0, registry);
        }
        Ok(())
    }

    /// The read that was asked for is there.
    pub(super) fn is_answered(&mut self, registry: &Registry) {
        self.is_asking = false;
        self.finish_posted(0, registry);
    }

    /// The first send that is posted is done.
    pub(super) fn finish_posted(&mut self, status: u32, registry: &Registry) {
        if let Some(sent) = self.sends.posted.front().map(Sent::from) {
            self.sends.posted.pop_front();
            self.finish_send(sent, status, registry);
        }
    }

    /// One that went wrong has sent nothing.
    fn finish_send(&mut self, sent: Sent, status: u32, registry: &Registry) {
        let len = if status == 0 { sent.len } else { 0 };
        let operation = match sent.operation {
            CONTROL_OP_RDMAWRITE => STATUS_OP_RDMA_WRITE,
            CONTROL_OP_RDMAREAD => STATUS_OP_RDMA_READ,
            _ => 0,
        };
        let how = Finish { status: status | operation, len, immediate: None };
        finish((sent.at, sent.handle), self.service.ptag, how, registry);
        self.sends.done.push_back((sent.at, status != 0));
        if self.have_cq[0] {
            self.events.push(Event::Done { of_receives: false });
        }
    }

    /// The first receive that is posted is done.
    pub(super) fn finish_receive(&mut self, how: Finish, registry: &Registry) {
        let Some((at, handle)) = self.receives.posted.front().map(|first| (first.at, first.handle)) else {
            return;
        };
        self.receives.posted.pop_front();
        let is_wrong = how.status & super::types::STATUS_ERROR_MASK != 0;
        finish((at, handle), self.service.ptag, how, registry);
        self.receives.done.push_back((at, is_wrong));
        if self.have_cq[1] {
            self.events.push(Event::Done { of_receives: true });
        }
    }

    /// The peer asks for what cannot be, or says so of this side: with a reliable level that is the connection's end.
    pub(super) fn refuse(&mut self, link: &mut Link, status: u32, code: VipErrorCode, registry: &Registry) {
        let refusal = Sending::new(Operation::refuse(status), Source::Refusal);
        let is_between = self.sending.as_ref().is_none_or(|sending| !sending.message.is_begun());
        let sender = own(&mut link.sending);
        if let Some(piece) = refusal.message.next()
            && is_between
            && let Ok(Some(room)) = sender.room(piece.fragment.len)
            && refusal.gather(&[][..], &link.memory, room.offset, piece).is_ok()
        {
            sender.publish(piece.fragment, room);
        }
        link.move_on(ViaState::Closed);
        self.lose(code, registry);
    }

    /// The peer has said why it ends the connection.
    pub(super) fn is_refused(&mut self, status: u32, registry: &Registry) {
        // One that says nothing is not to make a success of it.
        let status = if status == 0 { STATUS_TRANSPORT_ERROR } else { status };
        if let Some((_, sent)) = self.unconfirmed.pop_front() {
            self.finish_send(sent, status, registry);
        } else if self.is_asking {
            self.is_asking = false;
            self.finish_posted(status, registry);
        }
        self.lose(VipErrorCode::ConnLost, registry);
    }

    /// The connection has ended.
    pub(super) fn lose(&mut self, code: VipErrorCode, registry: &Registry) {
        if self.state != State::Connected {
            return;
        }
        self.state = State::Error;
        if let Some(link) = &self.link {
            link.move_on(ViaState::Closed);
        }
        let descriptor = self.sends.posted.front().map_or(0, |posted| posted.at);
        self.events.push(Event::Error { code, descriptor });
        self.flush(registry);
    }

    /// Ends all that is posted: what was on its way has an error, the rest never began.
    pub fn flush(&mut self, registry: &Registry) {
        let is_begun =
            self.sending.take().is_some_and(|sending| sending.of.is_posted() && sending.message.is_begun());
        self.pending = None;
        for (_, sent) in std::mem::take(&mut self.unconfirmed) {
            self.finish_send(sent, STATUS_TRANSPORT_ERROR, registry);
        }
        let mut was_begun = is_begun || std::mem::take(&mut self.is_asking);
        while !self.sends.posted.is_empty() {
            let status =
                if std::mem::take(&mut was_begun) { STATUS_TRANSPORT_ERROR } else { STATUS_FLUSHED_ERROR };
            self.finish_posted(status, registry);
        }
        self.arriving = None;
        while !self.receives.posted.is_empty() {
            let status = STATUS_OP_RECEIVE | STATUS_FLUSHED_ERROR;
            self.finish_receive(Finish { status, ..Finish::default() }, registry);
        }
    }
}
