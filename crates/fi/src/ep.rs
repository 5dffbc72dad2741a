//! Endpoints: how they are connected and left. What they carry is [`crate::transfer`]'s.

pub mod calls;
pub mod object;

use crate::address::Address;
use crate::completions::Completions;
use crate::domain::Domain;
use crate::event::Event;
use crate::object::errno;
use crate::sys;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use toe_via::endpoint::Endpoint;
use toe_via::endpoint::inside::Phase;
use toe_via::endpoint::meeting::{Approach, Greeting, Met, Visitor};
use toe_via::endpoint::post::{Completion, What};

/// A queue to which an endpoint's completions go.
#[derive(Debug, Default)]
pub struct Bound {
    queue: OnceLock<Arc<Completions>>,
    /// Only what is marked is told.
    is_selective: AtomicBool,
    /// What is posted by calls without flags is marked.
    pub is_marked: bool,
}

impl Bound {
    pub fn is_selective(&self) -> bool {
        self.is_selective.load(Ordering::Relaxed)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Ep {
    pub endpoint: Endpoint,
    pub domain: Arc<Domain>,
    pub sends: Bound,
    pub receives: Bound,
    approach: Mutex<Option<Approach>>,
    visitor: Mutex<Option<Visitor>>,
    source: Address,
    /// Whom it is to connect to, or is connected to.
    target: Mutex<Option<Address>>,
    fid: AtomicUsize,
    context: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ep {
    pub fn fid(&self) -> usize {
        self.fid.load(Ordering::Relaxed)
    }

    /// Tells the queue that it concerns.
    #[inline]
    pub fn tell(&self, completion: Completion) {
        let bound = match completion.what {
            What::Sent | What::Written | What::Read => &self.sends,
            What::Received | What::WasWritten => &self.receives,
        };
        if let Some(queue) = bound.queue.get() {
            queue.push(completion);
        }
    }

    #[inline]
    pub fn progress(&self) {
        let regions = self.domain.regions();
        self.endpoint.progress(&regions, |completion| self.tell(completion));
    }

    /// What has become of its connection.
    pub fn look(&self, may_have_events: bool) -> Option<Event> {
        let session = &self.domain.fabric.session;
        let mut approach = lock(&self.approach);
        let Some(on_its_way) = approach.as_mut() else {
            return self.endpoint.take_end().then(|| Event::Shutdown { ep: self.fid() });
        };
        let met = on_its_way.look(session, &self.endpoint, may_have_events)?;
        *approach = None;
        drop(approach);
        let failed = |errno, private| {
            self.endpoint.close(session, |completion| self.tell(completion));
            Event::Failed { ep: self.fid(), context: self.context, errno, private }
        };
        Some(match met {
            Met::Connected(Greeting { private, .. }) => Event::Connected { ep: self.fid(), private },
            Met::Rejected(said) => {
                failed(libc::ECONNREFUSED, said.map_or_else(Vec::new, |greeting| greeting.private))
            }
            Met::Failed(error) => failed(errno(error), Vec::new()),
        })
    }

    fn connect(&self, target: Address, private: Vec<u8>) -> Result<(), c_int> {
        // Held until it is there: what comes at once is looked for after that.
        let mut approach = lock(&self.approach);
        if approach.is_some() || self.endpoint.phase() != Phase::Idle {
            return Err(sys::EOPBADSTATE);
        }
        *lock(&self.target) = Some(target);
        let greeting = Greeting { from: self.source.to_greeting(), to: target.to_greeting(), private };
        let session = &self.domain.fabric.session;
        *approach =
            Some(Approach::begin(session, &self.endpoint, target.node_and_port(), greeting).map_err(errno)?);
        Ok(())
    }

    /// Accepts who has come for it.
    fn accept(&self, visitor: Visitor, private: Vec<u8>) -> Event {
        let greeting = Greeting { from: visitor.greeting.to, to: visitor.greeting.from, private };
        if visitor.accept(&self.endpoint, &greeting) {
            Event::Connected { ep: self.fid(), private: Vec::new() }
        } else {
            let errno = libc::ECONNABORTED;
            Event::Failed { ep: self.fid(), context: self.context, errno, private: Vec::new() }
        }
    }

    /// Leaves the connection; what is posted ends.
    fn leave(&self) {
        let session = &self.domain.fabric.session;
        if let Some(approach) = lock(&self.approach).take() {
            approach.abandon(session);
        }
        drop(lock(&self.visitor).take());
        self.endpoint.close(session, |completion| self.tell(completion));
    }
}
