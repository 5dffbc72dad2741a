//! Session memory and completions without shared memory: what the daemon does over rings, done over a `Vec`.

use std::collections::VecDeque;
use toe_abi::command::FlowInfo;
use toe_abi::entry::Completion;
use toe_abi::region::RegionLayout;
use toe_base::{DatagramId, FlowId, SessionId};
use toe_engine::kit::tell;
use toe_engine::{Delivered, Engine, GivenBack, HostMemory, HostSide, RxDatagram, STAGING_LEN};
use zerocopy::FromBytes;

pub(super) const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 1, flows: 64, receive_len: 32 << 20, send_len: 16 << 20 };

/// Freed memory is spoilt with this, so that whoever still reads it notices.
const SPOILT: u8 = 0xdd;

#[derive(Debug, Default)]
pub(super) struct Memory {
    staging: Vec<u8>,
    region: Vec<u8>,
    pub(super) completions: VecDeque<Completion>,
    /// Datagrams that the program has not asked for yet.
    pub(super) heard: VecDeque<Vec<u8>>,
}

impl Memory {
    fn bytes(&mut self, session: SessionId) -> &mut Vec<u8> {
        let (bytes, len) =
            if session.0 == 0 { (&mut self.staging, STAGING_LEN) } else { (&mut self.region, LAYOUT.len()) };
        if bytes.is_empty() {
            // The system gives pages as they are touched.
            *bytes = vec![0; len as usize];
        }
        bytes
    }

    /// Takes what the engine has to tell.
    pub(super) fn hear(&mut self, engine: &mut Engine) {
        tell(
            engine,
            self,
            |_, _| usize::MAX,
            |memory, _, completion| memory.completions.push_back(completion),
        );
    }

    /// What the session is told of a flow.
    pub(super) fn info(&self, flow: FlowId) -> Option<FlowInfo> {
        let at = self.region.get(LAYOUT.flow_info(flow.slot()) as usize..)?;
        Some(FlowInfo::read_from_prefix(at).ok()?.0)
    }

    fn range(&mut self, session: SessionId, offset: u64, len: usize) -> &mut [u8] {
        &mut self.bytes(session)[offset as usize..][..len]
    }
}

impl HostMemory for Memory {
    fn write(&mut self, session: SessionId, offset: u64, bytes: &[u8]) {
        self.range(session, offset, bytes.len()).copy_from_slice(bytes);
    }

    fn read(&mut self, session: SessionId, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(self.range(session, offset, out.len()));
    }

    fn copy(&mut self, from: (SessionId, u64), to: (SessionId, u64), len: u32) {
        let bytes = self.range(from.0, from.1, len as usize).to_vec();
        self.write(to.0, to.1, &bytes);
    }

    fn give_back(&mut self, session: SessionId, offset: u64, len: u32) -> GivenBack {
        self.range(session, offset, len as usize).fill(SPOILT);
        GivenBack::Now
    }
}

impl HostSide for Memory {
    fn deliver_datagram(&mut self, _: Option<DatagramId>, datagram: &RxDatagram<'_>) -> Delivered {
        self.heard.push_back(datagram.text.to_vec());
        Delivered::ByLane
    }
}
