//! The side of the engine that programs are on: what comes for their sockets.

use super::checker::Checker;
use super::world::{End, Mistake};
use crate::random::Random;
use std::ops::Range;
use toe_base::{DatagramId, Endpoint, SessionId};
use toe_engine::{Delivered, HostMemory, HostSide, RxDatagram, RxDatagramError};

/// Of one engine, for one call of it.
pub(super) struct Host<'a> {
    pub(super) checker: &'a mut Checker,
    pub(super) random: &'a mut Random,
    pub(super) counts: &'a mut Counts,
    /// Ends and the ports of their sockets.
    pub(super) ends: &'a [End],
    /// Those of all sockets that were ever there: the kernel knows which are.
    pub(super) ports: Range<u16>,
    /// How many of a million find a queue full.
    pub(super) full_ppm: u32,
    pub(super) mistake: Option<Mistake>,
    /// What the engine sends comes round to itself in this call.
    pub(super) is_round: bool,
}

/// What programs saw.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) came: u64,
    pub(super) queue_full: u64,
    pub(super) errors: u64,
}

impl HostMemory for Host<'_> {
    fn write(&mut self, _: SessionId, _: u64, _: &[u8]) {}
    fn read(&mut self, _: SessionId, _: u64, _: &mut [u8]) {}
    fn copy(&mut self, _: (SessionId, u64), _: (SessionId, u64), _: u32) {}
}

impl HostSide for Host<'_> {
    fn deliver_datagram(&mut self, to: Option<DatagramId>, datagram: &RxDatagram<'_>) -> Delivered {
        let at = datagram.to();
        if let Some(id) = to
            && !self.ends.iter().any(|end| (end.id, end.port) == (id, at.port))
        {
            self.checker.fail(format!("what is for {at} is given to {id:?}, which has not that port"));
        }
        if self.is_round {
            self.checker.brought(datagram.text);
        }
        if self.random.ppm(self.full_ppm) {
            self.counts.queue_full += 1;
            return Delivered::QueueFull;
        }
        self.counts.came += 1;
        let from = datagram.from();
        match self.mistake {
            Some(Mistake::Doubles) => self.checker.delivered(from, at, datagram.text),
            Some(Mistake::Joins) => {
                let joined = [datagram.text, datagram.text].concat();
                return self.hear(from, at, &joined);
            }
            Some(Mistake::FromAnother) => {
                return self.hear(Endpoint { port: from.port ^ 1, ..from }, at, datagram.text);
            }
            Some(Mistake::Loses) => return Delivered::ByLane,
            None => {}
        }
        self.hear(from, at, datagram.text)
    }

    fn deliver_datagram_error(&mut self, error: &RxDatagramError<'_>) -> bool {
        if !self.ports.contains(&error.own.port) {
            self.checker.fail(format!("an error is told to {}, which is nobody's", error.own));
        }
        self.counts.errors += 1;
        true
    }
}

impl Host<'_> {
    fn hear(&mut self, from: Endpoint, to: Endpoint, text: &[u8]) -> Delivered {
        self.checker.delivered(from, to, text);
        if to.port.is_multiple_of(2) { Delivered::ByLane } else { Delivered::ByKernel }
    }
}
