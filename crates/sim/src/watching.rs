//! Captures begin and end while programs go on, as when somebody runs `toe capture`. What they are shown is checked by
//! [`crate::checkers::captures`].

use crate::checkers::Checker;
use crate::checkers::captures::DirectEnd;
use crate::memory::Memory;
use crate::node::Node;
use crate::run::Mishap;
use crate::tally::Tally;
use crate::trace::About;
use crate::world::{What, World};
use toe_abi::capture::Filter;
use toe_abi::capture::filter::Ends;
use toe_engine::flow::key::FlowKey;
use toe_engine::{ControlEvent, Counter, DriverRequest, Engine, FlowAudit};
use toe_wire::link::{RxOffload, TxOffload};

/// Captures at one time; each packet is shown to every one of them.
const CAPTURES_MAX: usize = 4;
/// How long one lasts at most.
const LASTS_US: u32 = 10_000_000;

impl World {
    pub fn begin_capture(&mut self, at: usize) {
        if self.nodes[at].memory.captures.len() >= CAPTURES_MAX {
            return;
        }
        self.tallies.add(Tally::Captures);
        let filter = self.some_filter();
        self.trace.event(self.now_us, About::node(at), "capture", format_args!("{filter:?}"));
        let node = &mut self.nodes[at];
        let clock = node.clock(self.now_us);
        node.check_local_copies();
        let direct = node.direct_ends();
        node.memory.captures.begin(filter, direct.iter().copied());
        let asked = |ends: &[DirectEnd]| ends.iter().filter(|end| end.is_asked).count();
        node.engine.handle_control(
            clock,
            ControlEvent::Captures(node.memory.captures.rules()),
            &mut node.memory,
        );
        self.tallies.add_many(Tally::YieldedToCaptures, (asked(&node.direct_ends()) - asked(&direct)) as u64);
        let found = node.memory.captures.all_are_asked(node.direct_ends().into_iter());
        self.verdict.check(Checker::Captures, found);
        node.touched = true;
        let until_us = self.now_us + 1 + u64::from(self.watched.any_size(LASTS_US));
        self.schedule(until_us, What::Fault(Mishap::WatchedNoMore { node: at }));
    }

    /// All packets, those of some listeners' ports, or none.
    fn some_filter(&mut self) -> Filter {
        let random = &mut self.watched;
        match random.below(5) {
            0..2 => Filter::All,
            2..4 => {
                let first = 7000 + random.below(3) as u16;
                Filter::Ports { ends: Ends::Either, first, last: first + random.below(2) as u16 }
            }
            _ => Filter::Not(Box::new(Filter::All)),
        }
    }

    /// Any of those that are on; the engine hears of the last one's end.
    pub fn end_some_capture(&mut self, at: usize) {
        let count = self.nodes[at].memory.captures.len();
        if count > 0 {
            let number = self.watched.below(count as u32) as usize;
            self.end_capture(at, number);
        }
    }

    fn end_capture(&mut self, at: usize, number: usize) {
        self.trace.event(self.now_us, About::node(at), "capture", format_args!("{number} ends"));
        let node = &mut self.nodes[at];
        let clock = node.clock(self.now_us);
        node.check_local_copies();
        node.memory.captures.end(number);
        let rules = node.memory.captures.rules();
        node.engine.handle_control(clock, ControlEvent::Captures(rules), &mut node.memory);
    }

    pub fn end_captures(&mut self) {
        for at in 0..self.nodes.len() {
            while !self.nodes[at].memory.captures.is_empty() {
                self.end_capture(at, 0);
            }
        }
    }

    /// Whether connections that captures want keep to the engine.
    pub fn check_channels(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let watches = self.swarm.driver.watches > 0 && !self.healed;
        if watches && !node.direct_ends().is_empty() && self.watched.one_in(8) {
            // A local connection that uses a channel is rare and soon over: a capture comes to see it.
            let soon_us = self.now_us + 1 + u64::from(self.watched.any_size(1000));
            self.schedule(soon_us, What::Fault(Mishap::Watched { node: Some(at) }));
        }
        let node = &mut self.nodes[at];
        if !node.memory.captures.is_empty() {
            let direct = node.direct_ends();
            let is_all_told = !node.engine.view().has_blocked_completions();
            let found = node.memory.captures.none_began(&direct, is_all_told);
            self.verdict.check(Checker::Captures, found);
        }
    }
}

impl Node {
    /// Each end that uses a channel.
    pub fn direct_ends(&self) -> Vec<DirectEnd> {
        let asked = self.engine.view().audit_flows().filter(|end| end.is_asked);
        let asked: Vec<FlowKey> = asked.map(|end| end.key).collect();
        let of = |end: FlowAudit| {
            let FlowAudit { key, owner, is_asked, .. } = end;
            DirectEnd { key, owner, is_asked, is_peer_asked: asked.contains(&key.reversed()) }
        };
        self.engine.view().audit_flows().filter(|end| end.is_direct).map(of).collect()
    }

    pub fn check_local_copies(&mut self) {
        self.memory.gather(&mut self.engine);
        let found = self.memory.captures.moved(self.engine.view().counter(Counter::LocalSegments));
        self.memory.verdict.check(Checker::Captures, found);
    }
}

impl Memory {
    /// Takes what is to be shown, and keeps what the engine wants besides until that is served.
    pub fn gather(&mut self, engine: &mut Engine) {
        while let Some(request) = engine.poll_request() {
            match request {
                DriverRequest::Show(captured) => self.captures.show(captured, &mut self.verdict),
                request => self.requests.push_back(request),
            }
        }
    }

    pub fn check_arrived(&mut self, engine: &mut Engine, frame: &[u8], offload: RxOffload) {
        self.gather(engine);
        let found = self.captures.arrived(frame, offload);
        self.verdict.check(Checker::Captures, found);
    }

    pub fn check_sent(&mut self, engine: &mut Engine, frames: &[(Vec<u8>, TxOffload)]) {
        self.gather(engine);
        let found = self.captures.sent(frames);
        self.verdict.check(Checker::Captures, found);
    }
}
