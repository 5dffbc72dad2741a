//! The words of a slot in a channel's memory ([`toe_abi::channel`]), which both hosts may change at the same time. Of memory that is gone
//! nobody reads anything any more.

use core::sync::atomic::{AtomicU64, Ordering};
use toe_abi::channel::{ALL_READ, ChannelLayout, FROZEN, Side, SlotLine};
use toe_base::ChannelId;
use toe_tcp::memory::{HostMemory, SharedMemory};

/// Which slot.
type SlotAt = (ChannelId, u32);

fn word<H: HostMemory>(host: &mut H, (channel, slot): SlotAt, side: Side, field: u64) -> Option<&AtomicU64> {
    host.word(SharedMemory::OfPair(channel), ChannelLayout::line(slot, side) + field)
}

fn load<H: HostMemory>(host: &mut H, slot: SlotAt, side: Side, field: u64) -> Option<u64> {
    word(host, slot, side, field).map(|word| word.load(Ordering::Acquire))
}

fn store<H: HostMemory>(host: &mut H, slot: SlotAt, side: Side, field: u64, value: u64) {
    word(host, slot, side, field).into_iter().for_each(|word| word.store(value, Ordering::Release));
}

/// Ends the direction out of `side`: the bytes that went, and will ever go, through the channel.
fn freeze<H: HostMemory>(host: &mut H, slot: SlotAt, side: Side) -> u64 {
    word(host, slot, side, SlotLine::SENT).map_or(0, |word| word.fetch_or(FROZEN, Ordering::AcqRel) & !FROZEN)
}

/// Makes it ready for a connection, which nobody knows of yet.
pub fn reset<H: HostMemory>(host: &mut H, slot: SlotAt) {
    for side in [Side::Zero, Side::One] {
        for field in [SlotLine::SENT, SlotLine::READ, SlotLine::DONE] {
            store(host, slot, side, field, 0);
        }
    }
}

/// Ends its use for `side`, whose host refers to it no more if it is `gone`; the other one finds everything read and its own direction
/// ended. Whether bytes were on their way to `side` that its program had not read; hostile words give some answer.
pub fn end<H: HostMemory>(host: &mut H, slot: SlotAt, side: Side, gone: bool) -> bool {
    let sent = freeze(host, slot, side.other());
    let read = load(host, slot, side, SlotLine::READ).unwrap_or(ALL_READ);
    freeze(host, slot, side);
    store(host, slot, side, SlotLine::READ, ALL_READ);
    if gone {
        store(host, slot, side, SlotLine::DONE, 1);
    }
    read < sent
}

/// Whether the host of that side refers to it no more.
pub fn is_done<H: HostMemory>(host: &mut H, slot: SlotAt, side: Side) -> bool {
    load(host, slot, side, SlotLine::DONE) != Some(0)
}

/// Whether nothing comes to `side` through it any more, and no more than `came` bytes have.
pub fn is_left<H: HostMemory>(host: &mut H, slot: SlotAt, side: Side, came: u64) -> bool {
    let sent = load(host, slot, side.other(), SlotLine::SENT);
    sent.is_none_or(|sent| sent & FROZEN != 0 && sent & !FROZEN <= came)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{FakeHosts, SharedWords};

    const SLOT: SlotAt = (ChannelId(3), 5);

    #[test]
    fn the_end_of_a_side_says_what_was_left_unread() {
        for (sent, read, unread) in
            [(0, 0, false), (9, 9, false), (9, 8, true), (9, 0, true), (9, ALL_READ, false)]
        {
            let words = Some(SharedWords::default());
            let mut words = FakeHosts { words, ..FakeHosts::default() };
            reset(&mut words, SLOT);
            store(&mut words, SLOT, Side::One, SlotLine::SENT, sent);
            store(&mut words, SLOT, Side::Zero, SlotLine::READ, read);
            assert!(!is_left(&mut words, SLOT, Side::Zero, sent), "more may come");
            assert_eq!(end(&mut words, SLOT, Side::Zero, false), unread, "{sent} sent, {read} read");
            assert_eq!(load(&mut words, SLOT, Side::One, SlotLine::SENT), Some(FROZEN | sent));
            assert_eq!(load(&mut words, SLOT, Side::Zero, SlotLine::SENT), Some(FROZEN));
            assert_eq!(load(&mut words, SLOT, Side::Zero, SlotLine::READ), Some(ALL_READ));
            assert!(is_left(&mut words, SLOT, Side::Zero, sent) && !is_done(&mut words, SLOT, Side::Zero));
            assert!(!end(&mut words, SLOT, Side::Zero, true), "said once");
            assert!(is_done(&mut words, SLOT, Side::Zero) && !is_done(&mut words, SLOT, Side::One));
            reset(&mut words, SLOT);
            let fields = [SlotLine::SENT, SlotLine::READ, SlotLine::DONE];
            assert_eq!(fields.map(|field| load(&mut words, SLOT, Side::Zero, field)), [Some(0); 3]);
        }
    }
}
