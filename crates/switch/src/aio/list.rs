//! lio_listio: a list of requests, some of which may be the C library's. Those are handed to it as a list of their own, which
//! counts as one request of the whole.

use super::block::{AiocbPtr, Block};
use super::notice::{Event, Group};
use super::{NOP, is_ours, submit};
use crate::ffi::{guarded, last_errno};
use crate::real;
use core::ffi::c_int;
use libc::{aiocb, sigevent, sigval};
use std::sync::Arc;
use toe::{Errno, program_memory};

/// A program's list, when some of it is ours.
#[derive(Debug)]
pub struct List {
    ours: Vec<(AiocbPtr, Block)>,
    pub theirs: Vec<*mut aiocb>,
}

impl List {
    /// `None`: it is the C library's, as it is where it cannot be read.
    ///
    /// # Safety
    /// `list` is the program's, of `count` pointers.
    pub unsafe fn read(list: *const *mut aiocb, count: usize) -> Option<List> {
        program_memory::check(list, count).ok()?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for n in 0..count {
            // SAFETY: needed to read the program's array, which is there.
            let at = unsafe { list.add(n).read_unaligned() };
            if at.is_null() {
                continue;
            }
            let block = AiocbPtr::of(at).read()?;
            if block.operation != NOP && is_ours(block.fd) {
                ours.push((AiocbPtr::of(at), block));
            } else {
                theirs.push(at);
            }
        }
        (!ours.is_empty()).then_some(List { ours, theirs })
    }

    /// Submits those of ours; also what has failed of it.
    fn submit(&self, group: &Arc<Group>) -> Result<(), Errno> {
        // All are, whatever becomes of the others.
        let mut outcome = Ok(());
        for (aiocb, block) in &self.ours {
            outcome = submit(*aiocb, block, block.operation, Some(group)).and(outcome);
        }
        outcome
    }

    /// Those of ours, to be waited for ([`super::wait::for_group`]).
    pub fn begin(&self) -> Arc<Group> {
        let group = Arc::new(Group::new(Event::NONE));
        let has_failed = self.submit(&group).is_err();
        group.end_one(has_failed);
        group
    }

    /// All of them, and `event` when all are done.
    pub fn begin_all(mut self, event: Option<Event>) -> Result<(), Errno> {
        let group = Arc::new(Group::new(event.unwrap_or(Event::NONE)));
        let ours = self.submit(&group);
        let theirs = if self.theirs.is_empty() { Ok(()) } else { self.hand_on(&group) };
        group.end_one(false);
        ours.and(theirs)
    }

    fn hand_on(&mut self, group: &Arc<Group>) -> Result<(), Errno> {
        let is_notified = !group.is_silent();
        let mut event = Event::NONE;
        if is_notified {
            group.add();
            event = Event::call(theirs_are_done, Arc::into_raw(group.clone()).cast());
        }
        let event = (&raw mut event).cast::<sigevent>();
        let count = self.theirs.len() as c_int;
        // SAFETY: needed because these are the C library's to run: the program's own blocks, and a copy of what the program would
        // be told by. The C library calls the function once, also where it fails, with what was given away to it here.
        let result = unsafe { real::lio_listio(libc::LIO_NOWAIT, self.theirs.as_ptr(), count, event) };
        if result < 0 { Err(last_errno()) } else { Ok(()) }
    }
}

/// Called by the C library, in a thread of its own, in which it has let all signals in. The one by which the program is told would
/// come to this thread, though the program waits for it elsewhere.
unsafe extern "C-unwind" fn theirs_are_done(value: sigval) {
    guarded((), || {
        let _before = toe::helper::block_signals(&[]);
        // SAFETY: needed because it passes through C. It is what `hand_on` made of the group, and this is called once.
        let group = unsafe { Arc::from_raw(value.sival_ptr.cast_const().cast::<Group>()) };
        group.end_one(false);
    });
}
