//! The connections' records, and by what they are found: name, deadline, neighbour, port, listener. All but the records is derived from
//! them and can be made anew. Connections in TIME_WAIT that no program has lie in [`time_waits`].

pub mod time_waits;

use crate::control::arp::NEIGHBOURS_MAX;
use crate::flow::key::{FlowIndex, FlowKey, KeyHolder, TimeWaitIdx};
use crate::flow::lists::FlowLists;
use crate::flow::record::{Aside, AsidePool, Flow, Leftover};
use crate::sched::reclaimables::Reclaimables;
use crate::sched::timer_wheel::TimerWheel;
use crate::work::Path;
use core::marker::PhantomData;
use core::ops::Deref;
use time_waits::{TimeWaitFlow, TimeWaits};
use toe_base::{Addr, FlowIdx, Instant, PortId, SessionId};
use toe_tcp::record::PathState;
use toe_tcp::state::TcpState;

/// The list of orphans whose peers have all bytes, the first that came to that first.
const ACKNOWLEDGED: u32 = 0;

/// Of all records, those that connections in TIME_WAIT may have (Linux: tcp_max_tw_buckets).
const TIME_WAITS_ONE_IN: usize = 2;

/// How many connections no program has any more, and which may go first.
#[derive(Debug)]
struct Leftovers {
    orphans: usize,
    acknowledged: FlowLists,
}

/// Which records are some connection's, and which wait for one.
#[derive(Debug)]
struct RecordUse {
    used: Vec<bool>,
    free: Vec<u32>,
}

/// What of a connection is not in its record.
#[derive(Debug)]
struct RecordParts {
    /// What is known of the path of each.
    paths: Vec<PathState>,
    asides: AsidePool,
}

/// See the module.
#[derive(Debug)]
pub struct FlowStore {
    records: Vec<Flow>,
    parts: RecordParts,
    in_use: RecordUse,
    /// So many there may be. Those that were never in use were never touched, so their pages were not either.
    max: usize,
    index: FlowIndex,
    pub wheel: TimerWheel,
    /// Those with receive memory to spare.
    pub reclaimables: Reclaimables,
    /// Those in TIME_WAIT that no program has.
    pub time_waits: TimeWaits,
    /// By the listener's slot: those that came in there and that no program has taken.
    pub came_in: FlowLists,
    /// By their own port: those over links that share the kernel's address.
    pub on_shared: FlowLists,
    /// By port and neighbour: those that go there.
    by_neighbour: FlowLists,
    leftovers: Leftovers,
}

/// A connection whose record may be changed: none can be without it. [`Edit::run`] alone makes one, and nobody can keep it.
#[derive(Clone, Copy, Debug)]
pub struct Edit<'c>(FlowIdx, PhantomData<&'c ()>);

impl Deref for Edit<'_> {
    type Target = FlowIdx;

    fn deref(&self) -> &FlowIdx {
        &self.0
    }
}

impl Edit<'_> {
    /// Has `change` change the record, then `settle` bring in line what is derived from it, as far as that may have changed.
    #[inline]
    pub fn run<E, R>(
        engine: &mut E,
        idx: FlowIdx,
        change: impl FnOnce(&mut E, Edit<'_>) -> R,
        settle: impl FnOnce(&mut E, Edit<'_>, &R),
    ) -> R {
        let result = change(engine, Edit(idx, PhantomData));
        settle(engine, Edit(idx, PhantomData), &result);
        result
    }
}

/// The connections of a neighbour, among those of all.
fn list_of(port: PortId, neighbour: u16) -> u32 {
    (port.index() * NEIGHBOURS_MAX) as u32 + u32::from(neighbour)
}

impl FlowStore {
    pub fn new(max: usize, secret: &[u8; 16]) -> FlowStore {
        FlowStore {
            records: Vec::with_capacity(max),
            parts: RecordParts { paths: Vec::with_capacity(max), asides: AsidePool::of_smallest(max) },
            in_use: RecordUse { used: Vec::with_capacity(max), free: Vec::new() },
            max,
            index: FlowIndex::new(secret, 1024),
            wheel: TimerWheel::new(max),
            reclaimables: Reclaimables::new(max),
            time_waits: TimeWaits::new((max / TIME_WAITS_ONE_IN).max(1)),
            came_in: FlowLists::new(max),
            on_shared: FlowLists::new(max),
            by_neighbour: FlowLists::new(max),
            leftovers: Leftovers::new(max),
        }
    }

    // ---- records ----

    #[inline]
    pub fn get(&self, idx: FlowIdx) -> &Flow {
        &self.records[idx.index()]
    }

    #[inline]
    pub fn get_mut(&mut self, idx: Edit<'_>) -> &mut Flow {
        &mut self.records[idx.index()]
    }

    /// What is known of its path.
    #[inline]
    pub fn path(&self, idx: FlowIdx) -> &PathState {
        &self.parts.paths[idx.index()]
    }

    /// The record, and what is known of its path.
    #[inline]
    pub fn with_path(&self, idx: FlowIdx) -> (&Flow, &PathState) {
        (self.get(idx), self.path(idx))
    }

    /// The same, to be changed.
    #[inline]
    pub fn with_path_mut(&mut self, idx: Edit<'_>) -> (&mut Flow, &mut PathState) {
        (&mut self.records[idx.index()], &mut self.parts.paths[idx.index()])
    }

    /// What few connections have.
    pub fn aside(&self, idx: FlowIdx) -> Aside {
        self.parts.asides.one(&self.get(idx).conn.aside)
    }

    /// Changes it. It has a place as long as there is something in it.
    pub fn change_aside<T>(&mut self, idx: Edit<'_>, change: impl FnOnce(&mut Aside) -> T) -> T {
        let slot = &mut self.records[idx.index()].conn.aside;
        let mut aside = self.parts.asides.one(slot);
        let result = change(&mut aside);
        if aside == Aside::default() {
            self.parts.asides.vacate(slot);
        } else if let Some(place) = self.parts.asides.one_mut(slot) {
            *place = aside;
        } else {
            debug_assert!(false, "there is a place for each");
        }
        result
    }

    /// Places that asides have.
    pub fn asides(&self) -> usize {
        self.parts.asides.used()
    }

    #[inline]
    pub fn is_used(&self, idx: FlowIdx) -> bool {
        self.in_use.used.get(idx.index()).copied().unwrap_or(false)
    }

    /// Every record in use.
    pub fn indices(&self) -> impl Iterator<Item = FlowIdx> + '_ {
        (0..self.high()).map(FlowIdx).filter(|idx| self.in_use.used[idx.index()])
    }

    /// How many connections there may be.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Connections, those in TIME_WAIT among them.
    pub fn len(&self) -> usize {
        self.records.len() - self.in_use.free.len() + self.time_waits.len()
    }

    /// Records from this one on were never in use.
    pub fn high(&self) -> u32 {
        self.records.len() as u32
    }

    // ---- they come and go ----

    /// A vacant record; `None`: there are as many connections as there may be.
    pub fn alloc(&mut self) -> Option<FlowIdx> {
        if self.len() >= self.max {
            return None;
        }
        if let Some(idx) = self.in_use.free.pop().map(FlowIdx) {
            self.in_use.used[idx.index()] = true;
            self.records[idx.index()] = Flow::vacant();
            self.parts.paths[idx.index()] = PathState::default();
            return Some(idx);
        }
        self.records.push(Flow::vacant());
        self.parts.paths.push(PathState::default());
        self.in_use.used.push(true);
        Some(FlowIdx(self.records.len() as u32 - 1))
    }

    /// A record that was vacant is this connection's.
    pub fn insert(&mut self, idx: FlowIdx, flow: Flow, path: PathState) {
        if let Some(listener) = flow.conn.tenancy.listener() {
            self.came_in.push(listener.slot(), idx);
        }
        self.index.insert(flow.conn.key, KeyHolder::Flow(idx));
        self.records[idx.index()] = flow;
        self.parts.paths[idx.index()] = path;
        self.hold_neighbour(idx);
    }

    /// The record is of no connection any more.
    pub fn free(&mut self, idx: Edit<'_>) {
        let idx = *idx;
        let leftover = core::mem::take(&mut self.records[idx.index()].conn.leftover);
        self.leftovers.change(idx, leftover, Leftover::No);
        self.wheel.set(idx, Instant::FAR_FUTURE);
        self.reclaimables.note(idx, SessionId(0), 0);
        self.came_in.remove(idx);
        self.by_neighbour.remove(idx);
        debug_assert!(self.in_use.used[idx.index()]);
        debug_assert!(self.records[idx.index()].conn.aside.is_empty(), "given back with what was in it");
        self.in_use.used[idx.index()] = false;
        self.in_use.free.push(idx.0);
    }

    /// The flow, which has given back all that it had, goes on in TIME_WAIT. Not while there are as many as there may be.
    pub fn enter_time_wait(&mut self, idx: Edit<'_>, waiting: TimeWaitFlow) {
        let wait = self.time_waits.insert(waiting);
        self.index.insert(waiting.key, KeyHolder::TimeWait(wait));
        self.free(idx);
    }

    /// TIME_WAIT is over.
    pub fn leave_time_wait(&mut self, idx: TimeWaitIdx) -> Option<TimeWaitFlow> {
        let waiting = *self.time_waits.get(idx)?;
        self.index.remove(&waiting.key);
        self.time_waits.remove(idx);
        Some(waiting)
    }

    /// Makes anew what is derived here, but for deadlines and what there is to spare. Returns all connections.
    pub fn rebuild(&mut self) -> Vec<FlowIdx> {
        self.index.clear();
        self.by_neighbour.clear();
        let all: Vec<FlowIdx> = self.indices().collect();
        for idx in all.iter().copied() {
            self.wheel.set(idx, Instant::FAR_FUTURE);
            self.reclaimables.note(idx, SessionId(0), 0);
            self.hold_neighbour(idx);
            let conn = &self.records[idx.index()].conn;
            if conn.indexed {
                self.index.insert(conn.key, KeyHolder::Flow(idx));
            }
        }
        for (idx, waiting) in self.time_waits.iter() {
            self.index.insert(waiting.key, KeyHolder::TimeWait(idx));
        }
        all
    }

    // ---- by name ----

    /// Who has the name.
    #[inline]
    pub fn named(&self, key: &FlowKey) -> Option<KeyHolder> {
        self.index.get(key)
    }

    #[inline]
    pub fn find(&self, key: &FlowKey) -> Option<FlowIdx> {
        self.named(key)?.flow()
    }

    /// Nobody finds it by its name any more.
    pub fn leave_index(&mut self, idx: Edit<'_>) {
        let conn = &mut self.records[idx.index()].conn;
        conn.indexed = false;
        self.index.remove(&conn.key);
    }

    /// The other end of a connection, if that is here.
    pub fn peer_here(&self, idx: FlowIdx) -> Option<FlowIdx> {
        let flow = self.get(idx);
        if flow.tcb.is_local { self.find(&flow.conn.key.reversed()) } else { None }
    }

    /// Whether connections have this address.
    pub fn has_some_at(&self, addr: Addr) -> bool {
        let mut conns = self.indices().map(|idx| &self.get(idx).conn);
        conns.any(|conn| conn.indexed && conn.key.local.addr == addr)
            || self.time_waits.iter().any(|(_, waiting)| waiting.key.local.addr == addr)
    }

    // ---- by path ----

    /// The connection goes by this path from now on.
    pub fn set_path(&mut self, idx: Edit<'_>, path: Path) {
        self.by_neighbour.remove(*idx);
        self.get_mut(idx).conn.path = path;
        self.hold_neighbour(*idx);
    }

    /// A connection's neighbour keeps its number as long as there is the connection.
    fn hold_neighbour(&mut self, idx: FlowIdx) {
        if let Path::Port { port, neighbour } = self.get(idx).conn.path {
            self.by_neighbour.push(list_of(port, neighbour), idx);
        }
    }

    /// Whether connections hold the neighbour's number.
    pub fn hold(&self, port: PortId, neighbour: u16) -> bool {
        !self.by_neighbour.is_empty(list_of(port, neighbour))
    }

    /// The neighbour whose number stays its own for this connection.
    pub fn neighbour_held_by(&self, idx: FlowIdx) -> Option<(PortId, u16)> {
        let list = self.by_neighbour.list_of(idx)? as usize;
        Some((PortId((list / NEIGHBOURS_MAX) as u8), (list % NEIGHBOURS_MAX) as u16))
    }

    /// Those that go to a neighbour.
    pub fn to_neighbour(&self, path: Path) -> Vec<FlowIdx> {
        match path {
            Path::Local => Vec::new(),
            Path::Port { port, neighbour } => self.by_neighbour.iter(list_of(port, neighbour)).collect(),
        }
    }

    /// Those whose path is such a one.
    pub fn by_path(&self, is_it: impl Fn(Path) -> bool) -> Vec<FlowIdx> {
        self.indices().filter(|idx| is_it(self.get(*idx).conn.path)).collect()
    }

    // ---- those that no program has any more ----

    /// Those that are closing.
    pub fn orphans(&self) -> usize {
        self.leftovers.orphans
    }

    /// The first orphan whose peer has all bytes.
    pub fn take_acknowledged_orphan(&mut self) -> Option<FlowIdx> {
        self.leftovers.acknowledged.pop(ACKNOWLEDGED)
    }

    /// Whether a new connection whose program has named its port may have the 4-tuple: nobody has it, or it is in TIME_WAIT and has
    /// timestamps, or needs none because nothing of it can be late. As with Linux that is enough, without the clock of
    /// [`FlowStore::may_replace`]: the program has asked for this one and no other, and its numbers begin beyond those of the old one.
    pub fn may_have(&self, key: &FlowKey) -> bool {
        let may = |waiting: &TimeWaitFlow| waiting.tcp.is_local() || waiting.tcp.ts_recent().is_some();
        self.named(key).is_none_or(|named| self.in_time_wait(named).is_some_and(may))
    }

    /// Whether who has a name may make room for another connection of it ([`toe_tcp::time_wait::TimeWait::may_be_replaced`]).
    pub fn may_replace(&self, now: Instant, named: KeyHolder) -> bool {
        self.in_time_wait(named).is_some_and(|waiting| waiting.tcp.may_be_replaced(now))
    }

    fn in_time_wait(&self, named: KeyHolder) -> Option<&TimeWaitFlow> {
        if let KeyHolder::TimeWait(idx) = named { self.time_waits.get(idx) } else { None }
    }

    // ---- by need ----

    /// The record has changed: what it counts as, the memory that it has to spare, its deadline.
    pub fn note_change(&mut self, idx: Edit<'_>, deadline: Instant) {
        let flow = &mut self.records[idx.index()];
        let now = kind_of(flow);
        let before = core::mem::replace(&mut flow.conn.leftover, now);
        if before != now {
            self.leftovers.change(*idx, before, now);
        }
        self.note_reclaimable(*idx);
        self.wheel.set(*idx, deadline);
    }

    /// Notes what a flow has to spare.
    pub fn note_reclaimable(&mut self, idx: FlowIdx) {
        let tcb = &self.records[idx.index()].tcb;
        self.reclaimables.note(idx, tcb.receiving.buffer.session, tcb.receiving.buffer.spare(tcb.data_nxt()));
    }
}

/// In TIME_WAIT, and of no use to anybody but the peer: what it needs still is small.
pub fn is_over(flow: &Flow) -> bool {
    flow.tcb.state == TcpState::TimeWait && flow.conn.tenancy.owner().is_nobody() && flow.tcb.orphaned
}

impl Leftovers {
    fn new(flows: usize) -> Leftovers {
        Leftovers { orphans: 0, acknowledged: FlowLists::new(flows) }
    }

    fn change(&mut self, idx: FlowIdx, before: Leftover, now: Leftover) {
        match before {
            Leftover::No => {}
            Leftover::Orphan => self.orphans -= 1,
            Leftover::SentOrphan => {
                self.orphans -= 1;
                self.acknowledged.remove(idx);
            }
        }
        match now {
            Leftover::No => {}
            Leftover::Orphan => self.orphans += 1,
            Leftover::SentOrphan => {
                self.orphans += 1;
                self.acknowledged.push(ACKNOWLEDGED, idx);
            }
        }
    }
}

fn kind_of(flow: &Flow) -> Leftover {
    match flow.tcb.state {
        _ if !flow.tcb.orphaned => Leftover::No,
        TcpState::Closed | TcpState::TimeWait => Leftover::No,
        _ if flow.tcb.sending.queue.is_empty() => Leftover::SentOrphan,
        _ => Leftover::Orphan,
    }
}
