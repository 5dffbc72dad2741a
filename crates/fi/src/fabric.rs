//! A fabric: this process at an engine, as a session of its own, and the wait objects of its queues.

use crate::wait_object::WaitObject;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use toe_via::session::Session;

/// See the module.
#[derive(Debug)]
pub struct Fabric {
    pub session: Arc<Session>,
    pub api_version: u32,
    wait_objects: Mutex<Vec<Weak<WaitObject>>>,
    /// The round of the session's sleepers that was told to the wait objects.
    round: AtomicU64,
}

impl Fabric {
    pub fn new(session: Arc<Session>, api_version: u32) -> Fabric {
        Fabric { session, api_version, wait_objects: Mutex::default(), round: AtomicU64::new(0) }
    }

    pub fn wait_object(&self) -> Option<Arc<WaitObject>> {
        let wait_object = Arc::new(WaitObject::new(&self.session)?);
        let mut wait_objects = self.wait_objects.lock().unwrap_or_else(PoisonError::into_inner);
        wait_objects.retain(|wait_object| wait_object.strong_count() > 0);
        wait_objects.push(Arc::downgrade(&wait_object));
        Some(wait_object)
    }

    /// Takes an interrupt that has come. A number that changes with each.
    pub fn event_count(&self) -> u64 {
        let round = self.session.sleepers().take_interrupt(&*self.session);
        if self.round.swap(round, Ordering::AcqRel) != round {
            let wait_objects = self.wait_objects.lock().unwrap_or_else(PoisonError::into_inner);
            wait_objects.iter().filter_map(Weak::upgrade).for_each(|wait_object| wait_object.ring());
        }
        round
    }
}
