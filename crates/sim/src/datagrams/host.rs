//! The side of the engine that programs are on: what comes for their sockets.

use super::checker::Checker;
use super::world::{End, Mistake};
use crate::random::Random;
use std::ops::Range;
use toe_base::{DatagramId, Endpoint};
use toe_engine::{Delivered, Incoming, RxDatagram};

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

impl Host<'_> {
    pub(super) fn take(&mut self, incoming: &Incoming<'_>) -> Delivered {
        match incoming {
            Incoming::Datagram(one) => self.datagram(one.to, &one.datagram),
            Incoming::Error(error) => {
                if !self.ports.contains(&error.own.port) {
                    self.checker.fail(format!("an error is told to {}, which is nobody's", error.own));
                }
                self.counts.errors += 1;
                Delivered::ByKernel
            }
        }
    }

    fn datagram(&mut self, to: Option<DatagramId>, datagram: &RxDatagram<'_>) -> Delivered {
        let at = datagram.to();
        if let Some(id) = to
            && !self.ends.iter().any(|end| (end.id, end.port) == (id, at.port))
        {
            self.checker.fail(format!("what is for {at} is given to {id:?}, which has not that port"));
        }
        // The kernel takes several only one by one.
        let is_joined = datagram.segment.is_some();
        if is_joined && (to.is_none() || self.mistake.is_some() || self.random.one_in(2)) {
            return Delivered::Nowhere;
        }
        let each = datagram.segment.map_or(datagram.text.len(), usize::from).max(1);
        let texts = datagram.text.chunks(each);
        if self.is_round {
            texts.clone().for_each(|text| self.checker.brought(text));
        }
        if self.random.ppm(self.full_ppm) {
            self.counts.queue_full += texts.count() as u64;
            return Delivered::QueueFull;
        }
        let from = datagram.from();
        texts.map(|text| self.hear(from, at, text)).last().unwrap_or(Delivered::ByLane)
    }

    fn hear(&mut self, from: Endpoint, to: Endpoint, text: &[u8]) -> Delivered {
        self.counts.came += 1;
        match self.mistake {
            None => self.checker.delivered(from, to, text),
            Some(Mistake::Loses) => return Delivered::ByLane,
            Some(Mistake::Doubles) => (0..2).for_each(|_| self.checker.delivered(from, to, text)),
            Some(Mistake::Joins) => self.checker.delivered(from, to, &[text, text].concat()),
            Some(Mistake::FromAnother) => {
                self.checker.delivered(Endpoint { port: from.port ^ 1, ..from }, to, text);
            }
        }
        if to.port.is_multiple_of(2) { Delivered::ByLane } else { Delivered::ByKernel }
    }
}
