//! One end of a connection as its program has it: reads, sends and ends it as its plan says.

use crate::checkers::{Checker, isolation};
use crate::entries::{self, Entry};
use crate::frame::Way;
use crate::memory::SPOILT;
use crate::node::Session;
use crate::pattern::StreamId;
use crate::program::Cx;
use crate::program::plan::{Due, Plan, Progress, is_soft};
use crate::random::Random;
use crate::tally::Tally;
use std::collections::VecDeque;
use toe_abi::entry::{Command, Completion, FlowOption, MemRange, ReceiveCredit, Send};
use toe_abi::errno::Errno;
use toe_base::arena::Block;
use toe_base::limits::SEND_EXTENTS_MAX;
use toe_base::{AnchorHandle, FlowId};

/// No engine gives up earlier what a program has left: when the peer's window is closed, after twelve probes, ever less often;
/// when nothing is acknowledged, after eight retransmissions.
const ORPHAN_PATIENCE_MIN_US: u64 = 300_000_000;
const ORPHAN_PATIENCE_UNHEARD_MIN_US: u64 = 100_000_000;

/// See the module.
#[derive(Debug)]
pub struct Socket {
    /// What this end sends; `None`: a connection that no ordinary program made.
    sends: Option<StreamId>,
    pub anchor: AnchorHandle,
    pub id: Option<FlowId>,
    /// Established; or its first bytes are to go with the SYN.
    pub open: bool,
    /// The latter, and not yet the former.
    is_early: bool,
    /// As it came in, client to server.
    way: Option<Way>,
    /// It is the stream's first bytes once more, so many that came with the SYN.
    repeats: Option<(StreamId, u32)>,
    pub closed: bool,
    error: Option<Errno>,
    unread: VecDeque<MemRange>,
    announced: u64,
    consumed: u64,
    eof: bool,
    handed: u64,
    shut: bool,
    /// Send memory that the engine has, and how much of each block it still has.
    blocks: VecDeque<(Block, u32)>,
    next_read_us: u64,
    pub is_hungry: bool,
    /// Given up by its process, which still has the descriptor; nobody has claimed it yet.
    pub adrift: bool,
    /// How often names had lapsed when it connected, within its host.
    pub lapses: Option<u32>,
    /// Then somebody was known to listen.
    pub is_promised: bool,
}

impl Socket {
    pub fn new(sends: StreamId, anchor: AnchorHandle) -> Socket {
        Socket { sends: Some(sends), ..Socket::stranger(anchor) }
    }

    pub fn accepted(sends: StreamId, anchor: AnchorHandle, way: Option<Way>) -> Socket {
        Socket { way, ..Socket::new(sends, anchor) }
    }

    /// A connection that was accepted before.
    pub fn again(comes: StreamId, anchor: AnchorHandle, syn_text: u32) -> Socket {
        Socket { repeats: Some((comes, syn_text)), ..Socket::stranger(anchor) }
    }

    /// Its SYN waits for bytes.
    pub fn open_early(&mut self) {
        (self.open, self.is_early) = (true, true);
    }

    pub fn stranger(anchor: AnchorHandle) -> Socket {
        Socket {
            sends: None,
            anchor,
            id: None,
            open: false,
            is_early: false,
            way: None,
            repeats: None,
            closed: false,
            error: None,
            unread: VecDeque::new(),
            announced: 0,
            consumed: 0,
            eof: false,
            handed: 0,
            shut: false,
            blocks: VecDeque::new(),
            next_read_us: 0,
            is_hungry: false,
            adrift: false,
            lapses: None,
            is_promised: false,
        }
    }

    /// Handed to a listener that was closed.
    pub fn gone(flow: FlowId) -> Socket {
        Socket { id: Some(flow), closed: true, ..Socket::stranger(AnchorHandle::default()) }
    }

    /// Bytes that it has given to the engine.
    pub fn handed(&self) -> u64 {
        self.handed
    }

    pub fn stream(&self) -> Option<StreamId> {
        self.sends
    }

    /// Its program may do something with it.
    pub fn is_held(&self) -> bool {
        self.id.is_some() && !self.closed && self.error.is_none()
    }

    /// Bytes have come that its program has not read.
    pub(super) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Some of those, from the first on.
    pub(super) fn some_unread(&self, random: &mut Random) -> Vec<MemRange> {
        let ranges = random.below(self.unread.len() as u32 + 1);
        self.unread.iter().take(ranges as usize).copied().collect()
    }

    /// It is the engine's until somebody claims it, who is told anew of what was not read.
    pub(super) fn set_adrift(&mut self) {
        (self.id, self.adrift) = (None, true);
        self.unread.clear();
        self.announced = self.consumed;
    }

    /// The same socket in another process, which knows it by this name.
    pub(super) fn claimed(self, flow: FlowId, is_connecting: bool) -> Socket {
        let unread = VecDeque::new();
        let announced = self.consumed;
        Socket {
            id: Some(flow),
            unread,
            announced,
            // Told anew.
            eof: false,
            // It looks at once.
            next_read_us: 0,
            is_hungry: false,
            adrift: false,
            is_early: self.is_early && is_connecting,
            ..self
        }
    }

    fn progress(&self) -> Progress {
        Progress {
            handed: self.handed,
            consumed: self.consumed,
            all_read: self.eof && self.unread.is_empty(),
            shut: self.shut,
        }
    }

    /// What the peer sends.
    fn comes(&self) -> Option<StreamId> {
        self.sends.map(|id| StreamId { side: 1 - id.side, ..id })
    }
}

impl Session {
    /// A completion for one of the sockets.
    pub(super) fn socket_takes(&mut self, cx: &mut Cx<'_>, at: usize, completion: Completion) {
        let socket = &mut self.sockets[at];
        let is_over = socket.closed && socket.id.is_none() && socket.error.is_none();
        if socket.adrift || is_over {
            // Told before it was given up, and perhaps closed since.
            return;
        }
        match completion {
            Completion::Connected { errno, .. } if errno.is_ok() => {
                (socket.open, socket.is_early) = (true, false);
                if let Some(id) = socket.sends {
                    let conn = &mut cx.conns.list[id.conn as usize];
                    conn.opened[0] = true;
                    let reached = socket.lapses.map(|lapses| ((conn.v6, conn.server.1), lapses));
                    self.reached.extend(reached);
                    cx.streams.progress += 1;
                }
            }
            Completion::Connected { errno, .. } => {
                socket.error = Some(errno);
                let is_as_it_was = socket.is_promised && socket.lapses == Some(cx.engine.view().lapses());
                if is_as_it_was && errno == Errno::ECONNREFUSED {
                    let what = "a connection was refused where somebody listens, as far as hosts can know";
                    cx.verdict.fail(Checker::Isolation, what.to_owned());
                }
                self.connect_failed(cx, at, errno);
            }
            Completion::Data { data, .. } => {
                socket.announced += u64::from(data.len);
                if !socket.closed {
                    socket.unread.push_back(data);
                }
            }
            Completion::Sent { len, .. } => {
                let extra = self.free_blocks(cx, at, len);
                if extra > 0 && self.sockets[at].error.is_none() {
                    let what = format!("{extra} bytes of send memory came back that were not given");
                    cx.verdict.fail(Checker::Memory, what);
                }
            }
            Completion::PeerClosed { .. } => {
                socket.eof = true;
                if let Some(id) = socket.comes().filter(|_| !socket.closed) {
                    let found = cx.streams.eof(id, socket.announced);
                    cx.verdict.check(Checker::Streams, found);
                }
            }
            Completion::Reset { errno, .. } => self.hears_of_reset(cx, at, errno),
            Completion::Urgent { .. } => cx.tallies.add(Tally::UrgentTold),
            other => {
                let found = isolation::unknown_name(self.id, &other);
                cx.verdict.check(Checker::Isolation, found);
            }
        }
    }

    pub(super) fn hears_of_reset(&mut self, cx: &mut Cx<'_>, at: usize, errno: Errno) {
        self.sockets[at].error = Some(errno);
        self.free_blocks(cx, at, u32::MAX);
        self.was_reset(cx, at, errno);
    }

    pub(super) fn connect_failed(&mut self, cx: &mut Cx<'_>, at: usize, errno: Errno) {
        let Some(id) = self.sockets[at].sends else { return };
        cx.tallies.add(Tally::ConnectErrors);
        cx.streams.progress += 1;
        let excuses = cx.conns.excuses;
        let conn = &mut cx.conns.list[id.conn as usize];
        if !conn.is_explained(true, errno, &excuses) {
            let what = format!("connection {} could not be made: {errno:?}", id.conn);
            cx.verdict.fail(Checker::Liveness, what);
        }
        conn.excuse.get_or_insert("the connect failed");
    }

    fn was_reset(&mut self, cx: &mut Cx<'_>, at: usize, errno: Errno) {
        let socket = &self.sockets[at];
        let Some(id) = socket.sends else { return };
        cx.streams.progress += 1;
        let excuses = cx.conns.excuses;
        let conn = &mut cx.conns.list[id.conn as usize];
        if socket.closed || conn.done[usize::from(id.side)] {
            return;
        }
        // Early, and nothing but the SYN ever came.
        let is_unheard = socket.way.is_some_and(|way| cx.sequences.is_unheard(way.back()));
        // Its peer's program is gone, and it reads so slowly, or its session has had no memory for so long, that the engine
        // there has waited long enough.
        let patience_us =
            if excuses.scarce { ORPHAN_PATIENCE_UNHEARD_MIN_US } else { ORPHAN_PATIENCE_MIN_US };
        let is_forsaken =
            conn.done[usize::from(1 - id.side)] && errno == Errno::ECONNRESET && cx.now_us >= patience_us;
        let gave_up = matches!(errno, Errno::ETIMEDOUT | Errno::ECONNRESET) || is_soft(errno);
        if !(is_unheard && excuses.lossy && gave_up
            || is_forsaken
            || conn.is_explained(false, errno, &excuses))
        {
            let what = format!("{id:?} was reset, {errno:?}, but nobody has ended it so");
            cx.verdict.fail(Checker::Streams, what);
        }
        conn.excuse.get_or_insert("it was reset");
    }

    fn plan(&self, cx: &Cx<'_>, at: usize) -> Option<Plan> {
        let id = self.sockets[at].sends?;
        Some(cx.conns.list[id.conn as usize].plans[usize::from(id.side)])
    }

    pub(super) fn set_options(&mut self, cx: &mut Cx<'_>, at: usize) {
        let (Some(flow), Some(plan)) = (self.sockets[at].id, self.plan(cx, at)) else { return };
        let mut set = |option, value| cx.command(self, Command::SetOption { flow, option, value }, &[]);
        if plan.no_delay {
            set(FlowOption::NoDelay, 1);
        }
        if plan.cork {
            set(FlowOption::Cork, 1);
        }
        if plan.keepalive {
            set(FlowOption::KeepIdleSecs, 3);
            set(FlowOption::KeepIntervalSecs, 1);
            set(FlowOption::KeepAlive, 1);
        }
        if let Some(window) = plan.window_max {
            set(FlowOption::ReceiveWindowMax, window);
        }
        if let Some(number) = plan.congestion {
            set(FlowOption::Congestion, number);
        }
    }

    /// Does all that the plan says and that can be done now.
    pub fn step(&mut self, cx: &mut Cx<'_>, at: usize) {
        let socket = &self.sockets[at];
        if socket.closed || socket.id.is_none() || !(socket.open || socket.error.is_some()) {
            return;
        }
        let plan = self.plan(cx, at);
        if plan.is_some_and(|plan| plan.by_hand) && self.sockets[at].error.is_none() {
            return;
        }
        self.read(cx, at, plan.as_ref());
        if let Some(plan) = &plan {
            self.send(cx, at, plan);
        }
        self.end_if_due(cx, at, plan.as_ref());
    }

    pub fn read(&mut self, cx: &mut Cx<'_>, at: usize, plan: Option<&Plan>) {
        let pause_us = plan.map_or(0, |p| p.read_pause_us);
        let mut left = plan.map_or(u32::MAX, |p| p.read_max);
        let socket = &mut self.sockets[at];
        if socket.unread.is_empty() {
            return;
        }
        if pause_us > 0 {
            if cx.now_us < socket.next_read_us {
                return;
            }
            socket.next_read_us = cx.now_us + u64::from(pause_us);
            cx.wakes.push((socket.next_read_us, at));
        }
        let (Some(flow), comes) = (socket.id, socket.comes()) else { return };
        let mut taken = 0;
        while let Some(range) = socket.unread.front_mut().filter(|_| left > 0) {
            let take = range.len.min(left);
            let bytes = cx.memory.program_view(self.id, range.offset, take);
            if let Some(id) = comes {
                cx.verdict.check(Checker::Streams, cx.streams.read(id, bytes));
            }
            // Read, and nobody's any more until the engine puts something there.
            if let Some((id, syn_text)) = socket.repeats {
                // Who was reset may be answered again for good.
                let is_over = cx.conns.list[id.conn as usize].excuse.is_some();
                let most = if is_over { u64::MAX } else { u64::from(syn_text) };
                let at = socket.consumed + u64::from(taken);
                cx.verdict.check(Checker::Streams, cx.streams.read_again(id, at, bytes, most));
            }
            bytes.fill(SPOILT);
            range.offset += u64::from(take);
            range.len -= take;
            if range.len == 0 {
                socket.unread.pop_front();
            }
            left -= take;
            taken += take;
        }
        socket.consumed += u64::from(taken);
        cx.tallies.add_many(Tally::BytesRead, u64::from(taken));
        cx.publish(self, Entry::Credit(ReceiveCredit { flow, len: taken }));
        cx.event(self, comes.map(|id| id.conn), "read", format_args!("{taken}"));
    }

    pub fn send(&mut self, cx: &mut Cx<'_>, at: usize, plan: &Plan) {
        loop {
            let left = plan.may_send(self.sockets[at].progress()).min(u64::from(plan.chunk_max)) as u32;
            let socket = &mut self.sockets[at];
            let full = socket.blocks.len() >= SEND_EXTENTS_MAX;
            if left == 0 || socket.shut || socket.error.is_some() || full {
                return;
            }
            // What came again has nothing to say.
            let (Some(id), Some(flow)) = (socket.sends, socket.id) else { return };
            let len = if left < 1000 { left } else { cx.random.between(left / 4, left) };
            let Some(block) = self.send_arena.alloc(len) else {
                if !std::mem::replace(&mut socket.is_hungry, true) {
                    self.hungry.push(at);
                }
                return;
            };
            id.fill(socket.handed, cx.memory.program_view(self.id, block.offset(), len));
            socket.handed += u64::from(len);
            socket.blocks.push_back((block, len));
            let end_of_record = cx.random.ppm(plan.record_ppm);
            cx.streams.handed(id, len);
            if end_of_record {
                cx.tallies.add(Tally::Records);
                cx.streams.record_ended(id);
            }
            if socket.is_early {
                cx.tallies.add(Tally::FastOpens);
            }
            let urgent = cx.random.ppm(plan.urgent_ppm);
            if urgent {
                cx.tallies.add(Tally::Urgent);
            }
            let more = cx.random.ppm(plan.more_ppm);
            let data = MemRange { offset: block.offset(), len };
            cx.publish(self, Entry::Send(Send { flow, data, more, urgent, end_of_record }));
            cx.event(
                self,
                Some(id.conn),
                "send",
                format_args!("{len} more {more} urgent {urgent} eor {end_of_record}"),
            );
        }
    }

    fn end_if_due(&mut self, cx: &mut Cx<'_>, at: usize, plan: Option<&Plan>) {
        let socket = &self.sockets[at];
        let Some(plan) = plan else {
            // A stranger's: gone when it is. One that came again is not meant to have an end that looks like the first's.
            if socket.eof || socket.error.is_some() || cx.conns.ending {
                let abort = socket.repeats.is_some();
                self.close(cx, at, abort);
            }
            return;
        };
        if socket.error.is_some() {
            self.close(cx, at, false);
            return;
        }
        let Some(id) = socket.sends else { return };
        let peer_plan = cx.conns.list[id.conn as usize].plans[1 - usize::from(id.side)];
        match plan.due(socket.progress(), peer_plan.bytes) {
            Due::Abort => {
                cx.conns.list[id.conn as usize].excuse.get_or_insert("a program aborted it");
                self.close(cx, at, true);
            }
            // That would be the end of it.
            Due::Close if self.sockets[at].is_early => {}
            Due::Close => self.close(cx, at, false),
            Due::Shutdown => self.shut_down(cx, at),
            Due::Nothing => {}
        }
    }

    /// It sends no more.
    pub fn shut_down(&mut self, cx: &mut Cx<'_>, at: usize) {
        let (Some(id), Some(flow)) = (self.sockets[at].sends, self.sockets[at].id) else { return };
        self.sockets[at].shut = true;
        cx.streams.ended(id);
        cx.event(self, Some(id.conn), "shutdown", format_args!(""));
        cx.command(self, Command::ShutdownSend { flow }, &[]);
    }

    /// The socket is another process's from now on: a copy for that one. What this one is still told of it is of no interest.
    pub(super) fn give_away(&mut self, at: usize) -> Socket {
        self.take_back_blocks(at);
        let anchor = self.sockets[at].anchor;
        let gone = Socket { closed: true, error: Some(Errno::ECONNRESET), ..Socket::stranger(anchor) };
        std::mem::replace(&mut self.sockets[at], gone)
    }

    /// Send memory that the engine has copied is the process's own again.
    pub(super) fn take_back_blocks(&mut self, at: usize) {
        for (block, _) in std::mem::take(&mut self.sockets[at].blocks) {
            self.send_arena.free(block);
        }
    }

    /// Its connection need not come to a good end.
    pub fn excuse(&self, cx: &mut Cx<'_>, at: usize, why: &'static str) {
        if let Some(id) = self.sockets[at].sends {
            cx.conns.list[id.conn as usize].excuse.get_or_insert(why);
        }
    }

    /// Bytes for a peer that nobody knows: its stack has to send something, too.
    pub(super) fn greet(&mut self, cx: &mut Cx<'_>, at: usize) {
        let len = self.greets;
        let (Some(flow), true) = (self.sockets[at].id, len > 0) else { return };
        let Some(block) = self.send_arena.alloc(len) else { return };
        self.sockets[at].blocks.push_back((block, len));
        let data = MemRange { offset: block.offset(), len };
        cx.publish(self, Entry::Send(Send::new(flow, data)));
    }

    /// The program closes its last descriptor.
    pub fn close(&mut self, cx: &mut Cx<'_>, at: usize, abort: bool) {
        let socket = &mut self.sockets[at];
        if std::mem::take(&mut socket.adrift) {
            socket.closed = true;
            socket.sends.into_iter().for_each(|id| cx.streams.ended(id));
            entries::anchor_closed(cx.engine, cx.memory, cx.clock, socket.anchor);
            return;
        }
        let Some(flow) = socket.id.filter(|_| !socket.closed) else { return };
        socket.closed = true;
        socket.unread.clear();
        let (anchor, sends) = (socket.anchor, socket.sends);
        if let Some(id) = sends {
            cx.streams.ended(id);
            cx.streams.progress += 1;
            cx.conns.list[id.conn as usize].done[usize::from(id.side)] = true;
        }
        cx.event(self, sends.map(|id| id.conn), "close", format_args!("abort {abort}"));
        if flow.slot().is_multiple_of(2) {
            // A host that keeps the anchor open.
            self.kept_anchors.push(anchor);
            self.once_kept.insert(anchor.0);
            cx.command(self, Command::CloseRetained { flow, anchor, abort }, &[]);
            return;
        }
        // Mostly the host says so first; a process that ends leaves it to the kernel.
        if abort || !cx.random.one_in(8) {
            cx.command(self, Command::Close { flow, abort }, &[]);
        }
        entries::anchor_closed(cx.engine, cx.memory, cx.clock, anchor);
    }

    /// Gives `len` bytes of send memory back to the process, and spoils them: nobody may read them any more. Returns
    /// how many of `len` there were not.
    fn free_blocks(&mut self, cx: &mut Cx<'_>, at: usize, len: u32) -> u32 {
        let mut left = len;
        let socket = &mut self.sockets[at];
        while left > 0 {
            let Some((block, has)) = socket.blocks.front_mut() else { return left };
            let take = left.min(*has);
            *has -= take;
            left -= take;
            if *has == 0 {
                cx.memory.program_view(self.id, block.offset(), block.len()).fill(SPOILT);
                self.send_arena.free(*block);
                socket.blocks.pop_front();
            }
        }
        0
    }
}
