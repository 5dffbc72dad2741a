//! Descriptors in the program's registered memory: read once when they are posted, written once when they are done.

use super::memory::{Access, Registry};
use super::types::{
    CONTROL_IMMEDIATE, CONTROL_OP_MASK, CONTROL_OP_RDMAREAD, CONTROL_OP_SENDRECV, CONTROL_RESERVED,
    STATUS_DONE, VipControlSegment, VipDescriptor, VipReturn, VipSegment,
};
use crate::core::operation::DATA_MAX;
pub use crate::parts::{Part, from_connection, to_connection, within};

pub const SEGMENTS_MAX: usize = 16;
pub const ALIGNMENT: u64 = 64;
const SEGMENT_LEN: u64 = size_of::<VipSegment>() as u64;
const CONTROL_LEN: u64 = size_of::<VipControlSegment>() as u64;

/// What the data of a message are gathered from, or scattered to.
pub type Parts = crate::parts::Parts<SEGMENTS_MAX>;

/// Whether a virtual interface with that tag may touch all of them.
pub(crate) fn are_allowed(parts: &[Part], registry: &Registry, ptag: u32, access: Access) -> bool {
    parts.iter().all(|part| registry.allows(part.handle, ptag, (part.address, part.len.into()), access))
}

/// A descriptor that was posted.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// Where it is.
    pub at: u64,
    pub operation: u16,
    pub immediate: Option<u32>,
    pub remote: Part,
    pub parts: Parts,
    /// Where it itself is registered.
    pub handle: u32,
    /// Nothing can be done with it: it is a format error when its turn comes.
    is_malformed: bool,
}

impl Posted {
    /// Reads the descriptor at an address. InvalidParameter: it is not aligned, or does not lie in memory registered with the tag.
    pub fn read(
        (at, handle): (u64, u32),
        of_receives: bool,
        ptag: u32,
        registry: &Registry,
    ) -> Result<Posted, VipReturn> {
        let may = |len| registry.allows(handle, ptag, (at, len), Access::Local);
        if at == 0 || !at.is_multiple_of(ALIGNMENT) || !may(CONTROL_LEN) {
            return Err(VipReturn::InvalidParameter);
        }
        // SAFETY: needed to read what the program has posted: registered memory (see `to_connection`), and aligned.
        let control = unsafe { (at as *const VipControlSegment).read_volatile() };
        let operation = control.control & CONTROL_OP_MASK;
        let has_remote = operation != CONTROL_OP_SENDRECV;
        let count = usize::from(control.seg_count);
        let immediate = (control.control & CONTROL_IMMEDIATE != 0).then_some(control.immediate_data);
        let mut posted = Posted {
            at,
            operation,
            immediate,
            remote: Part::default(),
            parts: Parts::default(),
            handle,
            is_malformed: false,
        };
        let is_sound = count <= SEGMENTS_MAX
            && may(CONTROL_LEN + count as u64 * SEGMENT_LEN)
            && control.control & CONTROL_RESERVED == 0
            && operation <= CONTROL_OP_RDMAREAD
            && (!has_remote || count > 0);
        if !is_sound {
            return Ok(Posted { is_malformed: true, ..posted });
        }
        let mut total = 0u64;
        for index in 0..count {
            let segment = (at + CONTROL_LEN) as *const VipSegment;
            // SAFETY: needed as above; that so many lie in registered memory was looked up just now.
            let VipSegment { data, handle, length } = unsafe { segment.add(index).read_volatile() };
            if index == 0 && has_remote {
                posted.remote = Part { address: data, handle, len: 0 };
                continue;
            }
            posted.parts.push(Part { address: data, handle, len: length });
            total += u64::from(length);
        }
        // What it says of its length is the sum: of a receive it is what there is room for, whatever it says.
        let is_too_long = total > u64::from(DATA_MAX);
        posted.parts.len = if is_too_long { 0 } else { total as u32 };
        posted.is_malformed = is_too_long || !of_receives && control.length != posted.parts.len;
        posted.remote.len = posted.parts.len;
        Ok(posted)
    }

    /// No descriptor may be like that; a read brings no immediate data.
    pub fn is_malformed(&self) -> bool {
        self.is_malformed || self.operation == CONTROL_OP_RDMAREAD && self.immediate.is_some()
    }
}

/// How a descriptor ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finish {
    pub status: u32,
    pub len: u32,
    pub immediate: Option<u32>,
}

/// The descriptor at an address is done: the program finds its length and status, and may have it again. `handle` is that of the memory where it is.
pub fn finish((at, handle): (u64, u32), ptag: u32, finish: Finish, registry: &Registry) {
    if !registry.allows(handle, ptag, (at, CONTROL_LEN), Access::Local) {
        // Given back by the program meanwhile.
        return;
    }
    let descriptor = at as *mut VipDescriptor;
    // SAFETY: needed to tell the program. The descriptor lay in its registered memory when it was posted and still does; it leaves what it
    // has posted alone. The status comes last, for those who look at it alone.
    unsafe {
        if let Some(immediate) = finish.immediate {
            (&raw mut (*descriptor).control.immediate_data).write_volatile(immediate);
        }
        (&raw mut (*descriptor).control.length).write_volatile(finish.len);
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        (&raw mut (*descriptor).control.status).write_volatile(finish.status | STATUS_DONE);
    }
}
