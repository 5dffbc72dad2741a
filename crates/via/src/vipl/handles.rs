//! What the handles of `include/vipl.h` stand for: numbers in tables. And what all its functions need.

use super::handle_number::{Kind, number};
use super::nic::{CompletionQueue, Interface, Nic};
use super::types::{Handle, VipReturn};
use crate::link::Link;
use crate::lock::lock;
use crate::table::Table;
use std::ffi::c_ulong;
use std::sync::Arc;
use toe_abi::via::Attributes;

/// `VIP_INFINITE`.
const INFINITE: c_ulong = c_ulong::MAX;
pub(super) const DISCRIMINATOR_LEN: u16 = 8;

pub(super) static NICS: Table<Nic> = Table::new();
pub(super) static INTERFACES: Table<Interface> = Table::new();
pub(super) static QUEUES: Table<CompletionQueue> = Table::new();
pub(super) static ASKED: Table<AskedFor> = Table::new();

/// A connection that somebody has asked for, until it is accepted or rejected.
#[derive(Debug)]
pub struct AskedFor {
    pub nic: Arc<Nic>,
    pub link: std::sync::Mutex<Option<Link>>,
    pub theirs: Attributes,
}

impl Drop for AskedFor {
    fn drop(&mut self) {
        if let Some(link) = lock(&self.link).take() {
            link.leave(&self.nic.session);
        }
    }
}

pub(super) fn nic_of(handle: Handle) -> Result<Arc<Nic>, VipReturn> {
    let nic = number(Kind::Nic, handle).and_then(|number| NICS.get(number));
    // A child of fork has its parent's tables in its memory, and the connections that they name are not its own.
    nic.filter(|nic| nic.session.is_this_process()).ok_or(VipReturn::InvalidParameter)
}

pub(super) fn interface_of(handle: Handle) -> Result<Arc<Interface>, VipReturn> {
    let interface = number(Kind::Interface, handle).and_then(|number| INTERFACES.get(number));
    interface.filter(|found| found.nic.session.is_this_process()).ok_or(VipReturn::InvalidParameter)
}

pub(super) fn queue_of(handle: Handle) -> Result<Arc<CompletionQueue>, VipReturn> {
    let queue = number(Kind::Queue, handle).and_then(|number| QUEUES.get(number));
    queue.filter(|queue| queue.nic.session.is_this_process()).ok_or(VipReturn::InvalidParameter)
}

pub(super) fn limit(timeout: c_ulong) -> Option<u64> {
    (timeout != INFINITE).then_some(timeout)
}

pub(super) fn status(result: Result<(), VipReturn>) -> VipReturn {
    result.err().unwrap_or(VipReturn::Success)
}

/// Fills in a caller's variable, if he has given one.
///
/// # Safety
/// `to` is NULL or can be written to.
pub(super) unsafe fn fill<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: needed to answer; that it can be written to the caller has promised.
        unsafe { to.write(value) }
    }
}

/// What a caller's pointer points to.
///
/// # Safety
/// `from` is NULL or can be read.
pub(super) unsafe fn given<T: Copy>(from: *const T) -> Result<T, VipReturn> {
    // SAFETY: needed to read an argument; that it can be read the caller has promised.
    if from.is_null() { Err(VipReturn::InvalidParameter) } else { Ok(unsafe { from.read() }) }
}
