//! Deadlines: which is next, and what happens when they pass.

use super::{Engine, soonest};
use crate::counter::Counter;
use crate::hostif::users::UserIdx;
use crate::store::time_waits::TimeWaitFlow;
use crate::work::Path;
use toe_base::Instant;
use toe_tcp::memory::HostMemory;
use toe_tcp::state::TcpState;
use toe_tcp::time_wait::TIME_WAIT_US;
use toe_tcp::{soft_error, timeout};

/// Flows whose time has come that are looked after in one call.
const TIMEOUTS_AT_ONCE: usize = 512;

impl Engine {
    /// When the engine wants [`Engine::handle_timeout`] called; `FAR_FUTURE` when nothing waits for time.
    pub fn poll_timeout(&self) -> Instant {
        let neighbours = self.ip.ports.iter().map(|p| p.neighbours.next_deadline());
        let others = [
            self.flows.wheel.next_deadline(),
            self.flows.time_waits.next_deadline(),
            self.listeners.next_due(),
            self.ip.fragments.next_deadline(),
            self.protocols.next_deadline(),
        ];
        soonest(neighbours.chain(others))
    }

    /// Time has passed.
    pub fn handle_timeout<H: HostMemory>(&mut self, now: Instant, host: &mut H) {
        // Those that are left are due still, and come with the next call: a program decides how many wait for one moment.
        for _ in 0..TIMEOUTS_AT_ONCE {
            let Some(idx) = self.flows.wheel.pop_due(now) else { break };
            if !self.flows.is_used(idx) {
                continue;
            }
            let flow = self.flows.get(idx);
            if flow.tcb.timers.linger() <= now && flow.tcb.state == TcpState::TimeWait && flow.tcb.is_local {
                let (conn, until) = (&flow.conn, now.after_us(TIME_WAIT_US));
                let name = (conn.key.scope, conn.key.local);
                self.names.in_use.keep((now, until), name, conn.sharing, conn.user);
            }
            self.edit(idx, |engine, idx| {
                let (flow, path) = engine.flows.with_path_mut(idx);
                let timeouts = flow.tcb.sending.timeouts;
                let event = timeout::on_timeout(&mut flow.tcb, path, &mut engine.tcp, now);
                let is_late = flow.tcb.sending.timeouts > timeouts
                    && flow.tcb.sending.timeouts >= soft_error::PATH_RETRIES;
                if let (true, Path::Port { port, neighbour }) = (is_late, flow.conn.path) {
                    engine.ip.ports[port.index()].neighbours.doubt(neighbour);
                }
                if flow.tcb.timers.release <= now {
                    flow.tcb.timers.release = Instant::FAR_FUTURE;
                    let (held, data_nxt) =
                        (flow.tcb.receiving.held.ranges(&engine.tcp.held), flow.tcb.data_nxt());
                    let arena =
                        engine.hostif.sessions.arena(flow.tcb.receiving.buffer.session, flow.conn.user);
                    flow.tcb.receiving.buffer.release_if_empty(arena, host, held, data_nxt);
                }
                engine.records().fast_open_timeout(now, *idx);
                engine.planes(now, host).apply(idx, event);
            });
        }
        self.records().time_waits_timeout(now, TIMEOUTS_AT_ONCE);
        self.records().accepting(now, host).tell_waiting_when_due();
        for path in self.links().neighbours_timeout(now) {
            self.records().neighbour_lost(path);
        }
        if self.protocols.next_deadline() <= now {
            let sent = self.protocols.on_timeout(now);
            self.ip.send_packets(&mut self.counters, sent);
        }
        (0..self.ip.fragments.on_timeout(now)).for_each(|_| self.counters.add(Counter::DropFragmentTimeout));
    }

    /// Rebuilds everything that is derived from the records: lookup index, timer wheel, ready lists. After it the
    /// engine goes on as if nothing had happened; that it can is what "a flow is plain data" means (design,
    /// principle 3).
    pub fn rebuild_derived(&mut self) {
        self.names.in_use.clear();
        self.hostif.outbox.clear_flows();
        self.ip.loopback.ready.clear();
        for port in &mut self.ip.ports {
            port.ready.clear();
        }
        for idx in self.flows.rebuild() {
            let flow = self.flows.get(idx);
            if flow.conn.indexed {
                let (key, sharing, user) = (flow.conn.key, flow.conn.sharing, flow.conn.user);
                self.names.in_use.add(key.scope, key.local, sharing, user);
            }
            self.edit(idx, |_, _| {});
        }
        for (_, TimeWaitFlow { key, sharing, .. }) in self.flows.time_waits.iter() {
            self.names.in_use.add(key.scope, key.local, *sharing, UserIdx::NOBODY);
        }
    }
}
