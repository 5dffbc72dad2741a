//! ReportQueue that are being made, and when the next one may be: lists of all sockets (`toe ss`) are made some sockets in each round, as there may be
//! tens of thousands of them, and nobody is to wait for a list of somebody else's. Begun by `attach`, carried on by the run loop.

use crate::budget::Budget;
use crate::clock::Clock;
use crate::control_server::socket::Answer;
use crate::policy::{Credentials, Policy};
use crate::ports::Ports;
use crate::report::{self, View};
use crate::session::Sessions;
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use toe_abi::attach::Reply;
use toe_abi::errno::Errno;
use toe_base::{Cred, Instant};
use toe_engine::{Engine, SocketCursor, SocketView, TcpConfig};

/// Lists that are being made at one time, one for an account.
const LISTS_MAX: usize = 16;
/// Places for sockets that one step looks at: some tens of µs if there is one in each.
const SLOTS_PER_STEP: usize = 16;

/// One list.
#[derive(Debug)]
struct List {
    /// The control connection that asked for it.
    conn: u32,
    who: Credentials,
    account: Cred,
    cursor: SocketCursor,
    memory: File,
    len: u64,
    /// How long its steps took.
    spent_us: u64,
}

/// What came of the lists in a round.
#[derive(Debug)]
pub(crate) enum ListStep {
    /// There is none.
    Nothing,
    /// One step was done, or waits for its account's turn.
    On,
    /// One is made, or cannot be: the answer to this connection.
    Made(u32, Answer),
}

/// What reports say of how it was configured.
#[derive(Debug)]
pub(crate) struct Configured {
    pub(crate) name: String,
    pub(crate) tcp: TcpConfig,
}

/// The reports that are being made.
#[derive(Debug)]
pub(crate) struct ReportQueue {
    pub(crate) configured: Configured,
    /// Lists, whose step is next first.
    lists: VecDeque<List>,
    /// None is begun before this time, so that asking for reports cannot keep the engine from its work.
    pub(crate) not_before: Instant,
    /// So many were begun.
    pub(crate) begun: u64,
    /// Kept for its memory.
    listed: Vec<SocketView>,
}

impl ReportQueue {
    pub(crate) fn of(configured: Configured) -> ReportQueue {
        let (lists, listed) = (VecDeque::new(), Vec::new());
        ReportQueue { configured, lists, not_before: Instant::ZERO, begun: 0, listed }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Nobody waits at this connection any more.
    pub(crate) fn forget(&mut self, conn: u32) {
        self.lists.retain(|list| list.conn != conn);
    }

    /// A report that is made at once.
    pub(crate) fn begin(&mut self, now: Instant) -> Result<(), Errno> {
        if now < self.not_before {
            return Err(Errno::EAGAIN);
        }
        self.begun += 1;
        Ok(())
    }

    /// One took so long: they may take a tenth of the engine's time, however often they are asked for.
    pub(crate) fn took(&mut self, until: Instant, us: u64) {
        self.not_before = until.after_us(9 * us);
    }

    /// A host asks for a list; the answer comes when it is made.
    pub(crate) fn begin_list(
        &mut self,
        now: Instant,
        conn: u32,
        who: Credentials,
        account: Cred,
    ) -> Result<(), Errno> {
        if self.lists.len() >= LISTS_MAX || self.lists.iter().any(|list| list.account == account) {
            return Err(Errno::EAGAIN);
        }
        self.begin(now)?;
        let mut memory = report::report_memory().map_err(|_| Errno::ENOMEM)?;
        memory.write_all(START).map_err(|_| Errno::ENOMEM)?;
        let (cursor, len) = (SocketCursor::at(now), START_LEN);
        self.lists.push_back(List { conn, who, account, cursor, memory, len, spent_us: 0 });
        Ok(())
    }

    /// One step of one list, if its account may go.
    pub(crate) fn carry_on(
        &mut self,
        now: Instant,
        (engine, sessions, ports): (&Engine, &Sessions, &Ports),
        policy: &Policy,
        budget: &mut Budget,
        clock: &Clock,
    ) -> ListStep {
        let Some(mut list) = self.lists.pop_front() else { return ListStep::Nothing };
        let is_shared = budget.is_shared_with_others(list.account);
        if is_shared && !budget.may_go(list.account) {
            self.lists.push_back(list);
            return ListStep::On;
        }
        let before = clock.nanos();
        let view = View { policy, who: &list.who, sessions, ports };
        let is_more = engine.view().more_sockets(&mut list.cursor, SLOTS_PER_STEP, &mut self.listed);
        let text = text_of(&view, list.len > START_LEN, self.listed.drain(..));
        let step = text.and_then(|text| list.add(&text)).map(|()| is_more);
        let ns = clock.nanos() - before;
        list.spent_us += ns / 1000;
        if is_shared {
            budget.charge(list.account, ns);
        }
        if matches!(step, Ok(true)) {
            self.lists.push_back(list);
            return ListStep::On;
        }
        let List { conn, len, spent_us, .. } = list;
        self.took(now, spent_us);
        let made = step.and_then(|_| finish(list));
        let answer = made.map(|memory| (Reply::Report { len: len + END.len() as u64 }, vec![memory]));
        ListStep::Made(conn, answer)
    }
}

impl List {
    fn add(&mut self, text: &[u8]) -> Result<(), Errno> {
        self.memory.write_all(text).map_err(|_| Errno::ENOMEM)?;
        self.len += text.len() as u64;
        Ok(())
    }
}

/// The next sockets of a list that has some already, or has none.
fn text_of(
    view: &View<'_>,
    has_some: bool,
    sockets: impl Iterator<Item = SocketView>,
) -> Result<Vec<u8>, Errno> {
    let mut text = Vec::new();
    for socket in sockets.filter(|socket| view.shows_socket(socket)) {
        if has_some || !text.is_empty() {
            text.push(b',');
        }
        serde_json::to_writer(&mut text, &view.socket(&socket)).map_err(|_| Errno::EIO)?;
    }
    Ok(text)
}

/// What stands around the sockets.
const START: &[u8] = br#"{"sockets":["#;
const START_LEN: u64 = START.len() as u64;
const END: &[u8] = b"]}";

fn finish(mut list: List) -> Result<OwnedFd, Errno> {
    list.memory.write_all(END).map_err(|_| Errno::ENOMEM)?;
    report::sealed(list.memory).map_err(|_| Errno::ENOMEM)
}
