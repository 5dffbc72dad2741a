//! A datagram goes by a lane to another socket, if there is one that is open.

use super::outgoing::Sent;
use super::{Datagram, Details};
use crate::queue::sets;
use crate::socket::slices::Gather;
use crate::wait;
use std::io::IoSlice;
use std::sync::atomic::Ordering;
use toe_abi::errno::Errno;
use toe_base::Endpoint;

impl Datagram {
    /// Whether something may go by a lane.
    #[inline]
    pub fn sends_by_lanes(&self) -> bool {
        self.sends.load(Ordering::Relaxed)
    }

    /// Ends the lanes that it sends by, for good.
    pub fn send_from_kernel(&self) {
        if !self.kernel_sends.swap(true, Ordering::AcqRel) {
            self.outgoing.lock().close();
            self.sends.store(false, Ordering::Relaxed);
        }
    }

    /// Sends a datagram, `to` an address or to what the socket is connected to, if it has a lane there that is open.
    pub fn send(&self, to: Option<Endpoint>, from: &[IoSlice<'_>], details: &Details) -> Result<Sent, Errno> {
        Gather::prepare_all(from);
        let mut outgoing = self.outgoing.lock();
        let mut sent = outgoing.send(to, from, details);
        if sent == Ok(Sent::Full) {
            drop(outgoing);
            // Who receives has a moment to make room: no longer than the kernel would take with a few.
            let mut again = || {
                let sent = self.outgoing.lock().send(to, from, details)?;
                Ok((sent != Sent::Full).then_some(sent))
            };
            let room = wait::spin(&mut again).transpose();
            self.leave_without_engine();
            outgoing = self.outgoing.lock();
            let len = from.iter().map(|part| part.len()).sum();
            sent = room.unwrap_or_else(|| Ok(outgoing.overflow(to, len)));
        }
        if sent == Ok(Sent::Kernel) {
            self.sends.store(!outgoing.is_unused(), Ordering::Relaxed);
        }
        sent
    }

    /// Nobody says any more that a receiver has died: a lane of which nothing is taken is left. If it is closed the datagram goes by
    /// the kernel.
    fn leave_without_engine(&self) {
        let session = self.session.load(Ordering::Acquire);
        // SAFETY: needed because the session is in an atomic, which holds null or what `Stack::get` gave: those are never freed.
        let Some(session) = (unsafe { session.as_ref() }) else { return };
        sets::look(session);
        if !session.alive() {
            self.leave();
        }
    }

    /// Whether a datagram to there would go by a lane.
    pub fn takes(&self, to: Option<Endpoint>) -> bool {
        self.outgoing.lock().takes(to)
    }
}
