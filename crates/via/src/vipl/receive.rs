//! What comes in to a virtual interface, and where it belongs.

use super::descriptor::{Finish, Part, are_allowed, from_connection, within};
use super::memory::{Access, Registry};
use super::types::{
    STATUS_FORMAT_ERROR, STATUS_IMMEDIATE, STATUS_LENGTH_ERROR, STATUS_OP_RECEIVE,
    STATUS_OP_REMOTE_RDMA_WRITE, STATUS_PROTECTION_ERROR, STATUS_RDMA_PROT_ERROR, STATUS_REMOTE_DESC_ERROR,
    VipErrorCode,
};
use super::vi::{Arriving, State, Target, Vi};
use crate::core::operation::{HEADER_LEN, Kind, Operation};
use crate::link::Link;
use crate::lock::own;
use toe_ring::via::{Arrived, Breach};

impl Vi {
    /// Takes a fragment; `false`: none has come.
    pub(super) fn receive(&mut self, link: &mut Link, registry: &Registry) -> Result<bool, Breach> {
        let receiving = own(&mut link.receiving);
        let Some(arrived) = receiving.end.first()? else { return Ok(false) };
        let placed = receiving.incoming.locate(arrived.fragment)?;
        if placed.at == 0 {
            // What the peer had received before it sent this was received, whatever this does to the connection.
            self.confirm(link, registry)?;
            let operation = link.operation(arrived, placed.total)?;
            self.arriving = Some(self.begin(link, operation, registry)?);
            if self.state != State::Connected {
                return Ok(false);
            }
        }
        let arriving = self.arriving.ok_or(Breach)?;
        if let Some((parts, access)) = self.parts_of(&arriving.into) {
            if !are_allowed(parts, registry, self.service.ptag, access) {
                // Given back in the middle of the message.
                return Err(Breach);
            }
            scatter(link, arrived, placed.at, parts)?;
        }
        take(link, arrived)?;
        if placed.is_last {
            self.arriving = None;
            self.has_come(arriving, registry);
        }
        Ok(true)
    }

    fn parts_of<'a>(&'a self, target: &'a Target) -> Option<(&'a [Part], Access)> {
        match target {
            Target::Nowhere => None,
            Target::Receive => self.receives.posted.front().map(|first| (first.parts.list(), Access::Local)),
            Target::Asked => self.sends.posted.front().map(|first| (first.parts.list(), Access::Local)),
            Target::Memory(part) => Some((std::slice::from_ref(part), Access::RemoteWrite)),
        }
    }

    /// A message begins: where it goes.
    fn begin(
        &mut self,
        link: &mut Link,
        operation: Operation,
        registry: &Registry,
    ) -> Result<Arriving, Breach> {
        let nowhere = Arriving { operation, has_receive: false, into: Target::Nowhere };
        match operation.kind {
            Kind::Send => Ok(self.begin_receive(link, operation, registry).unwrap_or(nowhere)),
            Kind::Write => Ok(self.begin_write(link, operation, registry).unwrap_or(nowhere)),
            Kind::Read => {
                if self.pending.is_some() {
                    // One at a time.
                    return Err(Breach);
                }
                let part = Part { address: operation.address, handle: operation.handle, len: operation.len };
                let is_allowed = self.service.may_read
                    && are_allowed(&[part], registry, self.service.ptag, Access::RemoteRead);
                if is_allowed {
                    self.pending = Some(part);
                } else {
                    self.refuse(link, STATUS_RDMA_PROT_ERROR, VipErrorCode::RdmarProt, registry);
                }
                Ok(nowhere)
            }
            Kind::Answer => {
                let asked = self.sends.posted.front().filter(|_| self.is_asking).ok_or(Breach)?;
                if asked.parts.len != operation.len {
                    return Err(Breach);
                }
                Ok(Arriving { into: Target::Asked, ..nowhere })
            }
            Kind::Refuse => {
                // It is about the first that was not received.
                self.is_refused(operation.len & super::types::STATUS_ERROR_MASK, registry);
                Ok(nowhere)
            }
            // No virtual interface greets.
            Kind::Greet => Err(Breach),
        }
    }

    /// Data for the receive that was posted first. `None`: they are dropped, or the connection has ended.
    fn begin_receive(
        &mut self,
        link: &mut Link,
        operation: Operation,
        registry: &Registry,
    ) -> Option<Arriving> {
        let Some(receive) = self.receives.posted.front() else {
            self.lacks_receive(link, registry);
            return None;
        };
        let wrong = match receive.parts.list() {
            _ if receive.is_malformed() => STATUS_FORMAT_ERROR,
            _ if operation.len > receive.parts.len => STATUS_LENGTH_ERROR,
            parts if !are_allowed(parts, registry, self.service.ptag, Access::Local) => {
                STATUS_PROTECTION_ERROR
            }
            _ => return Some(Arriving { operation, has_receive: true, into: Target::Receive }),
        };
        self.finish_receive(Finish { status: STATUS_OP_RECEIVE | wrong, ..Finish::default() }, registry);
        if self.is_reliable() {
            self.refuse(link, STATUS_REMOTE_DESC_ERROR, VipErrorCode::PostDesc, registry);
        }
        None
    }

    fn lacks_receive(&mut self, link: &mut Link, registry: &Registry) {
        if self.is_reliable() {
            self.refuse(link, STATUS_REMOTE_DESC_ERROR, VipErrorCode::RecvqEmpty, registry);
        }
    }

    /// Data for memory; with immediate data they use up a receive too.
    fn begin_write(
        &mut self,
        link: &mut Link,
        operation: Operation,
        registry: &Registry,
    ) -> Option<Arriving> {
        let part = Part { address: operation.address, handle: operation.handle, len: operation.len };
        if !self.service.may_write || !are_allowed(&[part], registry, self.service.ptag, Access::RemoteWrite)
        {
            if self.is_reliable() {
                self.refuse(link, STATUS_RDMA_PROT_ERROR, VipErrorCode::RdmawProt, registry);
            }
            return None;
        }
        let has_receive = operation.immediate.is_some();
        if has_receive && self.receives.posted.is_empty() {
            self.lacks_receive(link, registry);
            return None;
        }
        Some(Arriving { operation, has_receive, into: Target::Memory(part) })
    }

    /// A message is whole.
    fn has_come(&mut self, arriving: Arriving, registry: &Registry) {
        let Arriving { operation, has_receive, .. } = arriving;
        if operation.kind == Kind::Answer {
            return self.is_answered(registry);
        }
        if !has_receive {
            return;
        }
        let (status, len) = match operation.kind {
            Kind::Write => (STATUS_OP_REMOTE_RDMA_WRITE, 0),
            _ => (STATUS_OP_RECEIVE, operation.len),
        };
        let immediate = if operation.immediate.is_some() { STATUS_IMMEDIATE } else { 0 };
        let how = Finish { status: status | immediate, len, immediate: operation.immediate };
        self.finish_receive(how, registry);
    }
}

/// Copies a fragment's bytes, which begin at `at` in their message, to where they belong.
fn scatter(link: &Link, arrived: Arrived, at: u64, parts: &[Part]) -> Result<(), Breach> {
    let header_len = HEADER_LEN as u64;
    let (mut offset, mut from, mut len) = (arrived.offset, at, u64::from(arrived.fragment.len));
    if from < header_len {
        (offset, from, len) = (offset + header_len, header_len, len - header_len);
    }
    for (part, at) in within(parts, from - header_len, len) {
        from_connection(part, &link.memory, offset + at).map_err(|_| Breach)?;
    }
    Ok(())
}

fn take(link: &mut Link, arrived: Arrived) -> Result<(), Breach> {
    let receiving = own(&mut link.receiving);
    let placed = receiving.incoming.locate(arrived.fragment)?;
    receiving.end.take(arrived);
    receiving.incoming.took(placed, arrived.fragment);
    link.wake();
    Ok(())
}
