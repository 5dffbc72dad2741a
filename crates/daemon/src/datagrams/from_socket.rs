//! Where what a program's sockets send waits for the engine. A session has those of its program.

use std::os::fd::OwnedFd;
use toe_abi::lane::DatagramHeader;
use toe_base::DatagramId;
use toe_ring::{LaneReceiver, Region};
use zerocopy::FromBytes;

/// So many bytes of a datagram count as one more.
pub(super) const BYTES_AS_ONE: usize = 4096;

/// Where a session's socket puts what it sends.
#[derive(Debug)]
pub(crate) struct FromSocket {
    pub(super) id: DatagramId,
    pub(super) end: LaneReceiver,
    /// Memory of this lane and of the one to the socket, until the host has mapped it: it could punch holes there, in which who looks waits.
    pub(super) unsettled: Vec<(Region, OwnedFd)>,
}

impl Drop for FromSocket {
    fn drop(&mut self) {
        self.end.close();
    }
}

impl FromSocket {
    /// Whether there is something to be taken, or the host has left.
    pub fn has_events(&self) -> bool {
        self.is_there() && self.end.has_events()
    }

    fn is_there(&self) -> bool {
        !self.end.lane().region().is_empty()
    }

    /// Whether nothing is to be taken any more: the host has left, or the lane cannot be believed.
    pub(super) fn is_left(&mut self) -> bool {
        self.is_there() && self.end.is_empty() && self.end.is_closed()
    }

    /// The next record, its bytes behind the head in `text`. A record without a head is as good as none.
    pub(super) fn take(&mut self, text: &mut Vec<u8>) -> Option<DatagramHeader> {
        let record = self.end.first()?;
        let mut header = [0; DatagramHeader::LEN as usize];
        let memory = self.end.lane();
        // What was there before is written over, so it need not be cleared.
        text.resize(record.len.saturating_sub(DatagramHeader::LEN) as usize, 0);
        if record.len >= DatagramHeader::LEN {
            memory.read(record.position, 0, &mut header);
            memory.read(record.position, DatagramHeader::LEN, text);
        }
        self.end.take(record);
        Some(DatagramHeader::read_from_bytes(&header).unwrap_or_default())
    }
}

/// Memory of these that their host has mapped by now, or will not map any more; once.
pub(crate) fn unsettled(sockets: &mut [FromSocket]) -> Vec<(Region, OwnedFd)> {
    sockets.iter_mut().flat_map(|socket| std::mem::take(&mut socket.unsettled)).collect()
}
