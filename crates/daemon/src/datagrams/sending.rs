//! What programs' sockets send by the engine's links: shown, taken out of their lanes some at a time, and let go of. Called by `attach` and by the
//! run loop.

use super::from_socket::{self, BYTES_AS_ONE, FromSocket};
use super::unsent::Unsent;
use crate::control_server::ask::TwinGone;
use crate::control_server::socket::Answer;
use crate::session::Sessions;
use std::os::fd::OwnedFd;
use toe_abi::attach::{Reply, Use};
use toe_abi::errno::Errno;
use toe_abi::lane::LaneLayout;
use toe_base::{DatagramId, Endpoint, Instant, SessionId};
use toe_engine::udp::Presented;
use toe_engine::{ControlEvent, Engine, NewEnd, OpenedDatagrams};
use toe_ring::{LaneMemory, LaneReceiver, LaneSender};

/// Datagrams of all of a session's sockets taken in one turn: some of the most that a record can hold, or many small ones.
const DATAGRAMS_PER_ROUND: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct DatagramSenders {
    pub(crate) unsent: Unsent,
    /// The bytes of a datagram, kept for its memory.
    text: Vec<u8>,
}

impl DatagramSenders {
    /// A program shows a socket for what comes and goes by the engine's links.
    pub(crate) fn open(
        &mut self,
        now: Instant,
        (engine, sessions): (&mut Engine, &mut Sessions),
        session: SessionId,
        what: (Use, Endpoint),
        presented: &Presented,
    ) -> Answer {
        if !sessions.datagrams.is_open() {
            return Err(Errno::EOPNOTSUPP);
        }
        // What it has closed of others is free for this one.
        self.take_some(now, engine, sessions, session);
        sweep(now, engine, sessions, session);
        let opened = engine.open_datagrams(now, session, what, presented)?;
        let OpenedDatagrams { end, source, path_mtu, link_mtu } = opened;
        let reply = |ring_len| Reply::Datagrams { ring_len, source, path_mtu, link_mtu };
        let Some(NewEnd { id, ring_len }) = end else {
            return Ok((reply(0), Vec::new()));
        };
        match make_lanes(sessions, session, id, ring_len) {
            Ok(files) => Ok((reply(ring_len), files.into())),
            Err(error) => {
                tracing::debug!(%error, "no lanes to a socket");
                engine.handle_control(now, ControlEvent::DatagramsClosed(session, id), sessions);
                Err(Errno::ENOMEM)
            }
        }
    }

    /// Takes what a session's sockets send, as much as a turn is long: who fills his lane as fast as it is read has no longer one. Returns how
    /// much it was.
    pub(crate) fn take_some(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        sessions: &mut Sessions,
        id: SessionId,
    ) -> usize {
        let most = DATAGRAMS_PER_ROUND;
        let count = sessions.get(id).map_or(0, |session| session.datagrams.len());
        let mut taken = 0;
        for at in (0..count).rev() {
            if !has_some(sessions, (id, at)) {
                continue;
            }
            // One look at the ports in a turn, not one for each socket: who has many is not to have them taken for stuck.
            if taken >= most || !engine.takes_datagrams() {
                // The one that is next in turn is the last of the list then.
                if let Some(session) = sessions.get_mut(id) {
                    let behind = session.datagrams.len().saturating_sub(1 + at);
                    session.datagrams.rotate_right(behind);
                }
                break;
            }
            taken += self.take_of(now, engine, sessions, (id, at), most.saturating_sub(taken));
        }
        taken
    }

    fn take_of(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        sessions: &mut Sessions,
        (id, at): (SessionId, usize),
        most: usize,
    ) -> usize {
        let mut taken = 0;
        while taken < most && has_some(sessions, (id, at)) && engine.takes_datagrams() {
            let session = sessions.get_mut(id);
            let Some(socket) = session.and_then(|session| session.datagrams.get_mut(at)) else { break };
            let end = socket.id;
            match socket.take(&mut self.text) {
                Some(header) => {
                    let (count, incoming) = engine.handle_datagrams(now, end, &header, &self.text);
                    sessions.hand_over(now, engine, incoming);
                    taken += count;
                    taken += self.text.len() / BYTES_AS_ONE;
                }
                None => {
                    // It is empty and closed: the host has left.
                    close(now, engine, sessions, (id, at));
                    return taken + 1;
                }
            }
        }
        taken
    }

    /// A session is about to end: what its sockets have sent is to be sent all the same.
    pub(crate) fn keep_all(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        sessions: &mut Sessions,
        session: SessionId,
    ) {
        let Some(of_session) = sessions.get_mut(session) else { return };
        let account = of_session.schedule.account;
        let mut sockets = std::mem::take(&mut of_session.datagrams);
        sessions.leave_unsettled(from_socket::unsettled(&mut sockets), std::iter::once(session));
        for socket in sockets {
            self.unsent.keep(now, (engine, sessions), account, socket);
        }
    }

    /// The kernel has the socket no more, whichever sessions had it.
    pub(crate) fn socket_gone(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        sessions: &mut Sessions,
        TwinGone { identity, looked_at }: TwinGone,
    ) {
        let ends = engine.view().datagram_ends(identity);
        for &id in &ends {
            for session in sessions.live().to_vec() {
                let Some(session) = sessions.get_mut(session) else { continue };
                let account = session.schedule.account;
                if let Some(at) = session.datagrams.iter().position(|socket| socket.id == id) {
                    let socket = session.datagrams.swap_remove(at);
                    self.unsent.keep(now, (engine, sessions), account, socket);
                }
            }
        }
        engine.handle_control(now, ControlEvent::SocketGone(identity, looked_at), sessions);
        ends.into_iter().for_each(|id| sessions.datagrams.remove(id));
    }
}

fn make_lanes(
    sessions: &mut Sessions,
    session: SessionId,
    id: DatagramId,
    ring_len: u32,
) -> rustix::io::Result<[OwnedFd; 2]> {
    let (to_socket, to_socket_file) = LaneMemory::create(LaneLayout::from_engine(ring_len))?;
    let (from_socket, from_socket_file) = LaneMemory::create(ring_len)?;
    // Nobody else has it yet.
    let mut end = LaneReceiver::new(from_socket);
    end.open();
    let mut unsettled = Vec::new();
    for (memory, file) in [(&to_socket, &to_socket_file), (end.lane(), &from_socket_file)] {
        memory.region().withhold();
        unsettled.push((memory.region().clone(), rustix::io::fcntl_dupfd_cloexec(file, 0)?));
    }
    if let Some(session) = sessions.get_mut(session) {
        session.datagrams.push(FromSocket { id, end, unsettled });
        let (account, user) = (session.schedule.account, session.user().clone());
        sessions.datagrams.add(id, LaneSender::new(to_socket), account, user);
    }
    Ok([to_socket_file, from_socket_file])
}

fn has_some(sessions: &Sessions, (id, at): (SessionId, usize)) -> bool {
    let session = sessions.get(id);
    session.is_some_and(|session| session.datagrams.get(at).is_some_and(FromSocket::has_events))
}

/// Lets go of what a session has closed.
fn sweep(now: Instant, engine: &mut Engine, sessions: &mut Sessions, id: SessionId) {
    let count = sessions.get(id).map_or(0, |session| session.datagrams.len());
    for at in (0..count).rev() {
        let session = sessions.get_mut(id);
        if session.is_some_and(|session| session.datagrams.get_mut(at).is_some_and(FromSocket::is_left)) {
            close(now, engine, sessions, (id, at));
        }
    }
}

fn close(now: Instant, engine: &mut Engine, sessions: &mut Sessions, (id, at): (SessionId, usize)) {
    let Some(session) = sessions.get_mut(id).filter(|session| at < session.datagrams.len()) else {
        return;
    };
    let memory = from_socket::unsettled(&mut session.datagrams[at..=at]);
    let end = session.datagrams.swap_remove(at).id;
    sessions.leave_unsettled(memory, std::iter::once(id));
    sessions.datagrams.remove(end);
    engine.handle_control(now, ControlEvent::DatagramsClosed(id, end), sessions);
}
