//! The memory of the program, and what it was told.

use std::collections::{BTreeMap, VecDeque};
use toe_abi::command::FlowInfo;
use toe_abi::region::RegionLayout;
use toe_base::{FlowId, Instant, SessionId};
use toe_engine::kit::{FakeHosts, hand_over};
use toe_engine::{Delivered, Engine, Incoming, STAGING_LEN};
use zerocopy::FromBytes;

pub(super) const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 1, flows: 64, receive_len: 32 << 20, send_len: 16 << 20 };

#[derive(Debug)]
pub(super) struct Memory {
    pub(super) host: FakeHosts,
    /// Datagrams that the program has not asked for yet.
    pub(super) heard: VecDeque<Vec<u8>>,
}

impl Memory {
    pub(super) fn new(session: SessionId) -> Memory {
        // The system gives pages as they are touched.
        let memory = [(SessionId(0), STAGING_LEN), (session, LAYOUT.len())]
            .map(|(id, len)| (id, vec![0; len as usize]));
        let host = FakeHosts { memory: BTreeMap::from(memory), ..FakeHosts::default() };
        Memory { host, heard: VecDeque::new() }
    }

    /// Takes what came for its socket.
    pub(super) fn take(&mut self, now: Instant, engine: &mut Engine, incoming: Option<Incoming<'_>>) {
        hand_over(now, engine, &mut self.host, incoming, |_, incoming| match incoming {
            Incoming::Datagram(one) => {
                self.heard.push_back(one.datagram.text.to_vec());
                Delivered::ByLane
            }
            Incoming::Error(_) => Delivered::Nowhere,
        });
    }

    /// What the session is told of a flow.
    pub(super) fn info(&self, session: SessionId, flow: FlowId) -> Option<FlowInfo> {
        let at = self.host.memory.get(&session)?.get(LAYOUT.flow_info(flow.slot()) as usize..)?;
        Some(FlowInfo::read_from_prefix(at).ok()?.0)
    }
}
