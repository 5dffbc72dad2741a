//! One user's thread: receives what his programs send, finds out what their descriptors are, asks the engine's thread, and
//! closes all that. Whatever of it takes long takes long for this user alone.

use super::ask::{Answer, Ask, Evidence, Matter, Newcomer};
use super::evidence;
use super::pages::PagesIn;
use super::socket::{self, Packet};
use super::watch::TwinWatch;
use crate::anchors::{Keeper, Supplies};
use crate::policy::Credentials;
use crate::sys;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::process::{Pid, PidfdFlags};
use rustix::time::Timespec;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use toe_abi::attach::{BadMessage, Message, Request};
use toe_base::Cred;
use toe_ring::EventFd;

/// Connections looked at in one turn.
const EVENTS_MAX: usize = 64;
/// What the user's own eventfd is called in his epoll; connections have their places in his table.
const EVENTFD: u64 = u64::MAX;

/// What the control server brings to a user's thread.
#[derive(Debug)]
pub(super) enum Errand {
    /// A connection of the user's, who may attach.
    Admit(OwnedFd),
    /// One that nothing is wanted of, to be closed.
    Close(OwnedFd),
    /// Say (by dropping it) when nothing is left to do.
    #[cfg(test)]
    Settle(#[allow(dead_code)] std::sync::mpsc::Sender<()>),
}

/// What all users' threads have in common.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    pub(super) asks: SyncSender<Ask>,
    /// The engine's.
    pub(super) eventfd: Arc<EventFd>,
    /// The control server's: a user has left, or has a kernel socket that is to be watched.
    pub(super) control_server: Arc<EventFd>,
    pub(super) supplies: Supplies,
    /// Counts wake-ups that users' threads make.
    pub(super) handed: Arc<AtomicU64>,
}

impl Desk {
    /// Asks the engine's thread, whose answer is where this says. `None`: there is none any more. Only the ask has the other end: should
    /// it go unanswered, as the engine ends, nobody waits for ever.
    pub(super) fn ask(&self, matter: Matter) -> Option<Receiver<Answer>> {
        let (answers_to, answers) = sync_channel(1);
        let sent = self.asks.send(Ask { matter, answers: answers_to }).is_ok();
        // Own eventfds do not fail.
        let _ = self.eventfd.signal();
        sent.then_some(answers)
    }
}

/// What the control server and a user's thread both see.
#[derive(Debug)]
pub(super) struct Shared {
    /// Connections that the thread has or is about to get.
    pub(super) connections: AtomicUsize,
    pub(super) watch: TwinWatch,
    /// Directories that the thread keeps.
    pub(super) session_dirs: Arc<AtomicUsize>,
    /// Rung when there is an errand or an order, when there are pages to be given back, or no control server any more.
    pub(super) eventfd: Arc<EventFd>,
}

/// One connection.
#[derive(Debug)]
struct Visit {
    socket: OwnedFd,
    /// In the engine's table; [`NOWHERE`] until that has said so.
    conn: u32,
}

/// Nobody's place.
const NOWHERE: u32 = u32::MAX;

/// All that the thread has.
#[derive(Debug)]
pub(super) struct User {
    desk: Desk,
    who: Cred,
    shared: Arc<Shared>,
    errands: Receiver<Errand>,
    pages: PagesIn,
    keeper: Keeper,
    epoll: OwnedFd,
    visits: Vec<Option<Visit>>,
    /// The visit about which the engine's thread was asked and has perhaps not answered yet, and where the answer comes. A program hears
    /// its answer from the engine's thread; this one needs to know no sooner than it asks again.
    asked: Option<(usize, Receiver<Answer>)>,
    #[cfg(test)]
    settling: Vec<std::sync::mpsc::Sender<()>>,
}

/// The engine, or the control server, is gone.
#[derive(Debug)]
pub(super) struct Gone;

impl User {
    /// `who`: whose thread it is.
    pub(super) fn new(
        desk: Desk,
        who: Cred,
        shared: Arc<Shared>,
        errands: Receiver<Errand>,
    ) -> std::io::Result<User> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*shared.eventfd, EventData::new_u64(EVENTFD), EventFlags::IN)?;
        Ok(User {
            pages: PagesIn::new(&shared.eventfd, &desk.handed),
            keeper: Keeper::new(desk.supplies.clone(), who, &shared.eventfd, &shared.session_dirs),
            desk,
            who,
            shared,
            errands,
            epoll,
            visits: Vec::new(),
            asked: None,
            #[cfg(test)]
            settling: Vec::new(),
        })
    }

    /// Until the user has left, or the engine is gone.
    pub(super) fn run(mut self) {
        while self.round().is_ok() {}
        self.pages.finish();
    }

    fn round(&mut self) -> Result<(), Gone> {
        let events = self.wait()?;
        for event in events.into_iter().flatten() {
            match event {
                EVENTFD => {
                    self.run_errands()?;
                    self.give_pages_back()?;
                    if self.look_after_session_dirs() {
                        // The rest after what the user's programs have asked.
                        let _ = self.shared.eventfd.signal();
                    }
                }
                at => self.serve(at as usize)?,
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<[Option<u64>; EVENTS_MAX], Gone> {
        #[allow(unused_mut)]
        let mut limit: Option<Timespec> = None;
        #[cfg(test)]
        if !self.settling.is_empty() {
            self.settle_up()?;
            limit = Some(Timespec::default());
        }
        let mut space = [MaybeUninit::uninit(); EVENTS_MAX];
        let mut events = [None; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut space, limit.as_ref()) {
            Ok((found, _)) => {
                events.iter_mut().zip(found).for_each(|(to, from)| *to = Some(from.data.u64()));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(Gone),
        }
        #[cfg(test)]
        if events[0].is_none() {
            self.settling.clear();
        }
        Ok(events)
    }

    fn run_errands(&mut self) -> Result<(), Gone> {
        let _ = self.shared.eventfd.drain();
        loop {
            match self.errands.try_recv() {
                Ok(Errand::Admit(socket)) => self.admit(socket)?,
                Ok(Errand::Close(socket)) => {
                    drop(socket);
                    self.left();
                }
                #[cfg(test)]
                Ok(Errand::Settle(settled)) => self.settling.push(settled),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(Gone),
            }
        }
    }

    /// Some pages go back to the system; the engine's thread hears which.
    fn give_pages_back(&mut self) -> Result<(), Gone> {
        let returned = self.pages.give_back();
        if !returned.is_empty() {
            self.ask_and_wait(Matter::Returned { who: self.who, returned })?;
        }
        Ok(())
    }

    /// Does some of what the engine's thread wants of directories of anchors; `true`: there is more.
    fn look_after_session_dirs(&mut self) -> bool {
        let had = self.shared.session_dirs.load(Ordering::Acquire);
        let done = self.keeper.carry_out();
        if done.has_events {
            let _ = self.desk.eventfd.signal();
        }
        if had > 0 && self.shared.session_dirs.load(Ordering::Acquire) == 0 {
            // Nothing may be left to do here.
            let _ = self.desk.control_server.signal();
        }
        done.is_more
    }

    /// A connection has come; the engine's thread gives it a place, and answers what it has asked by now: each change of threads
    /// between the two costs more than the request.
    fn admit(&mut self, socket: OwnedFd) -> Result<(), Gone> {
        let Some(newcomer) = self.newcomer(&socket) else {
            drop(socket);
            self.left();
            return Ok(());
        };
        let (first, next) = self.first_request(&socket);
        self.hear()?;
        let at = self.visits.iter().position(Option::is_none).unwrap_or(self.visits.len());
        let watched = epoll::add(&self.epoll, &socket, EventData::new_u64(at as u64), EventFlags::IN);
        let visit = Some(Visit { socket, conn: NOWHERE });
        match self.visits.get_mut(at) {
            Some(slot) => *slot = visit,
            None => self.visits.push(visit),
        }
        self.ask(Matter::Open { newcomer, first }, at)?;
        if watched.is_err() {
            self.hear()?;
            return self.close(at);
        }
        match next {
            None => Ok(()),
            Some(packet) => {
                self.hear()?;
                self.take(at, packet)
            }
        }
    }

    /// What it has asked already: for a session, as is answered when it is let in, or the packet.
    fn first_request(&mut self, socket: &OwnedFd) -> (Option<(Request, Evidence)>, Option<Packet>) {
        match socket::receive(socket) {
            Packet::None => (None, None),
            Packet::Message { bytes, len, fd } => match request_in(&bytes[..len]) {
                Ok(request @ Request::Hello { .. }) => {
                    let evidence = self.evidence(&request, fd);
                    (Some((request, evidence)), None)
                }
                _ => (None, Some(Packet::Message { bytes, len, fd })),
            },
            Packet::Closed => (None, Some(Packet::Closed)),
        }
    }

    fn newcomer(&self, socket: &OwnedFd) -> Option<Newcomer> {
        let who = Credentials::of(socket).ok()?;
        Some(Newcomer {
            socket: socket.as_fd().try_clone_to_owned().ok()?,
            process: sys::peer_process(socket).or_else(|| open_process(who.pid)),
            program: program_of(who.pid),
            pages: self.pages.out(),
            who,
        })
    }

    /// Takes one packet of a connection.
    fn serve(&mut self, at: usize) -> Result<(), Gone> {
        self.hear()?;
        // It may have ended with the last answer.
        let Some(Some(visit)) = self.visits.get(at) else { return Ok(()) };
        let packet = socket::receive(&visit.socket);
        self.take(at, packet)
    }

    fn take(&mut self, at: usize, packet: Packet) -> Result<(), Gone> {
        let Some(Some(visit)) = self.visits.get(at) else { return Ok(()) };
        let conn = visit.conn;
        let matter = match packet {
            Packet::None => return Ok(()),
            Packet::Closed => return self.close(at),
            Packet::Message { bytes, len, fd } => match request_in(&bytes[..len]) {
                Ok(request) => {
                    let evidence = self.evidence(&request, fd);
                    Matter::Request { conn, request, evidence }
                }
                Err(bad) => Matter::Bad { conn, bad },
            },
        };
        let is_carried_out_here = matches!(
            matter,
            Matter::Request {
                request: Request::TakeAnchors { .. } | Request::AddQueueSet | Request::DatagramsMapped,
                ..
            }
        );
        self.ask(matter, at)?;
        if is_carried_out_here { self.hear() } else { Ok(()) }
    }

    fn evidence(&mut self, request: &Request, fd: Option<OwnedFd>) -> Evidence {
        if matches!(request, Request::Hello { .. }) {
            // Nobody has directories made faster than they are removed.
            while self.look_after_session_dirs() {}
        }
        let watched_none = self.shared.watch.is_empty();
        let evidence = evidence::of(request, fd, &mut self.keeper, &self.shared.watch);
        if watched_none && matches!(evidence, Evidence::Twin(_)) {
            let _ = self.desk.control_server.signal();
        }
        evidence
    }

    fn ask(&mut self, matter: Matter, at: usize) -> Result<(), Gone> {
        self.asked = Some((at, self.desk.ask(matter).ok_or(Gone)?));
        Ok(())
    }

    /// Waits for the answer to what was asked last, if anything was.
    fn hear(&mut self) -> Result<(), Gone> {
        while let Some((at, answers)) = self.asked.take() {
            match answers.recv().map_err(|_| Gone)? {
                Answer::Make { session_dir, first, count } => {
                    let made = self.keeper.make_anchors(session_dir, first, count);
                    let Some(Some(visit)) = self.visits.get(at) else { continue };
                    self.ask(Matter::AnchorsMade { conn: visit.conn, wanted: count, made }, at)?;
                }
                Answer::Settle { what, memory } => {
                    let is_settled = memory.into_iter().all(|(region, file)| region.settle(file).is_ok());
                    let Some(Some(visit)) = self.visits.get(at) else { continue };
                    self.ask(Matter::Settled { conn: visit.conn, what, is_settled }, at)?;
                }
                Answer::End => self.close(at)?,
                Answer::Opened { conn } => {
                    self.visits.get_mut(at).into_iter().flatten().for_each(|visit| visit.conn = conn);
                }
                refused @ Answer::Closed(_) => {
                    if let Some(visit) = self.visits.get_mut(at).and_then(Option::take) {
                        let _ = epoll::delete(&self.epoll, &visit.socket);
                        end(visit.socket, refused);
                        self.left();
                    }
                }
                Answer::Done => {}
            }
        }
        Ok(())
    }

    fn ask_and_wait(&mut self, matter: Matter) -> Result<Answer, Gone> {
        self.hear()?;
        let answers = self.desk.ask(matter).ok_or(Gone)?;
        answers.recv().map_err(|_| Gone)
    }

    /// Closes a connection: the engine's thread lets go of it first, so that this is the end of it, and of what is in it.
    fn close(&mut self, at: usize) -> Result<(), Gone> {
        let Some(visit) = self.visits.get_mut(at).and_then(Option::take) else { return Ok(()) };
        let _ = epoll::delete(&self.epoll, &visit.socket);
        let answer = self.ask_and_wait(Matter::Close { conn: visit.conn })?;
        end(visit.socket, answer);
        self.left();
        Ok(())
    }

    /// A connection is closed.
    fn left(&self) {
        if self.shared.connections.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _ = self.desk.control_server.signal();
        }
    }

    #[cfg(test)]
    fn settle_up(&mut self) -> Result<(), Gone> {
        self.hear()
    }
}

fn request_in(packet: &[u8]) -> Result<Request, BadMessage> {
    Message::parse(packet).and_then(|message| Request::decode(&message))
}

/// The end of a connection: of the engine's copies of the descriptor, and then of this one, with all that is in it.
fn end(socket: OwnedFd, answer: Answer) {
    if let Answer::Closed(engines) = answer {
        drop(engines);
    }
    drop(socket);
}

fn open_process(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// The program's name as `ps` shows it.
fn program_of(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name.trim_end_matches('\n');
    if name.is_empty() { "?".to_owned() } else { name.to_owned() }
}
