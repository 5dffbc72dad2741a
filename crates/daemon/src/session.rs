//! Sessions: for each attached process its memory region, doorbell, queue sets and process descriptor. What the
//! engine may do with them is in `host_side`; who opens and closes them is in `attach` and `run_loop`.
//!
//! A session is *live* while its process is attached. After that only its memory stays, until the engine says that
//! no flow refers to it any more.

use crate::budget::Budget;
use crate::capture::Captures;
use crate::channels::Channels;
use crate::control_server::pages::{Interrupt, Leftovers, Pages, PagesOut, Shared};
use crate::datagrams::Datagrams;
use crate::datagrams::from_socket::FromSocket;
use crate::policy::Credentials;
use crate::poller::{Poller, Token};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use toe_abi::attach::FenceReason;
use toe_abi::region::{FENCED, Load, RegionLayout};
use toe_base::limits::SESSIONS_MAX;
use toe_base::{Cred, Instant, NetNs, QueueSetId, SessionId};
use toe_engine::{ControlEvent, Engine};
use toe_ring::{EngineDoorbell, EngineQueueSet, EngineSleep, EventFd, IrqLine, Region};

/// With more live sessions than this, the quiet ones are put to sleep one by one, so that looking at every ring stays
/// cheap. A sleeping session's host rings the doorbell, as it does when the whole engine sleeps.
const SESSIONS_ALWAYS_AWAKE: usize = 8;
/// How long a doorbell is not heard that was rung for nothing too often.
const MUTED_US: u64 = 10_000;
/// How long a session must have been quiet before it is put to sleep.
const DOZE_AFTER_US: u64 = 10_000;

/// Who is at the other end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// 0 when the process is in another process-id namespace.
    pub pid: u32,
    pub uid: u32,
    /// The network namespace that it attached from.
    pub netns: NetNs,
    pub program: String,
}

impl Peer {
    pub fn of(who: &Credentials, program: String) -> Peer {
        Peer { pid: who.pid, uid: who.uid, netns: who.netns, program }
    }

    /// The user in his network namespace: whose the session's sockets are.
    pub fn cred(&self) -> Cred {
        Cred { uid: self.uid, netns: self.netns }
    }
}

/// One attached process.
#[derive(Debug)]
pub struct Session {
    pub peer: Peer,
    pub layout: RegionLayout,
    /// The control connection that it came by, as a place in the table.
    pub connection: u32,
    /// By which pages of its region go back to the system.
    pages: PagesOut,
    pub region: Region,
    /// The region's file, until its host has mapped it and it is settled.
    pub(crate) unsettled: Option<OwnedFd>,
    pub doorbell: EngineDoorbell,
    pub queue_sets: Vec<EngineQueueSet<Interrupt>>,
    /// Readable once the process has ended; `None` when the kernel would not give one.
    process: Option<OwnedFd>,
    /// What its UDP sockets send by the engine's links.
    pub(crate) datagrams: Vec<FromSocket>,
    pub to_tell: QueueSetBits,
    pub schedule: SessionSchedule,
}

/// Queue sets with completions, as bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueSetBits {
    /// Those that were not yet notified.
    pub touched: u32,
    /// Those for which the engine has completions that do not fit.
    pub full: u32,
}

/// When a session has its turn.
#[derive(Debug)]
pub struct SessionSchedule {
    /// Who its time is charged to.
    pub account: Cred,
    last_active: Instant,
    /// Entries were taken since its doorbell was rung last.
    pub was_served: bool,
    /// Present while this session alone sleeps.
    doze: Option<EngineSleep>,
}

impl Session {
    /// Makes the region of a session; returns what its host needs: the region's two files and the doorbell.
    pub fn create(
        id: SessionId,
        layout: RegionLayout,
        (peer, account, process): (Peer, Cred, Option<OwnedFd>),
        (connection, pages): (u32, PagesOut),
        now: Instant,
    ) -> std::io::Result<(Session, [OwnedFd; 3])> {
        let (region, [memory, to_read]) = Region::create_for(&layout, id.0)?;
        let unsettled = Some(memory.try_clone()?);
        let eventfd = EventFd::new()?;
        let host_eventfd = eventfd.as_fd().try_clone_to_owned()?;
        let session = Session {
            process,
            peer,
            layout,
            connection,
            pages,
            doorbell: EngineDoorbell::new(region.clone(), eventfd),
            region,
            unsettled,
            queue_sets: Vec::new(),
            datagrams: Vec::new(),
            to_tell: QueueSetBits::default(),
            schedule: SessionSchedule { account, last_active: now, was_served: false, doze: None },
        };
        Ok((session, [memory, to_read, host_eventfd]))
    }

    pub fn process(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_ref().map(AsFd::as_fd)
    }

    /// What a new queue set is to interrupt the host by.
    pub fn interrupt(&self, line: IrqLine) -> Interrupt {
        Interrupt::new(line, &self.pages)
    }

    /// By whom the host is woken where that may take long.
    pub(crate) fn user(&self) -> &PagesOut {
        &self.pages
    }

    /// Writes the reason of a fence where the host finds it.
    pub fn mark_fenced(&self, reason: FenceReason) {
        // The header page is always inside the region.
        let _ = self.region.mark(FENCED, reason as u32);
    }

    pub fn has_work(&self) -> bool {
        self.queue_sets.iter().any(EngineQueueSet::has_work)
            || self.datagrams.iter().any(FromSocket::has_events)
    }

    /// Whether completions that did not fit may fit now. A head register that cannot be counts, too: the next try to
    /// post finds it and has the session fenced.
    pub fn has_new_room(&mut self) -> bool {
        let full = self.to_tell.full;
        let sets = self.queue_sets.iter_mut().enumerate().filter(|(index, _)| full & (1 << index) != 0);
        sets.into_iter().any(|(_, queue_set)| queue_set.can_post() != Ok(false))
    }

    pub fn is_dozing(&self) -> bool {
        self.schedule.doze.is_some()
    }

    /// Something moved: stay awake, or wake up. Whether it slept.
    fn stir(&mut self, now: Instant) -> bool {
        self.schedule.last_active = now;
        let sleep = self.schedule.doze.take();
        let slept = sleep.is_some();
        if let Some(sleep) = sleep {
            sleep.end([&self.doorbell]);
        }
        slept
    }

    /// Puts the session to sleep if it has been quiet for long. Whether it stays awake.
    fn stays_awake(&mut self, now: Instant) -> bool {
        if now.since_us(self.schedule.last_active) < DOZE_AFTER_US {
            return true;
        }
        self.doze(now)
    }

    /// Announces that it sleeps. Whether it has to stay awake.
    fn doze(&mut self, now: Instant) -> bool {
        self.schedule.doze = Some(EngineSleep::announce([(&self.doorbell, self.to_tell.full != 0)]));
        // A head that moved before its host could see that it has to ring for it counts, too.
        (self.has_work() || self.has_new_room()) && self.stir(now)
    }
}

/// A closed session's memory, still referred to by flows, and what goes with it.
#[derive(Debug)]
pub struct Remains {
    pub region: Region,
    queue_sets: Vec<EngineQueueSet<Interrupt>>,
    pages: PagesOut,
    pub layout: RegionLayout,
}

#[derive(Debug, Default)]
pub enum Slot {
    #[default]
    Free,
    Live(Box<Session>),
    Closing(Remains),
}

/// Who is to be woken, and whom nobody hears.
#[derive(Debug, Default)]
struct Wakes {
    /// Queue sets that are owed an interrupt at some time.
    moderated: Vec<(SessionId, u8)>,
    /// Sessions whose doorbells are not heard, and until when.
    muted: VecDeque<(SessionId, Instant)>,
    /// Sessions that slept until now, for who keeps the list of those that are awake.
    woken: Vec<SessionId>,
    /// Eventfds of users' threads to which something was handed.
    page_eventfds: Vec<Arc<EventFd>>,
}

/// All sessions of the engine, by number.
#[derive(Debug)]
pub struct Sessions {
    slots: Vec<Slot>,
    live: Vec<SessionId>,
    closing: Vec<SessionId>,
    /// The engine's own memory, session 0.
    pub(crate) staging: Region,
    /// Sessions with a `touched` bit.
    pub(crate) touched: Vec<SessionId>,
    wakes: Wakes,
    pub(crate) channels: Channels,
    pub(crate) datagrams: Datagrams,
    pub(crate) captures: Captures,
    /// The kernel keeps descriptors out of interrupts (Linux 6.16).
    pub(crate) interrupts_carry_nothing: bool,
    /// What hosts were told last of names that have lapsed.
    names_notified: u32,
    /// Faults found while the engine was posting.
    pub(crate) faults: Vec<(SessionId, FenceReason)>,
}

impl Sessions {
    /// Tells all hosts that names have lapsed, if any have.
    pub(crate) fn tell_names(&mut self, lapses: u32) {
        if std::mem::replace(&mut self.names_notified, lapses) != lapses {
            self.iter().for_each(|(_, session)| session.region.publish_names(lapses));
        }
    }

    /// Tells all hosts how loaded the engine is.
    pub(crate) fn publish_load(&self, load: Load) {
        self.iter().for_each(|(_, session)| session.region.publish_load(load));
    }

    /// `staging_len`: bytes of the engine's own memory.
    pub fn new(staging_len: u64) -> std::io::Result<Sessions> {
        let staging = Region::reserve(staging_len).map_err(|errno| {
            let why = std::io::Error::from(errno);
            let mib = staging_len >> 20;
            std::io::Error::new(
                why.kind(),
                format!("cannot reserve {mib} MiB of staging memory: {why}; free some or raise the limit"),
            )
        })?;
        Ok(Sessions {
            slots: std::iter::repeat_with(Slot::default).take(SESSIONS_MAX).collect(),
            live: Vec::new(),
            closing: Vec::new(),
            staging,
            touched: Vec::new(),
            wakes: Wakes::default(),
            channels: Channels::default(),
            datagrams: Datagrams::default(),
            captures: Captures::default(),
            interrupts_carry_nothing: crate::sys::can_refuse_descriptors(),
            names_notified: 0,
            faults: Vec::new(),
        })
    }

    pub fn insert(&mut self, id: SessionId, session: Session) {
        if let Some(slot) = self.slots.get_mut(id.index()) {
            *slot = Slot::Live(Box::new(session));
            self.live.push(id);
        }
    }

    pub fn slot(&self, id: SessionId) -> Option<&Slot> {
        self.slots.get(id.index())
    }

    /// A live session.
    pub fn get(&self, id: SessionId) -> Option<&Session> {
        match self.slots.get(id.index()) {
            Some(Slot::Live(session)) => Some(session),
            _ => None,
        }
    }

    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        match self.slots.get_mut(id.index()) {
            Some(Slot::Live(session)) => Some(session),
            _ => None,
        }
    }

    /// The session's process is gone: all but its memory goes.
    pub fn close(&mut self, id: SessionId, poller: &Poller) {
        let Some(slot @ Slot::Live(_)) = self.slots.get_mut(id.index()) else { return };
        let Slot::Live(session) = std::mem::take(slot) else { return };
        let Session { region, queue_sets, pages, layout, doorbell, .. } = *session;
        // Its host may have it yet, and ring it for whoever has the number next.
        poller.set_quiet(&doorbell, Token::Doorbell(id), true);
        pages.close(Shared::Doorbell(doorbell));
        *slot = Slot::Closing(Remains { region, queue_sets, pages: pages.clone(), layout });
        self.live.retain(|&live| live != id);
        self.wakes.woken.retain(|&woken| woken != id);
        self.closing.push(id);
        self.channels.forget_session(id);
        self.will_ring(&pages);
    }

    /// Nothing refers to the memory of a closed session any more: its user's thread unmaps it, and its number is free.
    pub fn forget(&mut self, id: SessionId) {
        if let Some(slot @ Slot::Closing(_)) = self.slots.get_mut(id.index())
            && let Slot::Closing(Remains { region, queue_sets, pages, .. }) = std::mem::take(slot)
        {
            self.closing.retain(|&closing| closing != id);
            if pages.leave(Leftovers { region, queue_sets }) {
                self.will_ring(&pages);
            }
        }
    }

    /// Hands pages of a session's region to its user's thread, which gives them back to the system. `false`: they stay.
    pub(crate) fn send_pages(&mut self, id: SessionId, offset: u64, len: u32) -> bool {
        let (region, out) = match self.slots.get(id.index()) {
            Some(Slot::Live(session)) => (&session.region, &session.pages),
            Some(Slot::Closing(remains)) => (&remains.region, &remains.pages),
            Some(Slot::Free) | None => return false,
        };
        let sent = out.send(Pages { session: id, region: region.clone(), offset, len });
        if sent {
            let out = out.clone();
            self.will_ring(&out);
        }
        sent
    }

    /// Has memory settled that two sessions have mapped. Either could hold up the thread that does it, so it is that of the one that is not
    /// root's, if one is.
    pub(crate) fn settle(&mut self, region: Region, file: OwnedFd, ends: [SessionId; 2]) {
        if let Some(out) = self.weakest_of(ends.into_iter())
            && out.settle(region, file)
        {
            self.will_ring(&out);
        }
    }

    /// Memory of these sessions is left that was not settled.
    pub(crate) fn leave_unsettled(
        &mut self,
        memory: Vec<(Region, OwnedFd)>,
        ends: impl Iterator<Item = SessionId>,
    ) {
        if let Some(out) = self.weakest_of(ends).filter(|_| !memory.is_empty()) {
            out.close(Shared::Unsettled(memory));
            self.will_ring(&out);
        }
    }

    fn weakest_of(&self, ends: impl Iterator<Item = SessionId>) -> Option<PagesOut> {
        let sessions = ends.filter_map(|id| self.get(id));
        sessions.max_by_key(|session| session.peer.uid).map(|session| session.pages.clone())
    }

    /// The thread to which something was handed is to be woken.
    pub(crate) fn will_ring(&mut self, out: &PagesOut) {
        if !self.wakes.page_eventfds.iter().any(|eventfd| Arc::ptr_eq(eventfd, out.eventfd())) {
            self.wakes.page_eventfds.push(Arc::clone(out.eventfd()));
        }
    }

    /// Wakes the threads to which something was handed.
    pub(crate) fn ring_for_pages(&mut self) {
        for eventfd in self.wakes.page_eventfds.drain(..) {
            // Own eventfds do not fail.
            let _ = eventfd.signal();
        }
    }

    /// Finds whose memory the system had no page for, once something was. Both ends of a channel had the use of it.
    pub(crate) fn find_lost_memory(&mut self) {
        if !toe_ring::lost_memory::any_event() {
            return;
        }
        let is_lost = |id: &SessionId| self.get(*id).is_some_and(|session| session.region.is_lost());
        let mut lost: Vec<SessionId> = self.live.iter().copied().filter(is_lost).collect();
        lost.extend(self.channels.ends_of_lost());
        lost.sort_unstable_by_key(|id| id.0);
        lost.dedup();
        // Before what was found in memory that was gone already.
        let faults = lost.into_iter().map(|id| (id, FenceReason::MemoryLost));
        self.faults.splice(0..0, faults);
    }

    pub fn live(&self) -> &[SessionId] {
        &self.live
    }

    pub fn closing(&self) -> &[SessionId] {
        &self.closing
    }

    pub fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.live.iter().filter_map(|&id| Some((id, self.get(id)?)))
    }

    /// Interrupts the hosts for which completions were posted and who sleep; notes in `faults` who is to be fenced.
    pub fn notify(&mut self, now: Instant) {
        while let Some(id) = self.touched.pop() {
            let Some(Slot::Live(session)) = self.slots.get_mut(id.index()) else { continue };
            let touched = std::mem::take(&mut session.to_tell.touched);
            for (index, queue_set) in session.queue_sets.iter_mut().enumerate() {
                if touched & (1 << index) == 0 {
                    continue;
                }
                let key = (id, index as u8);
                match queue_set.notify(now) {
                    Ok(_)
                        if queue_set.irq_deadline().is_far_future()
                            || self.wakes.moderated.contains(&key) => {}
                    Ok(_) => self.wakes.moderated.push(key),
                    Err(reason) => self.faults.push((id, reason)),
                }
            }
            if session.stir(now) {
                self.wakes.woken.push(id);
            }
        }
    }

    /// Something moved: the session stays awake, or wakes up.
    pub fn stir(&mut self, id: SessionId, now: Instant) {
        if let Some(Slot::Live(session)) = self.slots.get_mut(id.index())
            && session.stir(now)
        {
            self.wakes.woken.push(id);
        }
    }

    /// The host of a session that sleeps has rung, and there is nothing: who rings takes back that there is to be rung, so that is
    /// announced again.
    pub fn doze_on(&mut self, id: SessionId, now: Instant) {
        if let Some(Slot::Live(session)) = self.slots.get_mut(id.index())
            && session.is_dozing()
            && session.doze(now)
        {
            self.wakes.woken.push(id);
        }
    }

    /// Notes who sleeps no more. Before anybody goes by that.
    pub fn tell_woken(&mut self, budget: &mut Budget) {
        for id in self.wakes.woken.drain(..) {
            if let Some(Slot::Live(session)) = self.slots.get(id.index()) {
                budget.wake(session.schedule.account, id);
            }
        }
    }

    /// Gives the interrupts that moderated hosts are owed by `now`.
    pub fn expire_interrupts(&mut self, now: Instant) {
        let slots = &mut self.slots;
        self.wakes.moderated.retain(|&(id, index)| {
            let Some(Slot::Live(session)) = slots.get_mut(id.index()) else { return false };
            let Some(queue_set) = session.queue_sets.get_mut(usize::from(index)) else { return false };
            if queue_set.irq_deadline() <= now {
                queue_set.expire_irq(now);
            }
            !queue_set.irq_deadline().is_far_future()
        });
    }

    /// When [`Sessions::expire_interrupts`] is due next.
    pub fn next_interrupt(&self) -> Instant {
        let deadline = |&(id, index): &(SessionId, u8)| {
            let queue_set = self.get(id).and_then(|session| session.queue_sets.get(usize::from(index)));
            queue_set.map_or(Instant::FAR_FUTURE, EngineQueueSet::irq_deadline)
        };
        self.wakes.moderated.iter().map(deadline).min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// The session's doorbell, which is quiet, is not heard for a while.
    pub fn mute(&mut self, id: SessionId, now: Instant) {
        self.wakes.muted.push_back((id, now.after_us(MUTED_US)));
    }

    /// When [`Sessions::unmute`] is due next.
    pub fn next_unmute(&self) -> Instant {
        self.wakes.muted.front().map_or(Instant::FAR_FUTURE, |(_, until)| *until)
    }

    /// Doorbells that are to be heard again.
    pub fn unmute(&mut self, now: Instant, poller: &Poller) {
        while let Some((id, _)) = self.wakes.muted.front().copied().filter(|(_, until)| *until <= now) {
            self.wakes.muted.pop_front();
            let Some(session) = self.get(id) else { continue };
            poller.set_quiet(&session.doorbell, Token::Doorbell(id), false);
        }
    }

    /// Ends the capture of a connection, if it has one; whether it had.
    pub(crate) fn end_capture(&mut self, now: Instant, engine: &mut Engine, conn: u32) -> bool {
        let had = self.captures.end(conn);
        if had {
            engine.handle_control(now, ControlEvent::Captures(self.captures.rules()), self);
        }
        had
    }

    /// Frees the memory of closed sessions that nothing refers to any more.
    pub(crate) fn forget_drained(&mut self, engine: &mut Engine) {
        for index in (0..self.closing().len()).rev() {
            let id = self.closing()[index];
            if engine.forget_session(id) {
                self.forget(id);
            }
        }
    }

    /// A doorbell was rung. Those of an account's that are rung for nothing again and again are not heard for a while: be the
    /// engine asleep, which they wake, or awake, as each costs it a system call.
    pub(crate) fn rung(&mut self, now: Instant, id: SessionId, budget: &mut Budget, poller: &Poller) {
        let Some(session) = self.get_mut(id) else { return };
        // What it was rung for may have been found before.
        let was_served = std::mem::take(&mut session.schedule.was_served);
        if was_served || session.has_work() || session.has_new_room() {
            self.stir(id, now);
            return;
        }
        if budget.rings_too_often(session.schedule.account, now) {
            poller.set_quiet(&session.doorbell, Token::Doorbell(id), true);
            self.mute(id, now);
        }
        self.doze_on(id, now);
    }

    pub(crate) fn queue_set(
        &mut self,
        id: SessionId,
        index: usize,
    ) -> Option<&mut EngineQueueSet<Interrupt>> {
        self.get_mut(id)?.queue_sets.get_mut(index)
    }

    /// Puts quiet sessions to sleep when there are many.
    pub fn doze(&mut self, now: Instant, budget: &mut Budget) {
        if self.live.len() <= SESSIONS_ALWAYS_AWAKE {
            return;
        }
        self.tell_woken(budget);
        budget.retain_awake(|id| self.get_mut(id).is_none_or(|session| session.stays_awake(now)));
    }

    /// Tells every host that the engine is about to sleep; those that sleep on their own have been told. It may do so only if
    /// [`Sessions::need_engine`] then still says no.
    pub fn announce_sleep(&self, budget: &Budget) -> EngineSleep {
        let awake = budget.awake().filter_map(|id| self.get(id));
        EngineSleep::announce(awake.map(|session| (&session.doorbell, session.to_tell.full != 0)))
    }

    /// The engine is awake again; those that sleep on their own stay asleep.
    pub fn end_sleep(&self, sleep: EngineSleep, budget: &Budget) {
        sleep.end(budget.awake().filter_map(|id| self.get(id)).map(|session| &session.doorbell));
    }

    /// Whether a host published anything, or made room that completions wait for. One that sleeps on its own rings.
    pub fn need_engine(&mut self, budget: &Budget) -> bool {
        budget
            .awake()
            .any(|id| self.get_mut(id).is_some_and(|session| session.has_work() || session.has_new_room()))
    }

    /// The engine's view of a session's queue set, if it has opened that many.
    pub fn has_queue_set(&self, id: SessionId, queue_set: QueueSetId) -> bool {
        self.get(id).is_some_and(|session| queue_set.index() < session.queue_sets.len())
    }
}
