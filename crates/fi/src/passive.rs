//! Passive endpoints: who listens.

pub mod calls;

use crate::address::Address;
use crate::event::{Event, Request};
use crate::fabric::Fabric;
use crate::object::errno;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use toe_via::endpoint::meeting::Door;

/// See the module.
#[derive(Debug)]
pub struct Passive {
    fabric: Arc<Fabric>,
    address: Mutex<Address>,
    mr_mode: c_int,
    doors: Mutex<Vec<Door>>,
    fid: AtomicUsize,
}

impl Passive {
    pub fn fid(&self) -> usize {
        self.fid.load(Ordering::Relaxed)
    }

    fn address(&self) -> Address {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn doors(&self) -> MutexGuard<'_, Vec<Door>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who has come.
    pub fn look(&self, may_have_events: bool, events: &mut VecDeque<Event>) {
        let asked_by = (self.fabric.api_version, self.mr_mode);
        for door in self.doors().iter_mut() {
            for visitor in door.look(may_have_events) {
                if let Some(request) = Request::new(asked_by, self.address(), visitor) {
                    events.push_back(Event::Request { passive: self.fid(), request });
                }
            }
        }
    }

    pub fn arm(&self) {
        self.doors().iter().for_each(Door::arm);
    }

    fn listen(&self) -> Result<(), c_int> {
        let wanted = self.address();
        let address = wanted.with_port();
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
        // A port that was asked for is the node's: others know it by that alone.
        let also = (wanted.port != 0 && wanted.at_node() != wanted).then(|| wanted.at_node());
        // Locked from before: what comes at once is looked for after they are there.
        let mut doors = self.doors();
        for address in [Some(address), also].into_iter().flatten() {
            doors.push(Door::open(&self.fabric.session, address.node_and_port().1).map_err(errno)?);
        }
        Ok(())
    }
}
