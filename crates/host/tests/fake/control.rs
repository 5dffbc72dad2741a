//! The engine's end of the attach socket: requests of hosts and their answers.

use super::{LAYOUT, PEER, Session, Shared, lock};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use toe_abi::attach::{Message, Reply, Request};
use toe_abi::channel::Side;
use toe_abi::errno::Errno;
use toe_base::FlowId;
use toe_ring::{EngineQueueSet, EventFd, Region, irq_pair};
use zerocopy::IntoBytes;

/// Answers the requests of one connection.
pub(super) fn serve(connection: &OwnedFd, shared: &Mutex<Shared>) {
    let mut mine = None;
    while let Some((request, presented)) = receive(connection) {
        let mut fds: HashMap<usize, OwnedFd> = HashMap::new();
        let mut shared = lock(shared);
        let reply = match request {
            Request::Hello { .. } => {
                let session = shared.sessions.len();
                let (region, [memory, to_read]) =
                    Region::create_for(&LAYOUT, session as u16).expect("memory");
                let bell = EventFd::new().expect("an eventfd");
                fds.insert(0, memory);
                fds.insert(1, to_read);
                fds.insert(2, rustix::io::dup(&bell).expect("a descriptor"));
                let looks = toe_ring::EngineLooks::new().expect("memory");
                fds.insert(3, rustix::io::dup(&looks).expect("a descriptor"));
                fds.insert(4, std::fs::File::open(&shared.anchors).expect("a directory").into());
                shared.sessions.push(Session { bell, region, queue_sets: Vec::new(), receive_at: 0 });
                mine = Some(session);
                Reply::Welcome { session: session as u16, layout: LAYOUT }
            }
            Request::AddQueueSet => {
                let session_number = mine.expect("Hello came first");
                let index = shared.sessions[session_number].queue_sets.len() as u8;
                let name = shared.anchors.join(format!("interrupt-{session_number}-{index}"));
                let (line, receiver) = irq_pair(name).expect("a socket");
                let session = &mut shared.sessions[session_number];
                let queue = EngineQueueSet::new(&session.region, &LAYOUT, index, line).expect("a queue set");
                session.queue_sets.push(queue);
                fds.insert(0, receiver);
                Reply::QueueSet { index }
            }
            Request::TakeAnchors { count } => {
                let first = shared.anchors_made;
                shared.anchors_made += count;
                for anchor in first..shared.anchors_made {
                    std::fs::create_dir(shared.anchors.join(anchor.to_string())).expect("an anchor");
                }
                Reply::Anchors { first, count }
            }
            Request::ShowTwin => {
                shared.presented += presented.len() as u32;
                Reply::Handle { handle: 7 }
            }
            Request::Claim { queue_set, .. } if !shared.claims.is_empty() => {
                let reply = shared.claims.remove(0);
                if let Reply::ClaimedFlow { flow, .. } = reply
                    && !shared.unread.is_empty()
                {
                    let (flow, unread) = (FlowId::from_raw(flow), std::mem::take(&mut shared.unread));
                    let session = mine.expect("Hello came first");
                    shared.sessions[session].data(queue_set.into(), flow, &unread);
                }
                reply
            }
            Request::OpenChannel { channel } => {
                let (memory, _) = &shared.channels[&channel];
                fds.insert(0, rustix::io::dup(memory).expect("a descriptor"));
                // Nobody sleeps at the other end.
                fds.insert(1, rustix::pipe::pipe().expect("a pipe").1);
                Reply::Channel { side: Side::Zero, peer: PEER }
            }
            Request::Relinquish { .. } if shared.refuses_relinquish.is_some() => {
                let errno = shared.refuses_relinquish.unwrap_or(Errno::EINVAL);
                Reply::Refused { errno: errno.0, version: toe_abi::INTERFACE_VERSION }
            }
            Request::Relinquish { flow, unread } => {
                let mut bytes = vec![0; unread.data.len as usize];
                let session = &shared.sessions[mine.expect("Hello came first")];
                session.region.read(unread.data.offset, &mut bytes).expect("a range of the region");
                shared.relinquished.push((flow, bytes));
                shared.given_back.push(unread);
                Reply::Done
            }
            _ => Reply::Refused { errno: toe::errno::ENOENT.0, version: toe_abi::INTERFACE_VERSION },
        };
        drop(shared);
        let fds: Vec<OwnedFd> = (0..fds.len()).filter_map(|at| fds.remove(&at)).collect();
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !borrowed.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&borrowed));
        }
        let message = reply.encode();
        let packet = [IoSlice::new(message.as_bytes())];
        if rustix::net::sendmsg(connection, &packet, &mut control, SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

fn receive(connection: &OwnedFd) -> Option<(Request, Vec<OwnedFd>)> {
    let mut packet = [0u8; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut packet)];
    let got =
        rustix::net::recvmsg(connection, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?.bytes;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let message = Message::parse(packet.get(..got)?).ok()?;
    Request::decode(&message).ok().map(|request| (request, fds))
}
