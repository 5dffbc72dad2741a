//! What comes in to an endpoint, and where it belongs.

use super::inside::{Arriving, Inside, Into, READS_MAX};
use super::post::{Completion, Failure, Notify, What};
use super::regions::{Access, Regions, Remote};
use crate::core::operation::{HEADER_LEN, Kind, Operation};
use crate::core::{Outgoing, Piece};
use crate::link::{Link, Receiving};
use crate::lock::lock;
use crate::parts::from_connection;
use toe_ring::via::{Arrived, Breach};

pub(super) fn give_back(receiving: &mut Receiving, arrived: Arrived) -> Result<(), Breach> {
    let placed = receiving.incoming.locate(arrived.fragment)?;
    receiving.end.take(arrived);
    receiving.incoming.took(placed, arrived.fragment);
    Ok(())
}

impl Inside {
    /// Whether what has come waits for a receive to be posted.
    pub(super) fn is_blocked(&self) -> bool {
        let Some(link) = self.link.as_ref().filter(|_| self.receives.is_empty() && self.arriving.is_none())
        else {
            return false;
        };
        let receiving = lock(&link.receiving);
        let first = receiving.end.first().ok().flatten();
        let total = first.and_then(|arrived| arrived.fragment.begins.map(|total| (arrived, total)));
        total.is_some_and(|(arrived, total)| {
            link.operation(arrived, total).is_ok_and(|operation| operation.kind == Kind::Send)
        })
    }

    /// Takes a fragment; `false`: none has come that can be taken now.
    pub(super) fn take(&mut self, link: &Link, regions: &Regions) -> Result<bool, Breach> {
        let mut receiving = lock(&link.receiving);
        let Some(arrived) = receiving.end.first()? else { return Ok(false) };
        let placed = receiving.incoming.locate(arrived.fragment)?;
        if placed.at == 0 {
            let operation = link.operation(arrived, placed.total)?;
            let Some(into) = self.begin(link, operation, regions)? else { return Ok(false) };
            self.arriving = Some(Arriving { operation, into });
        }
        let arriving = self.arriving.ok_or(Breach)?;
        self.scatter(link, arrived, placed.at, &arriving, regions)?;
        give_back(&mut receiving, arrived)?;
        drop(receiving);
        link.wake();
        if placed.is_last {
            self.arriving = None;
            self.has_come(arriving);
        }
        Ok(true)
    }

    /// A message begins: where it goes. `None`: nowhere yet.
    fn begin(
        &mut self,
        link: &Link,
        operation: Operation,
        regions: &Regions,
    ) -> Result<Option<Into>, Breach> {
        let remote = Remote { key: operation.handle, offset: operation.address, len: operation.len };
        match operation.kind {
            Kind::Send => Ok(self.receives.pop_front().map(Into::Receive)),
            Kind::Write if regions.find(remote, Access::Write).is_some() => Ok(Some(Into::Region(remote))),
            Kind::Read if regions.find(remote, Access::Read).is_some() => {
                if self.pending.len() >= READS_MAX {
                    return Err(Breach);
                }
                self.pending.push_back(remote);
                Ok(Some(Into::Nowhere))
            }
            Kind::Write | Kind::Read => {
                self.refuse(link);
                Err(Breach)
            }
            Kind::Answer => {
                let asked = self.asked.front().ok_or(Breach)?;
                if asked.buffers.len != operation.len {
                    return Err(Breach);
                }
                Ok(Some(Into::Asked))
            }
            Kind::Refuse => {
                if let Some(asked) = self.asked.pop_front() {
                    self.done.extend(asked.ended_by(Failure::Refused));
                }
                Err(Breach)
            }
            // Only once, before everything else.
            Kind::Greet => Err(Breach),
        }
    }

    /// The peer asks for what cannot be. That is the connection's end, and the last word.
    fn refuse(&mut self, link: &Link) {
        if self.sending.is_some() {
            // In the middle of a message there is no saying it.
            return;
        }
        let operation = Operation::refuse(1);
        let mut sender = lock(&link.sending);
        if let Some(Piece { fragment, .. }) = Outgoing::new(operation.message_len()).next()
            && let Ok(Some(room)) = sender.room(fragment.len)
            && link.memory.write(room.offset, &operation.encode()).is_ok()
        {
            sender.publish(fragment, room);
        }
    }

    /// Copies a fragment's bytes, which begin at `at` in their message, to where they belong.
    fn scatter(
        &self,
        link: &Link,
        arrived: Arrived,
        at: u64,
        arriving: &Arriving,
        regions: &Regions,
    ) -> Result<(), Breach> {
        let header_len = HEADER_LEN as u64;
        let (mut offset, mut from, mut len) = (arrived.offset, at, u64::from(arrived.fragment.len));
        if from < header_len {
            (offset, from, len) = (offset + header_len, header_len, len - header_len);
        }
        let from = from - header_len;
        let buffers = match &arriving.into {
            Into::Receive(receive) => &receive.buffers,
            Into::Asked => &self.asked.front().ok_or(Breach)?.buffers,
            Into::Region(remote) => {
                // It may have been given back in the middle of the message.
                let part = regions.find(remote.within(from, len), Access::Write).ok_or(Breach)?;
                return from_connection(part, &link.memory, offset).map_err(|_| Breach);
            }
            Into::Nowhere => return Ok(()),
        };
        // What there is no room for is dropped.
        for (part, at) in buffers.within(from, len) {
            from_connection(part, &link.memory, offset + at).map_err(|_| Breach)?;
        }
        Ok(())
    }

    /// A message is whole.
    fn has_come(&mut self, Arriving { operation, into }: Arriving) {
        let (len, immediate) = (u64::from(operation.len), operation.immediate);
        match into {
            Into::Receive(receive) => {
                let room = u64::from(receive.buffers.len);
                let over = len.checked_sub(room).filter(|over| *over > 0);
                let failure = over.map(Failure::Truncated);
                if receive.notify == Notify::Always || failure.is_some() {
                    self.done.push(receive.completion(len.min(room), immediate, failure));
                }
            }
            Into::Asked => {
                let asked = self.asked.pop_front();
                self.done.extend(asked.and_then(|asked| asked.is_done()));
            }
            Into::Region(_) if immediate.is_some() => self.done.push(Completion {
                what: What::WasWritten,
                context: 0,
                len,
                address: 0,
                immediate,
                failure: None,
            }),
            Into::Region(_) | Into::Nowhere => {}
        }
    }
}
