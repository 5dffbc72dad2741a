//! Queue sets of sessions, of which the first says that a session's host has mapped its region. Called by `attach`.

use crate::control_server::ask::{self, Mapped};
use crate::control_server::socket::Answer;
use crate::daemon::Daemon;
use toe_abi::attach::Reply;
use toe_abi::errno::Errno;
use toe_base::{Instant, QueueSetId};
use toe_ring::EngineQueueSet;

impl Daemon {
    /// The first one says that the host has mapped the region, which is settled then: before, the engine does not touch it.
    pub(crate) fn queue_set_asked(&mut self, now: Instant, place: u32) -> ask::Answer {
        let session = self.session_of(place).ok().and_then(|id| self.sessions.get_mut(id));
        match session.and_then(|session| Some((session.region.clone(), session.unsettled.take()?))) {
            Some(memory) => ask::Answer::Settle { what: Mapped::Region, memory: vec![memory] },
            None => {
                let answer = self.add_queue_set(place);
                self.reply(now, place, answer)
            }
        }
    }

    pub(crate) fn settled(&mut self, now: Instant, place: u32, what: Mapped, is_settled: bool) -> Answer {
        if !is_settled {
            return Err(Errno::EPERM);
        }
        // It is announced again that the engine sleeps: the host has not been told if it was before.
        let id = self.session_of(place)?;
        self.sessions.stir(id, now);
        match what {
            Mapped::Region => self.add_queue_set(place),
            Mapped::Datagrams => Ok((Reply::Done, Vec::new())),
        }
    }

    fn add_queue_set(&mut self, place: u32) -> Answer {
        let id = self.session_of(place)?;
        let (line, receiver) = self.irq_names.interrupt().map_err(|_| Errno::EMFILE)?;
        crate::sys::refuse_descriptors(&receiver);
        let session = self.sessions.get_mut(id).ok_or(Errno::EINVAL)?;
        let next = session.queue_sets.len();
        let index = u8::try_from(next).map_err(|_| Errno::ENOBUFS)?;
        if u32::from(index) >= session.layout.queue_sets {
            return Err(Errno::ENOBUFS);
        }
        let line = session.interrupt(line);
        let queue_set =
            EngineQueueSet::new(&session.region, &session.layout, index, line).map_err(|_| Errno::ENOBUFS)?;
        match self.engine.add_queue_set(id) {
            Some(QueueSetId(given)) if given == index => session.queue_sets.push(queue_set),
            _ => return Err(Errno::ENOBUFS),
        }
        Ok((Reply::QueueSet { index }, vec![receiver]))
    }
}
