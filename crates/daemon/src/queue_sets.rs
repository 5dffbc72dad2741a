//! Queue sets of sessions, of which the first says that a session's host has mapped its region. Called by `attach`.

use crate::control_server::socket::Answer;
use crate::irq_names::IrqNames;
use crate::session::{Session, Sessions};
use std::os::fd::OwnedFd;
use toe_abi::attach::Reply;
use toe_abi::errno::Errno;
use toe_base::{QueueSetId, SessionId};
use toe_engine::Engine;
use toe_ring::{EngineQueueSet, Region};

/// Before the first one the host has mapped the region, which is to be settled then: until that is done, the engine does not touch it.
pub(crate) fn take_unsettled(session: &mut Session) -> Option<(Region, OwnedFd)> {
    Some((session.region.clone(), session.unsettled.take()?))
}

pub(crate) fn add(
    engine: &mut Engine,
    irq_names: &mut IrqNames,
    sessions: &mut Sessions,
    id: SessionId,
) -> Answer {
    let (line, receiver) = irq_names.interrupt().map_err(|_| Errno::EMFILE)?;
    crate::sys::refuse_descriptors(&receiver);
    let session = sessions.get_mut(id).ok_or(Errno::EINVAL)?;
    let next = session.queue_sets.len();
    let index = u8::try_from(next).map_err(|_| Errno::ENOBUFS)?;
    if u32::from(index) >= session.layout.queue_sets {
        return Err(Errno::ENOBUFS);
    }
    let line = session.interrupt(line);
    let queue_set =
        EngineQueueSet::new(&session.region, &session.layout, index, line).map_err(|_| Errno::ENOBUFS)?;
    match engine.add_queue_set(id) {
        Some(QueueSetId(given)) if given == index => session.queue_sets.push(queue_set),
        _ => return Err(Errno::ENOBUFS),
    }
    Ok((Reply::QueueSet { index }, vec![receiver]))
}
