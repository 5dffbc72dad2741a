//! How a handle of `include/vipl.h` is made: of a kind of thing, and its number.

use super::types::{Handle, VipReturn};

/// What a handle is of.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Nic = 1,
    Ptag = 2,
    Interface = 3,
    Queue = 4,
    Connection = 5,
}

pub(super) fn handle(kind: Kind, number: i32) -> Handle {
    ((kind as usize) << 32 | number as u32 as usize) as Handle
}

pub(super) fn number(kind: Kind, handle: Handle) -> Option<i32> {
    let handle = handle as usize;
    (handle >> 32 == kind as usize).then_some(handle as u32 as i32)
}

pub(super) fn vi_handle(number: i32) -> Handle {
    handle(Kind::Interface, number)
}

pub(super) fn ptag_of(handle: Handle) -> Result<u32, VipReturn> {
    number(Kind::Ptag, handle).map(|number| number as u32).ok_or(VipReturn::InvalidPtag)
}

pub(super) fn ptag_handle(ptag: u32) -> Handle {
    handle(Kind::Ptag, ptag as i32)
}
