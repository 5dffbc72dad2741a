//! What the driver tells of sessions, anchors, sockets and lanes, past frames, entries and the network
//! ([`crate::control::network`]).

use crate::work::{CaptureRule, HandedOver};
use toe_abi::attach::FenceReason;
use toe_base::{AnchorHandle, ChannelId, DatagramId, Instant, LaneId, SessionId};

/// Something has happened, and nobody waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// The last descriptor of an anchor was closed, whoever held it.
    LastClose(AnchorHandle),
    /// The anchor is not for its session alone any more: once it is closed it is not used again. One that could not be made is shared,
    /// and closed at once.
    Shared(AnchorHandle),
    /// A kernel socket that was shown is gone or listens no more, by what the kernel calls it: the name is whoever's the kernel says.
    /// Listeners that rest on no other are closed as if their program had closed them; connections live on. It was so at this time: as what it was seen
    /// later it is there.
    SocketGone(u64, Instant),
    /// A session broke the contract: its flows are reset and it is counted. The driver then takes its memory away and closes it.
    Fenced(SessionId, FenceReason),
    /// A host has closed its lane to the engine.
    DatagramsClosed(SessionId, DatagramId),
    /// What such an end has sent goes on being taken when it is gone, until its sender is forgotten.
    SenderLingers(DatagramId),
    SenderForgotten(DatagramId),
    /// What came for a socket was handed over ([`crate::Incoming::became`]).
    HandedOver(HandedOver),
    /// One of the two has left the lane, or it has no memory.
    Left(LaneId),
    /// The memory of a channel that the engine asked for is there, or there is none, or nobody can punch holes into it any more
    /// ([`crate::ChannelRequest`]).
    ChannelMade(ChannelId),
    ChannelRefused(ChannelId),
    ChannelSettled(ChannelId),
    /// What the captures that there are now want, of which one has begun or ended. Connections that one of them wants to see, and
    /// whose bytes go past the engine, come back to it.
    Captures(Box<[CaptureRule]>),
    /// A session is that process's, for captures.
    Process(SessionId, u32),
    /// What [`crate::GivenBack::Later`] was said of is over: `gone`, or the pages stay. Of each range once, and not of the region
    /// of a session that is forgotten: its number may be another's.
    GivenBack {
        session: SessionId,
        offset: u64,
        len: u32,
        gone: bool,
    },
}
