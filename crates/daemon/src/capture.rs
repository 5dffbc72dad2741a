//! Captures (`toe capture`): the engine's thread copies the packets that a filter wants, and a thread of its own for each
//! capture writes them into the stream that its client reads.
//!
//! A client that reads too slowly, or not at all, costs packets (counted, and told in each record), never the engine's
//! time: what is on its way is bounded by [`PENDING_MAX`].

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use toe_abi::capture::{
    Facts, Filter, LOCAL_INTERFACE, Program, Record, RecordKind, SNAPLEN_MAX, text_field,
};
use toe_abi::errno::Errno;
use toe_base::Cred;
use toe_engine::{CaptureRule, Sighting};
use zerocopy::IntoBytes;

/// Captures at one time; each packet is shown to every one of them. Of these so many of users who may capture what is
/// theirs only, and so many of one of them.
const CAPTURES_MAX: usize = 8;
const LIMITED_MAX: usize = 4;
const LIMITED_OF_USER_MAX: usize = 1;
/// Bytes on their way to one client: so many, or a part of what sessions may have where that is little.
const PENDING_MAX: u64 = 32 << 20;
const PENDING_ONE_IN: u64 = 16;
/// What a batch costs beside its bytes.
const BATCH_COST: usize = 64;
/// A batch is handed on when it has this many bytes, or the round ends.
const BATCH_LEN: usize = 256 << 10;
/// Connections whose last process is remembered, for what is sent after it has gone.
const REMEMBERED_MAX: usize = 4096;
/// How long a writer waits for its client before it looks whether the engine ends.
const WRITE_WITHIN: Duration = Duration::from_millis(200);
/// How long an engine that ends lets its clients read.
const FAREWELL: Duration = Duration::from_millis(500);

/// A packet as a filter and a record want it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    interface: u16,
    direction: u8,
    facts: Facts,
    sender: Program,
    receiver: Program,
    /// Whose the two ends are; `None`: nobody's here.
    owners: [Option<Cred>; 2],
    reason: [u8; 36],
}

/// Who has an end of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct End {
    pub program: Program,
    pub owner: Option<Cred>,
}

/// The addresses, protocol and ports of one direction of a connection.
type Way = (IpAddr, IpAddr, u16, u16);

/// All captures.
#[derive(Debug, Default)]
pub struct Captures {
    running: Vec<Capture>,
    /// The sending process of each way a packet went, and the receiving one.
    remembered: HashMap<Way, [End; 2]>,
}

/// One capture.
#[derive(Debug)]
struct Capture {
    /// The control connection that asked for it.
    conn: u32,
    /// Whose packets only; `None`: all.
    only: Option<Cred>,
    filter: Filter,
    snaplen: u32,
    interface: Option<u16>,
    batch: Vec<u8>,
    lost: u64,
    writer: Writer,
}

/// The thread that writes, as the engine's thread sees it.
#[derive(Debug)]
struct Writer {
    batches: Option<Sender<Vec<u8>>>,
    shared: Arc<Shared>,
    pending_max: usize,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes that wait to be written.
    pending: AtomicUsize,
    /// The engine ends.
    give_up: AtomicBool,
}

impl Captures {
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// A packet with the processes at its ends, or those that had them last.
    pub fn seen(&mut self, packet: &Sighting, ends: [Option<End>; 2]) -> Seen {
        let ends = self.remember(&packet.facts, ends.map(Option::unwrap_or_default));
        let [sender, receiver] = ends.map(|end| end.program);
        Seen {
            interface: packet.interface(),
            direction: packet.direction as u8,
            facts: Facts { pids: [sender.pid, receiver.pid], ..packet.facts },
            sender,
            receiver,
            owners: ends.map(|end| end.owner),
            reason: packet.reason.map_or([0; 36], |reason| text_field(reason.name())),
        }
    }

    fn remember(&mut self, facts: &Facts, ends: [End; 2]) -> [End; 2] {
        let (Some((from, to)), Some((from_port, to_port))) = (facts.addrs, facts.ports) else { return ends };
        let way = (from, to, from_port, to_port);
        if ends.iter().all(|end| end.program.is_nobody()) {
            return self.remembered.get(&way).copied().unwrap_or(ends);
        }
        let back = (to, from, to_port, from_port);
        if self.remembered.len() >= REMEMBERED_MAX && !self.remembered.contains_key(&way) {
            self.remembered.clear();
        }
        let mut known = self.remembered.get(&way).copied().unwrap_or_default();
        for (known, now) in known.iter_mut().zip(ends) {
            if !now.program.is_nobody() && (now.program.listens == 0 || known.program.is_nobody()) {
                *known = now;
            }
        }
        self.remembered.insert(way, known);
        self.remembered.insert(back, [known[1], known[0]]);
        known
    }

    /// What the engine is to hand out.
    pub fn rules(&self) -> Box<[CaptureRule]> {
        let rule = |capture: &Capture| CaptureRule {
            filter: capture.filter.clone(),
            only: capture.only,
            interface: capture.interface,
        };
        self.running.iter().map(rule).collect()
    }

    pub fn take(&mut self, packet: &Seen, bytes: &[u8]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        for capture in self.running.iter_mut().filter(|capture| capture.wants(packet)) {
            capture.take(packet, bytes, at_ns);
        }
    }

    /// The round is over: what was copied goes on its way.
    pub fn hand_on(&mut self) {
        self.running.iter_mut().for_each(Capture::hand_on);
    }

    /// Whether there may be one more of this kind.
    fn has_room(&self, only: Option<Cred>) -> bool {
        let limited = |capture: &&Capture| capture.only.is_some();
        let of_user = |capture: &&Capture| capture.only.map(|cred| cred.uid) == only.map(|cred| cred.uid);
        self.running.len() < CAPTURES_MAX
            && (only.is_none()
                || self.running.iter().filter(limited).count() < LIMITED_MAX
                    && self.running.iter().filter(of_user).count() < LIMITED_OF_USER_MAX)
    }

    fn position(&self, conn: u32) -> Option<usize> {
        self.running.iter().position(|capture| capture.conn == conn)
    }

    /// The engine ends: clients that read get what was copied.
    pub fn end_all(&mut self) {
        for capture in self.running.drain(..) {
            capture.end().join();
        }
    }
}

impl Capture {
    fn wants(&self, packet: &Seen) -> bool {
        self.only.is_none_or(|owner| packet.owners.contains(&Some(owner)))
            && self.interface.is_none_or(|only| only == packet.interface)
            && self.filter.matches(&packet.facts)
    }

    fn take(&mut self, packet: &Seen, bytes: &[u8], at_ns: u64) {
        if self.batch.len() >= BATCH_LEN {
            self.hand_on();
        }
        if !self.writer.has_room(self.batch.len()) {
            self.lost += 1;
            return;
        }
        let captured = &bytes[..bytes.len().min(self.snaplen as usize)];
        let record = Record {
            captured_len: captured.len() as u32,
            original_len: bytes.len() as u32,
            at_ns,
            lost: self.lost,
            interface: packet.interface,
            direction: packet.direction,
            kind: RecordKind::Packet as u8,
            sender: packet.sender,
            receiver: packet.receiver,
            reason: packet.reason,
        };
        self.batch.extend_from_slice(record.as_bytes());
        self.batch.extend_from_slice(captured);
    }

    fn hand_on(&mut self) {
        if !self.batch.is_empty() {
            self.writer.send(std::mem::take(&mut self.batch));
        }
    }

    /// Nothing more is copied; the writer ends once all has been read.
    fn end(mut self) -> Writer {
        self.batch.extend_from_slice(Record::end(self.lost).as_bytes());
        self.hand_on();
        self.writer.batches = None;
        self.writer
    }
}

impl Writer {
    fn start(stream: OwnedFd, pending_max: usize) -> std::io::Result<Writer> {
        let (batches, receiver) = channel();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = crate::cores::spawn("toe-capture", move || write_batches(&stream, &receiver, &theirs))?;
        Ok(Writer { batches: Some(batches), shared, pending_max, thread: Some(thread) })
    }

    fn has_room(&self, waiting: usize) -> bool {
        self.shared.pending.load(Ordering::Relaxed) + waiting < self.pending_max
    }

    fn send(&self, batch: Vec<u8>) {
        self.shared.pending.fetch_add(batch.len() + BATCH_COST, Ordering::Relaxed);
        if let Some(batches) = &self.batches {
            // An error means that the client has gone; its connection will say so, too.
            let _ = batches.send(batch);
        }
    }

    /// Waits for the writer; a client that does not read is not waited for.
    fn join(mut self) {
        self.shared.give_up.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A writer that panicked has written what it could.
            let _ = thread.join();
        }
    }
}

/// The writer's thread. Ends when nothing more comes, or nobody reads any more.
fn write_batches(stream: &OwnedFd, batches: &Receiver<Vec<u8>>, shared: &Shared) {
    let mut until = None;
    while let Ok(batch) = batches.recv() {
        let mut rest = batch.as_slice();
        while !rest.is_empty() {
            if shared.give_up.load(Ordering::Relaxed)
                && Instant::now() > *until.get_or_insert_with(|| Instant::now() + FAREWELL)
            {
                return;
            }
            match rustix::net::send(stream, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
        shared.pending.fetch_sub(batch.len() + BATCH_COST, Ordering::Relaxed);
    }
}

/// What a client asks for.
#[derive(Debug)]
pub(crate) struct CaptureRequest {
    pub(crate) snaplen: u32,
    pub(crate) interface: Option<u16>,
    /// Whose packets only; `None`: all.
    pub(crate) only: Option<Cred>,
}

impl Captures {
    /// Begins one for the client of a control connection, in an engine of so many links whose sessions may have so much memory. What is
    /// returned is the client's end. `filter`: what it is to be, once all else is right.
    pub(crate) fn start(
        &mut self,
        conn: u32,
        CaptureRequest { snaplen, interface, only }: CaptureRequest,
        (links, memory): (usize, u64),
        filter: impl FnOnce() -> Result<Filter, Errno>,
    ) -> Result<OwnedFd, Errno> {
        let interfaces = LOCAL_INTERFACE + 1 + links as u16;
        if snaplen == 0 || snaplen > SNAPLEN_MAX || interface.is_some_and(|number| number >= interfaces) {
            return Err(Errno::EINVAL);
        }
        if self.position(conn).is_some() {
            return Err(Errno::EALREADY);
        }
        if !self.has_room(only) {
            return Err(Errno::ENOBUFS);
        }
        let filter = filter()?;
        let (ours, theirs) = stream().map_err(|_| Errno::EMFILE)?;
        let pending_max = (memory / PENDING_ONE_IN).min(PENDING_MAX) as usize;
        let writer = Writer::start(ours, pending_max).map_err(|_| Errno::ENOMEM)?;
        let capture = Capture { conn, only, filter, snaplen, interface, batch: Vec::new(), lost: 0, writer };
        self.running.push(capture);
        Ok(theirs)
    }

    /// Ends the capture of a connection, if it has one; whether it had. Its writer goes on by itself until its client has read all.
    pub(crate) fn end(&mut self, conn: u32) -> bool {
        let Some(at) = self.position(conn) else { return false };
        let capture = self.running.swap_remove(at);
        match capture.only {
            None => tracing::info!(lost = capture.lost, "capture of all ended"),
            Some(_) => tracing::debug!(lost = capture.lost, "capture ended"),
        }
        drop(capture.end());
        if self.is_empty() {
            *self = Captures::default();
        }
        true
    }
}

/// The two ends of a stream.
fn stream() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&ours, sockopt::Timeout::Send, Some(WRITE_WITHIN))?;
    Ok((ours, theirs))
}
