//! What an engine is made of beside its connections, its listeners and its names.

use crate::control::arp::Neighbours;
use crate::control::cookie::SpentCookies;
use crate::control::fast_open::Servers;
use crate::control::fragments::Fragments;
use crate::control::route::Routes;
use crate::control::steer::Shared;
use crate::egress::waiting::WaitingSegments;
use crate::flow::key::FlowKey;
use crate::hostif::anchors::Anchors;
use crate::hostif::captures::Capture;
use crate::hostif::channels::Channels;
use crate::hostif::closing::Closing;
use crate::hostif::outbox::Outbox;
use crate::hostif::session::Sessions;
use crate::hostif::users::{Quotas, STAGING_LEN, UserIdx};
use crate::sched::fair::FairList;
use crate::udp::Lanes;
use crate::work::{ControlFrame, Link};
use std::collections::VecDeque;
use toe_base::{NetNs, PortId};
use toe_tcp::limit::RateLimit;
use toe_tcp::segment::Segment;

/// Resets for segments of no connection.
const RESETS_A_SECOND: u32 = 4000;

/// The host interface: what sessions have, and what is to be told them.
#[derive(Debug)]
pub(super) struct HostInterface {
    pub sessions: Sessions,
    /// Who has something to be told.
    pub outbox: Outbox,
    pub anchors: Anchors,
    pub channels: Channels,
    pub lanes: Lanes<UserIdx>,
    /// Closed sessions that have something still.
    pub closing: VecDeque<Closing>,
    pub capture: Capture,
}

impl HostInterface {
    pub fn new(flows_max: usize, quotas: Quotas, netns: NetNs) -> HostInterface {
        HostInterface {
            sessions: Sessions::new(STAGING_LEN, quotas, netns),
            outbox: Outbox::new(flows_max),
            anchors: Anchors::default(),
            channels: Channels::default(),
            lanes: Lanes::default(),
            closing: VecDeque::new(),
            capture: Capture::default(),
        }
    }
}

/// The layer below TCP and UDP: links, and how their packets travel.
#[derive(Debug)]
pub(super) struct IpLayer {
    pub ports: Vec<Port>,
    pub loopback: Loopback,
    pub routes: Routes,
    pub steering: Shared,
    pub fragments: Fragments,
}

impl IpLayer {
    pub fn new(flows_max: usize) -> IpLayer {
        let loopback = Loopback { ready: FairList::new(flows_max), control: VecDeque::new() };
        IpLayer {
            ports: Vec::new(),
            loopback,
            routes: Routes::default(),
            steering: Shared::default(),
            fragments: Fragments::default(),
        }
    }

    pub fn add_port(&mut self, link: Link, flows_max: usize) -> PortId {
        self.ports.push(Port {
            link,
            shared: false,
            neighbours: Neighbours::default(),
            control: VecDeque::new(),
            waiting: WaitingSegments::default(),
            ready: FairList::new(flows_max),
        });
        PortId(self.ports.len() as u8 - 1)
    }
}

/// One port as the engine sees it.
#[derive(Debug)]
pub(super) struct Port {
    pub link: Link,
    /// Its addresses, routes and neighbours are the kernel's.
    pub shared: bool,
    pub neighbours: Neighbours,
    pub control: VecDeque<ControlFrame>,
    pub waiting: WaitingSegments,
    pub ready: FairList,
}

/// From one local end to the other: no link is between them.
#[derive(Debug)]
pub(super) struct Loopback {
    pub ready: FairList,
    /// Lone segments (resets).
    pub control: VecDeque<(FlowKey, Segment)>,
}

/// What is remembered of peers past their connections.
#[derive(Debug)]
pub(super) struct Peers {
    /// Those that our programs have opened connections to with bytes in the SYN, or may.
    pub servers: Servers,
    pub spent_cookies: SpentCookies,
    pub resets: RateLimit,
}

impl Peers {
    pub fn new(secret: [u8; 16]) -> Peers {
        Peers {
            servers: Servers::default(),
            spent_cookies: SpentCookies::default(),
            resets: RateLimit::new(secret, RESETS_A_SECOND),
        }
    }
}
