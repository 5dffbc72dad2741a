//! Endpoints that are connected to one another, as libfabric has them (`FI_EP_MSG`): messages for receives that were posted, and the peer's
//! memory written and read by keys. Called by the libfabric provider (`crates/fi`), which says what is C about it.
//!
//! They stand on what channels (EVIL) and virtual interfaces (VIPL) stand on: [`crate::link`], fragments, credit, and the heads of
//! [`crate::core::operation`]. What is different is who waits for what: a message for which no receive is posted stays where it is
//! until one is, and nobody is refused for it. Nobody works in the background: [`Endpoint::progress`] takes what has come and sends what there is
//! credit for.
//!
//! In the order in which things happen: [`meeting`] (how two endpoints come to a connection), [`post`] (what is posted and what becomes of
//! it), [`inside`], [`sending`], [`receiving`], [`regions`] (memory that the peer may touch).

pub mod inside;
pub mod meeting;
pub mod post;
mod receiving;
pub mod regions;
mod sending;

#[cfg(test)]
mod tests;

use crate::link::Link;
use crate::lock::lock;
use crate::session::Session;
use inside::{Inside, Phase, Sending};
use post::{Completion, Failure, Post, Receive};
use regions::Regions;
use std::sync::{Mutex, MutexGuard};
use toe_abi::via::ViaState;
use toe_ring::via::Breach;

/// What may be posted to send, write or read and is not done.
pub const SENDS_MAX: usize = 1024;
/// Receives that may be posted.
pub const RECEIVES_MAX: usize = 1024;
/// Fragments taken in one call: a peer that always has one more does not keep it.
const TAKE_MAX: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub struct Endpoint(Mutex<Inside>);

impl Endpoint {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inside> {
        lock(&self.0)
    }

    pub fn phase(&self) -> Phase {
        self.lock().phase
    }

    /// Posts something to be sent, written or read, and begins with it if nothing is before it. What becomes of it goes to `tell`.
    ///
    /// An `is_copied` post's memory is the caller's again when this returns.
    pub fn post(
        &self,
        post: Post,
        is_copied: bool,
        regions: &Regions,
        tell: impl FnMut(Completion),
    ) -> Result<(), Failure> {
        let mut inside = self.lock();
        if inside.phase != Phase::Connected {
            return Err(Failure::NotConnected);
        }
        if inside.posted.len() + inside.asked.len() >= SENDS_MAX {
            return Err(Failure::Full);
        }
        inside.posted.push_back(Sending::of(post));
        inside.work(regions, false);
        if is_copied {
            inside.keep_copy_of_last();
        }
        inside.done.drain(..).for_each(tell);
        Ok(())
    }

    /// Posts a receive.
    pub fn receive(&self, receive: Receive) -> Result<(), Failure> {
        let mut inside = self.lock();
        match inside.phase {
            Phase::Over => Err(Failure::NotConnected),
            _ if inside.receives.len() >= RECEIVES_MAX => Err(Failure::Full),
            _ => {
                inside.receives.push_back(receive);
                Ok(())
            }
        }
    }

    /// Takes what has come and sends what there is credit for.
    #[inline]
    pub fn progress(&self, regions: &Regions, tell: impl FnMut(Completion)) {
        let mut inside = self.lock();
        inside.work(regions, true);
        inside.done.drain(..).for_each(tell);
    }

    /// Takes back the receive that was posted first with a context.
    pub fn cancel(&self, context: usize, tell: impl FnOnce(Completion)) -> bool {
        let mut inside = self.lock();
        let index = inside.receives.iter().position(|receive| receive.context == context);
        let Some(receive) = index.and_then(|index| inside.receives.remove(index)) else { return false };
        drop(inside);
        tell(receive.ended_by(Failure::Cancelled));
        true
    }

    /// The next look finds whether the peer has something, or has taken something: it wakes the session then.
    pub fn arm(&self) {
        if let Some(link) = self.lock().link.as_ref() {
            link.memory.arm(link.side);
        }
    }

    /// Whether [`Endpoint::progress`] would find something to do.
    pub fn has_work(&self) -> bool {
        let mut inside = self.lock();
        let is_blocked = inside.is_blocked();
        let wants_room = inside.sending.is_some() || !inside.posted.is_empty() || !inside.pending.is_empty();
        let Some(link) = inside.link.as_mut() else { return false };
        let comes = !is_blocked && lock(&link.receiving).end.is_there();
        let goes = wants_room && lock(&link.sending).room(0).is_ok_and(|room| room.is_some());
        comes || goes
    }

    /// Whether the connection has ended and all that was sent has been received: once.
    pub fn take_end(&self) -> bool {
        let mut inside = self.lock();
        let Some(link) = inside.link.as_ref() else { return false };
        let is_over = match inside.phase {
            Phase::Connected => {
                link.memory.state() == ViaState::Closed && !lock(&link.receiving).end.is_there()
            }
            phase => phase == Phase::Over,
        };
        is_over && !std::mem::replace(&mut inside.end_is_reported, true)
    }

    /// Leaves the connection. What is posted ends.
    pub fn close(&self, session: &Session, tell: impl FnMut(Completion)) {
        let mut inside = self.lock();
        inside.end_is_reported = true;
        if let Some(link) = inside.link.take() {
            link.leave(session);
        }
        inside.end();
        inside.done.drain(..).for_each(tell);
    }
}

impl Inside {
    fn work(&mut self, regions: &Regions, takes: bool) {
        if self.phase != Phase::Connected {
            return;
        }
        let Some(link) = self.link.take() else { return };
        // What was sent before the end comes before the end.
        let is_over = takes && link.memory.state() == ViaState::Closed;
        let went = self.work_on(&link, regions, takes);
        let ends = went.is_err() || self.phase == Phase::Over || is_over && went == Ok(true);
        if ends {
            link.move_on(ViaState::Closed);
        }
        self.link = Some(link);
        if ends {
            self.end();
        }
    }

    /// Whether all was taken that had come.
    fn work_on(&mut self, link: &Link, regions: &Regions, takes: bool) -> Result<bool, Breach> {
        let mut is_all = false;
        for _ in 0..TAKE_MAX {
            is_all = !takes || self.phase != Phase::Connected || !self.take(link, regions)?;
            if is_all {
                break;
            }
        }
        if self.phase == Phase::Connected {
            self.send(link, regions)?;
        }
        Ok(is_all && !lock(&link.receiving).end.is_there())
    }
}
