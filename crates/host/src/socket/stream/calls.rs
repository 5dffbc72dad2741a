//! A send and a receive as a call makes them: of records, or of the bytes as they are.

use crate::queue_io::QueueIo;
use crate::slots::SlotId;
use crate::socket::Shutdown;
use crate::socket::flags::SendFlags;
use crate::socket::received::How;
use crate::socket::slices::{Source, Target};
use crate::socket::stream::send::may_tell_end;
use crate::socket::stream::{Attempt, Stream};
use toe_abi::entry::Command;
use toe_abi::errno::Errno;

impl Stream {
    /// Sends as much of `from` as there is room for; after [`Stream::send_error`] has been asked.
    pub fn send(
        &mut self,
        io: &mut QueueIo,
        from: &mut impl Source,
        flags: SendFlags,
    ) -> Result<Attempt, Errno> {
        if self.ulp.makes_records() {
            self.send_records(io, from, flags)
        } else {
            self.send_bytes(io, from, flags)
        }
    }

    /// Reads into `into` what is there: up to its room, but nothing before `target` bytes are there, unless no more
    /// will come. A peek leaves everything as it is.
    pub fn recv(
        &mut self,
        io: &mut QueueIo,
        slot_id: SlotId,
        into: &mut impl Target,
        target: usize,
        peek: bool,
    ) -> Result<Attempt, Errno> {
        if self.link.is_moved() {
            // What is unread is with whoever has it now, so its end is not here.
            return Ok(Attempt::Wait);
        }
        if self.ulp.opens_records() {
            return self.recv_records(io, slot_id, into, peek);
        }
        let over = self.half_close.is_read_over() || self.link.is_closed() || self.so_error.waits();
        let (most, skip) = self.heed_mark(io, slot_id, peek)?;
        let there = self.recv.unread().min(most).saturating_sub(skip);
        if there > 0 && (there >= target || over || most < usize::MAX) {
            let how = How { skip, most: most.min(into.most_at_once()), peek };
            let copied = self.recv.received.copy_out(io, self.direct.as_deref(), into, how)?;
            if !peek {
                self.lenders(io, slot_id, |recv, from| {
                    recv.settle_read(from, &copied);
                    recv.urgent.on_read(recv.received.read());
                    recv.leave_out_taken(from);
                });
                self.publish(0);
            }
            let copied = copied.all();
            return Ok(Attempt::Done(copied));
        }
        // A peek leaves out the urgent byte and looks behind it, where nothing may come any more.
        let is_all_left_out = there == 0 && over;
        if !self.recv.received.is_empty() && !is_all_left_out || self.link.is_connecting() {
            return Ok(Attempt::Wait);
        }
        self.recv_nothing()
    }
}

impl QueueIo {
    /// The stream's program sends no more.
    pub fn shut_write(&mut self, stream: &mut Stream) {
        stream.end_records(self);
        stream.half_close.shut(Shutdown::Write);
        if may_tell_end(stream) {
            self.tell_end(stream, false);
        }
        self.command(Command::ShutdownSend { flow: stream.flow });
    }
}
