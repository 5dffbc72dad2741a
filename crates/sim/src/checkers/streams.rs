//! Each stream's bytes are a function of connection and place: nothing lost, doubled or invented; the end comes only
//! behind the last byte.

use crate::pattern::StreamId;
use toe_engine::StreamCounts;

/// One direction of a connection, as the programs at its ends know it.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// Bytes that the sending program gave to its engine.
    pub handed: u64,
    /// Where its records end that are to stay apart.
    pub record_ends: Vec<u64>,
    /// It will give no more: shutdown, close, or its process ended.
    pub ended: bool,
    /// Bytes that the receiving program has read.
    pub read: u64,
    /// The receiver has seen the end.
    pub eof: bool,
    /// Whoever sends means harm, or meant it once: what it sends is its own affair.
    pub tainted: bool,
}

/// Both directions of every connection.
#[derive(Clone, Debug, Default)]
pub struct Streams {
    streams: Vec<[Stream; 2]>,
    /// Bytes read in all: while it grows, something still moves.
    pub progress: u64,
}

impl Streams {
    pub fn open(&mut self) -> u32 {
        self.streams.push(Default::default());
        self.streams.len() as u32 - 1
    }

    pub fn get(&self, id: StreamId) -> &Stream {
        &self.streams[id.conn as usize][usize::from(id.side)]
    }

    fn get_mut(&mut self, id: StreamId) -> &mut Stream {
        &mut self.streams[id.conn as usize][usize::from(id.side)]
    }

    pub fn handed(&mut self, id: StreamId, len: u32) {
        self.get_mut(id).handed += u64::from(len);
    }

    /// What was handed last ends a record.
    pub fn record_ended(&mut self, id: StreamId) {
        let stream = self.get_mut(id);
        stream.record_ends.push(stream.handed);
    }

    /// Bytes from `at` to `end` are in one segment: no record may end between them.
    pub fn is_of_one_record(&self, id: StreamId, at: u64, end: u64) -> Result<(), String> {
        let ends = &self.get(id).record_ends;
        match ends.get(ends.partition_point(|record_end| *record_end <= at)) {
            Some(within) if *within < end => {
                Err(format!("{id:?}: a record that ends at {within} and the next one"))
            }
            _ => Ok(()),
        }
    }

    pub fn ended(&mut self, id: StreamId) {
        self.get_mut(id).ended = true;
    }

    pub fn taint(&mut self, conn: u32, side: u8) {
        self.get_mut(StreamId { conn, side }).tainted = true;
    }

    /// The receiving program has read `bytes`, the next ones.
    pub fn read(&mut self, id: StreamId, bytes: &[u8]) -> Result<(), String> {
        self.progress += bytes.len() as u64;
        let stream = self.get_mut(id);
        let at = stream.read;
        stream.read += bytes.len() as u64;
        if stream.tainted {
            return Ok(());
        }
        if stream.read > stream.handed {
            return Err(format!(
                "{id:?}: bytes up to {} were read, {} were sent",
                stream.read, stream.handed
            ));
        }
        if stream.eof {
            return Err(format!("{id:?}: bytes were read behind the end"));
        }
        match id.first_difference(at, bytes) {
            Some(within) => Err(format!("{id:?}: byte {} is wrong", at + within as u64)),
            None => Ok(()),
        }
    }

    /// A connection came again by Fast Open, and has `bytes` at the place `at` of its own.
    pub fn read_again(&self, id: StreamId, at: u64, bytes: &[u8], most: u64) -> Result<(), String> {
        let stream = self.get(id);
        let end = at + bytes.len() as u64;
        if stream.tainted {
            return Ok(());
        }
        if end > most.min(stream.handed) {
            return Err(format!("{id:?} came again, with {end} bytes of {most}"));
        }
        match id.first_difference(at, bytes) {
            Some(within) => Err(format!("{id:?} came again: byte {} is wrong", at + within as u64)),
            None => Ok(()),
        }
    }

    /// What an engine says of both directions to who goes on at the end that sends `own`. `reads_again`: whoever had it before has died,
    /// perhaps before it gave back what it had read.
    pub fn are_counts(&self, own: StreamId, counts: StreamCounts, reads_again: bool) -> Result<(), String> {
        let (sends, receives) = (self.get(own), self.get(StreamId { side: 1 - own.side, ..own }));
        let is_known = !sends.tainted && !receives.tainted;
        let read = receives.read.cast_signed();
        let is_read = counts.read == read || reads_again && counts.read < read;
        if is_known && !(is_read && counts.written == sends.handed) {
            return Err(format!("{own:?} is claimed at {counts:?}: {receives:?}, {sends:?}"));
        }
        Ok(())
    }

    /// The receiver's engine says that nothing follows what it has announced, `announced` bytes in all.
    pub fn eof(&mut self, id: StreamId, announced: u64) -> Result<(), String> {
        self.progress += 1;
        let stream = self.get_mut(id);
        if stream.tainted {
            return Ok(());
        }
        if !stream.ended {
            return Err(format!("{id:?}: its end was announced, but the sender has not ended it"));
        }
        if announced != stream.handed {
            return Err(format!("{id:?}: it ended behind {announced} bytes of {}", stream.handed));
        }
        stream.eof = announced == stream.read;
        Ok(())
    }
}
