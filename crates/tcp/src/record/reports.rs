//! What ACKs have yet to tell of, and have told, beside how far the stream has come. One part of the record ([`super::Tcb`]);
//! [`crate::segment_arrives`] and [`crate::output`] work on it.

use crate::pool::{Pool, PoolSlot};
use crate::reassembly::SeqRange;
use toe_base::SeqNum;
use toe_wire::tcp::SackBlocks;

/// Where the reports of all connections lie that got something out of order or twice from a peer that wants to know. Each can have
/// one, until everything is in order and told.
pub type ReportPool = Pool<AckReports, 1>;

const DUPLICATES_MAX: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckReports {
    /// A number within each of the ranges that ACKs reported last, the latest first (RFC 2018 section 4).
    pub latest: [SeqNum; SackBlocks::MAX],
    /// All ranges up to here were reported.
    pub up_to: SeqNum,
    /// What came twice and has yet to be told of, an ACK each, first come first told.
    duplicates: [SeqRange; DUPLICATES_MAX],
    pending: u8,
}

impl AckReports {
    /// Those of a connection; `None` is for more connections than there can be.
    pub fn at<'a>(slot: &mut PoolSlot, pool: &'a mut ReportPool, nxt: SeqNum) -> Option<&'a mut AckReports> {
        let is_new = slot.is_empty();
        let reports = pool.one_mut(slot)?;
        if is_new {
            *reports = AckReports { latest: [nxt; SackBlocks::MAX], up_to: nxt, ..AckReports::default() };
        }
        Some(reports)
    }

    /// It came twice. One too many is left out: the sender then knows less, and nothing wrong.
    pub fn push(&mut self, range: SeqRange) {
        if let Some(place) = self.duplicates.get_mut(usize::from(self.pending)) {
            *place = range;
            self.pending += 1;
        }
    }

    pub fn first(&self) -> Option<SeqRange> {
        self.duplicates[..usize::from(self.pending)].first().copied()
    }

    /// The first is told.
    pub fn pop(&mut self) {
        self.duplicates.rotate_left(1);
        self.pending = self.pending.saturating_sub(1);
    }
}
