//! What is done and not read, of one completion queue.

use crate::sys::{self, CqErrEntry, CqTaggedEntry, Ssize};
use crate::wait_object::WaitObject;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toe_via::endpoint::post::{Completion, Failure, What};

/// Empty reads after which each lets others run: some ten microseconds, in which a peer that is at it answers. Who only looks, as MPI does,
/// would else keep its peer from the processor that the two share.
const EMPTY_READS_MAX: u32 = 512;

/// See the module.
#[derive(Debug)]
pub struct Completions {
    entries: Mutex<VecDeque<Completion>>,
    pub entry_len: usize,
    pub wait_object: Option<Arc<WaitObject>>,
    pub is_signalled: AtomicBool,
    /// Reads one after the other that have found nothing.
    empty_reads: AtomicU32,
}

/// What a completion is called.
fn flags(completion: &Completion) -> u64 {
    let data = if completion.immediate.is_some() { sys::REMOTE_CQ_DATA } else { 0 };
    data | match completion.what {
        What::Sent => sys::SEND | sys::MSG,
        What::Received => sys::RECV | sys::MSG,
        What::Written => sys::WRITE | sys::RMA,
        What::Read => sys::READ | sys::RMA,
        What::WasWritten => sys::REMOTE_WRITE | sys::RMA,
    }
}

fn entry(completion: &Completion) -> CqTaggedEntry {
    CqTaggedEntry {
        op_context: completion.context as *mut c_void,
        flags: flags(completion),
        len: completion.len as usize,
        buf: completion.address as *mut c_void,
        data: completion.immediate.unwrap_or(0).into(),
        tag: 0,
    }
}

impl Completions {
    pub fn new(entry_len: usize, wait_object: Option<Arc<WaitObject>>) -> Completions {
        let (entries, is_signalled, empty_reads) =
            (Mutex::default(), AtomicBool::new(false), AtomicU32::new(0));
        Completions { entries, entry_len, wait_object, is_signalled, empty_reads }
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Completion>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, completion: Completion) {
        self.entries().push_back(completion);
        self.ring();
    }

    /// Wakes who waits for it in this process.
    pub fn ring(&self) {
        if let Some(wait_object) = &self.wait_object {
            wait_object.ring();
        }
    }

    pub fn has_entries(&self) -> bool {
        !self.entries().is_empty()
    }

    /// Reads up to `count` entries. FI_EAVAIL: the first is an error. If there is none, once more after `progress`.
    ///
    /// # Safety
    /// `buf` has room for them in the queue's format.
    pub unsafe fn read(&self, buf: *mut c_void, count: usize, progress: impl FnOnce()) -> Ssize {
        let mut entries = self.entries();
        if entries.is_empty() {
            drop(entries);
            progress();
            entries = self.entries();
        }
        let mut done = 0;
        while done < count {
            match entries.front() {
                None => break,
                Some(first) if first.failure.is_some() => {
                    return if done > 0 { done as Ssize } else { -(sys::EAVAIL as Ssize) };
                }
                Some(first) => {
                    let entry = entry(first);
                    // SAFETY: needed to tell the program, which has promised room for `count`. Each format is the beginning of the longest.
                    unsafe {
                        let to = buf.byte_add(done * self.entry_len).cast::<u8>();
                        to.copy_from_nonoverlapping((&raw const entry).cast(), self.entry_len);
                    }
                    entries.pop_front();
                    done += 1;
                }
            }
        }
        drop(entries);
        if done > 0 {
            self.empty_reads.store(0, Ordering::Relaxed);
            return done as Ssize;
        }
        let empty_reads = self.empty_reads.load(Ordering::Relaxed);
        if empty_reads < EMPTY_READS_MAX {
            self.empty_reads.store(empty_reads + 1, Ordering::Relaxed);
        } else {
            std::thread::yield_now();
        }
        -(libc::EAGAIN as Ssize)
    }

    /// Reads the error that is the first.
    ///
    /// # Safety
    /// `buf` has room for it.
    pub unsafe fn read_error(&self, buf: *mut CqErrEntry) -> Ssize {
        let mut entries = self.entries();
        let Some((completion, failure)) =
            entries.front().and_then(|first| first.failure.map(|failure| (*first, failure)))
        else {
            return -(libc::EAGAIN as Ssize);
        };
        entries.pop_front();
        let (err, olen) = match failure {
            Failure::Truncated(over) => (sys::ETRUNC, over as usize),
            Failure::Cancelled => (libc::ECANCELED, 0),
            Failure::Refused => (libc::EACCES, 0),
            Failure::Ended | Failure::NotConnected | Failure::Full => (libc::ECONNABORTED, 0),
        };
        let entry = entry(&completion);
        // SAFETY: needed to tell the program, which has promised room. Its buffer for more about the error stays as it is.
        unsafe {
            (&raw mut (*buf).entry).write(entry);
            (&raw mut (*buf).olen).write(olen);
            (&raw mut (*buf).err).write(err);
            (&raw mut (*buf).prov_errno).write(err);
            (&raw mut (*buf).err_data).write(null_mut());
            (&raw mut (*buf).err_data_size).write(0);
        }
        1
    }
}
