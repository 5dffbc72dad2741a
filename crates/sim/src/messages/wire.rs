//! The stream between two hosts: what one end sends comes to the other in pieces, when the world says so, until it is cut.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toe_abi::errno::Errno;
use toe_via::far::wire::Wire;

#[derive(Debug, Default)]
struct Direction {
    bytes: VecDeque<u8>,
    /// Those of them that have come.
    came: usize,
    is_finished: bool,
}

#[derive(Debug)]
struct Stream {
    directions: [Direction; 2],
    /// All comes at once.
    is_instant: bool,
    is_cut: bool,
    /// Bytes on their way in a direction, at most.
    room: usize,
}

/// An end of it, 0 or 1.
#[derive(Clone, Debug)]
pub struct WireEnd {
    stream: Arc<Mutex<Stream>>,
    end: usize,
}

pub fn pair(room: usize) -> [WireEnd; 2] {
    let directions = [Direction::default(), Direction::default()];
    let stream = Arc::new(Mutex::new(Stream { directions, is_instant: true, is_cut: false, room }));
    [0, 1].map(|end| WireEnd { stream: Arc::clone(&stream), end })
}

impl WireEnd {
    fn lock(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on bytes come when the world says so.
    pub fn take_time(&self) {
        self.lock().is_instant = false;
    }

    /// Up to so many bytes come to this end.
    pub fn deliver(&self, bytes: usize) {
        let mut stream = self.lock();
        let direction = &mut stream.directions[1 - self.end];
        direction.came = (direction.came + bytes).min(direction.bytes.len());
    }

    /// The host at one end has gone: nothing comes any more.
    pub fn cut(&self) {
        self.lock().is_cut = true;
    }

    /// Changes a bit of what is on its way to this end; `false`: nothing is.
    pub fn flip(&self, place: usize, bit: u32) -> bool {
        let mut stream = self.lock();
        let direction = &mut stream.directions[1 - self.end];
        let len = direction.bytes.len();
        if len == 0 {
            return false;
        }
        direction.bytes[place % len] ^= 1 << (bit % 8);
        true
    }
}

impl Wire for WireEnd {
    fn is_connected(&self) -> Result<bool, Errno> {
        Ok(true)
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut stream = self.lock();
        if stream.is_cut {
            return Err(Errno::ECONNRESET);
        }
        let room = stream.room.saturating_sub(stream.directions[self.end].bytes.len());
        let sent = room.min(bytes.len());
        if sent == 0 {
            return Err(Errno::EAGAIN);
        }
        let is_instant = stream.is_instant;
        let direction = &mut stream.directions[self.end];
        direction.bytes.extend(&bytes[..sent]);
        if is_instant {
            direction.came = direction.bytes.len();
        }
        Ok(sent)
    }

    fn recv(&self, into: &mut [u8]) -> Result<usize, Errno> {
        let mut stream = self.lock();
        let is_cut = stream.is_cut;
        let direction = &mut stream.directions[1 - self.end];
        let came = direction.came.min(into.len());
        if came > 0 {
            for (to, byte) in into.iter_mut().zip(direction.bytes.drain(..came)) {
                *to = byte;
            }
            direction.came -= came;
            return Ok(came);
        }
        match direction.bytes.is_empty() && direction.is_finished {
            true => Ok(0),
            false if is_cut => Err(Errno::ECONNRESET),
            false => Err(Errno::EAGAIN),
        }
    }

    fn finish(&self) {
        self.lock().directions[self.end].is_finished = true;
    }

    fn fd(&self) -> RawFd {
        -1
    }
}
