//! Frames on their way out: gathered in one buffer, each behind its virtio-net header, and handed to the kernel in
//! batches. TAP and AF_PACKET send through it, so what a full kernel queue means is decided once, here.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use toe_base::limits::FRAME_MAX;
use toe_wire::link::TxOffload;

use crate::alignment;
use crate::port::{PortCounter, PortCounters};
use crate::virtio_net;

/// Frames of one batch.
pub(crate) const BATCH_MAX: usize = 64;
/// Bytes of one batch: room for many large frames, and no more than a cache holds.
const BATCH_BYTES: usize = 1 << 20;
/// How soon to try again when the kernel had no room.
const RETRY_US: u64 = 100;
/// After this long without any room, waiting frames are dropped: TCP's own timers take over.
const PATIENCE: Duration = Duration::from_millis(200);

const _: () = assert!(BATCH_BYTES >= 4 * FRAME_MAX);

/// Hands packets (virtio-net header and frame) to the kernel: as many of the first ones as it takes, at least one, or
/// an error that concerns the first.
pub(crate) trait Send {
    fn send(&mut self, packets: &Packets<'_>) -> io::Result<usize>;
}

/// The packets of a batch that are still to be sent; never none.
#[derive(Debug)]
pub(crate) struct Packets<'a> {
    buffer: &'a [u8],
    waiting: &'a [Range<usize>],
}

impl<'a> Packets<'a> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [u8]> {
        let buffer = self.buffer;
        self.waiting.iter().map(move |range| &buffer[range.clone()])
    }
}

/// The gathered frames of one port.
#[derive(Debug)]
pub(crate) struct TxQueue {
    buffer: Box<[u8]>,
    /// Where the first packet of a batch goes.
    first: usize,
    packets: Vec<Range<usize>>,
    /// Packets before this one have been sent.
    sent: usize,
    /// The place that was given out last and is not committed yet.
    open: Option<Range<usize>>,
    /// Since when the kernel has had no room.
    stalled: Option<Instant>,
}

impl TxQueue {
    pub(crate) fn new() -> TxQueue {
        let buffer = vec![0; BATCH_BYTES].into_boxed_slice();
        TxQueue {
            first: alignment::first(&buffer),
            buffer,
            packets: Vec::with_capacity(BATCH_MAX),
            sent: 0,
            open: None,
            stalled: None,
        }
    }

    fn next_range(&self, frame_len: usize) -> Option<Range<usize>> {
        let start = self.packets.last().map_or(self.first, |last| alignment::next(self.first, last.end));
        let end = start + virtio_net::HEADER_LEN + frame_len;
        let fits = frame_len <= FRAME_MAX && self.packets.len() < BATCH_MAX && end <= self.buffer.len();
        fits.then_some(start..end)
    }

    pub(crate) fn has_room(&self, frame_len: usize) -> bool {
        self.next_range(frame_len).is_some()
    }

    /// Room for a frame, its virtio-net header kept free in front of it.
    pub(crate) fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        let range = self.next_range(len)?;
        self.open = Some(range.clone());
        Some(&mut self.buffer[range.start + virtio_net::HEADER_LEN..range.end])
    }

    /// Queues the frame that [`TxQueue::frame`] gave out last.
    pub(crate) fn commit(&mut self, offload: TxOffload, counters: &mut PortCounters) {
        let Some(range) = self.open.take() else { return };
        let frame_len = range.len() - virtio_net::HEADER_LEN;
        let Some(header) = virtio_net::encode(offload, frame_len) else {
            counters.add(PortCounter::TxDroppedError, 1);
            return;
        };
        self.buffer[range.start..range.start + virtio_net::HEADER_LEN].copy_from_slice(&header);
        self.packets.push(range);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(crate) fn next_deadline_us(&self) -> Option<u64> {
        (!self.is_empty()).then_some(RETRY_US)
    }

    /// Sends all that the kernel takes. A frame that the kernel refuses is dropped and counted; when it has no room,
    /// the rest waits for the next flush.
    pub(crate) fn flush(&mut self, out: &mut dyn Send, counters: &mut PortCounters) -> io::Result<()> {
        self.open = None;
        while self.sent < self.packets.len() {
            let packets = Packets { buffer: &self.buffer, waiting: &self.packets[self.sent..] };
            match out.send(&packets) {
                Ok(count) => {
                    let end = self.packets.len().min(self.sent + count.max(1));
                    for packet in &self.packets[self.sent..end] {
                        counters.sent(packet.len() - virtio_net::HEADER_LEN);
                    }
                    self.sent = end;
                    self.stalled = None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_busy(&error) => {
                    counters.add(PortCounter::TxBusy, 1);
                    if self.stalled.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                        return Ok(());
                    }
                    self.drop_all(PortCounter::TxDroppedBusy, counters);
                }
                Err(error) if is_link_gone(&error) => {
                    self.drop_all(PortCounter::TxDroppedError, counters);
                    return Err(error);
                }
                Err(_) => {
                    counters.add(PortCounter::TxDroppedError, 1);
                    self.sent += 1;
                }
            }
        }
        self.packets.clear();
        self.sent = 0;
        Ok(())
    }

    fn drop_all(&mut self, reason: PortCounter, counters: &mut PortCounters) {
        counters.add(reason, (self.packets.len() - self.sent) as u64);
        self.packets.clear();
        self.sent = 0;
        self.stalled = None;
    }
}

/// The kernel lacks memory or room in a queue just now.
fn is_busy(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM))
}

/// The interface is down or removed; TAP says EIO or EBADFD.
pub(crate) fn is_link_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::EIO | libc::EBADFD)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers in turn: `Ok(n)` takes n packets, `Err` an errno; takes everything when the script is used up.
    struct Script {
        answers: Vec<Result<usize, i32>>,
        taken: Vec<Vec<u8>>,
    }

    impl Script {
        fn new(answers: &[Result<usize, i32>]) -> Script {
            Script { answers: answers.iter().rev().copied().collect(), taken: Vec::new() }
        }
    }

    impl Send for Script {
        fn send(&mut self, packets: &Packets<'_>) -> io::Result<usize> {
            let count = match self.answers.pop().unwrap_or(Ok(usize::MAX)) {
                Ok(count) => count.min(packets.iter().count()),
                Err(errno) => return Err(io::Error::from_raw_os_error(errno)),
            };
            let frames = packets.iter().take(count).map(|packet| packet[virtio_net::HEADER_LEN..].to_vec());
            self.taken.extend(frames);
            Ok(count)
        }
    }

    fn queue_of(frames: u8, counters: &mut PortCounters) -> TxQueue {
        let mut queue = TxQueue::new();
        for n in 0..frames {
            queue.frame(60).expect("room").fill(n);
            queue.commit(TxOffload::default(), counters);
        }
        queue
    }

    #[test]
    fn a_short_send_loses_nothing() {
        let mut counters = PortCounters::default();
        let mut queue = queue_of(5, &mut counters);
        let mut out = Script::new(&[Ok(2), Err(libc::EAGAIN)]);
        queue.flush(&mut out, &mut counters).expect("not an error");
        assert_eq!(out.taken.len(), 2);
        assert_eq!(queue.next_deadline_us(), Some(RETRY_US));
        queue.flush(&mut out, &mut counters).expect("not an error");
        let order: Vec<u8> = out.taken.iter().map(|frame| frame[0]).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
        assert_eq!(queue.next_deadline_us(), None);
        assert_eq!(counters.get(PortCounter::TxFrames), 5);
        assert_eq!(counters.get(PortCounter::TxBytes), 300);
        assert_eq!(counters.get(PortCounter::TxBusy), 1);
    }

    #[test]
    fn a_refused_frame_does_not_hold_up_the_others() {
        let mut counters = PortCounters::default();
        let mut queue = queue_of(3, &mut counters);
        let mut out = Script::new(&[Ok(1), Err(libc::EMSGSIZE)]);
        queue.flush(&mut out, &mut counters).expect("not an error");
        let order: Vec<u8> = out.taken.iter().map(|frame| frame[0]).collect();
        assert_eq!(order, [0, 2]);
        assert_eq!(counters.get(PortCounter::TxDroppedError), 1);
    }

    #[test]
    fn a_link_that_is_down_is_told_and_counted() {
        let mut counters = PortCounters::default();
        let mut queue = queue_of(3, &mut counters);
        assert!(queue.flush(&mut Script::new(&[Err(libc::ENETDOWN)]), &mut counters).is_err());
        assert_eq!(counters.get(PortCounter::TxDroppedError), 3);
        assert!(queue.is_empty());
    }

    #[test]
    fn the_batch_is_bounded_and_opens_again() {
        let mut counters = PortCounters::default();
        let mut queue = queue_of(BATCH_MAX as u8, &mut counters);
        assert!(queue.frame(60).is_none());
        queue.flush(&mut Script::new(&[]), &mut counters).expect("sent");
        assert!(queue.frame(FRAME_MAX).is_some());
        assert!(queue.frame(FRAME_MAX + 1).is_none());
    }

    #[test]
    fn a_frame_that_is_not_committed_is_not_sent() {
        let mut counters = PortCounters::default();
        let mut queue = queue_of(1, &mut counters);
        queue.frame(100).expect("room").fill(9);
        queue.frame(60).expect("room").fill(1);
        queue.commit(TxOffload::default(), &mut counters);
        queue.frame(60).expect("room").fill(2);
        let mut out = Script::new(&[]);
        queue.flush(&mut out, &mut counters).expect("sent");
        let order: Vec<u8> = out.taken.iter().map(|frame| frame[0]).collect();
        assert_eq!(order, [0, 1]);
    }
}
