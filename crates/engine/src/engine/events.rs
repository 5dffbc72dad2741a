//! What is done without anybody waiting for an answer: work that needs no link, and what has happened outside: descriptors and sockets are gone, a session broke its contract, memory of a
//! channel was made. Each goes to the file that it is about.

use super::Engine;
use crate::control::event::ControlEvent;
use crate::hostif::users::Resource;
use toe_base::Instant;
use toe_tcp::memory::HostMemory;

impl Engine {
    /// Does what no link is needed for: takes some more connections from sessions that are closed, and moves segments between two
    /// local ends, at most `budget` of them. Returns how many both were.
    pub fn poll_local<H: HostMemory>(&mut self, now: Instant, host: &mut H, budget: usize) -> usize {
        self.planes(now, host).leave_some() + self.planes(now, host).move_local(budget)
    }

    /// Something has happened that nobody waits for an answer to.
    #[inline]
    pub fn handle_control<H: HostMemory>(&mut self, now: Instant, event: ControlEvent, host: &mut H) {
        match event {
            ControlEvent::LastClose(anchor) => self.planes(now, host).anchor_closed(anchor),
            ControlEvent::Shared(anchor) => {
                let owner = self.hostif.anchors.leave_owner(anchor);
                let owner = owner.and_then(|owner| self.hostif.sessions.get_mut(owner));
                owner.into_iter().for_each(|owner| owner.counts.anchors -= 1);
            }
            ControlEvent::SocketGone(identity, looked_at) => {
                self.records().accepting(now, host).twin_gone((identity, looked_at));
                self.datagrams().socket_gone(identity);
            }
            ControlEvent::Fenced(session, reason) => self.planes(now, host).fence(session, reason),
            ControlEvent::HandedOver(what) => {
                self.datagrams().handed_over(what);
                self.records().show_unsettled();
            }
            ControlEvent::DatagramsClosed(session, id) => self.datagrams().close(session, id),
            ControlEvent::SenderLingers(id) => self.udp.sockets.keep_sender(id),
            ControlEvent::SenderForgotten(id) => self.udp.sockets.forget_sender(id),
            ControlEvent::Left(lane) => self.hostif.end_lane(lane),
            ControlEvent::ChannelMade(channel) => self.hostif.offer_channel(&mut self.counters, channel),
            ControlEvent::ChannelRefused(channel) => {
                // Its connections stay, and ask again later.
                let payer = self.hostif.channels.refused(channel);
                self.hostif.give(payer, Resource::Channels);
            }
            ControlEvent::ChannelSettled(channel) => self.hostif.channels.settled(channel),
            ControlEvent::Captures(rules) => self.records().set_captures(rules),
            ControlEvent::Process(session, pid) => self.hostif.capture.note_process(session, pid),
            ControlEvent::GivenBack { session, offset, len, gone } => {
                self.hostif.handle_given_back(session, offset, len, gone);
            }
        }
    }
}
