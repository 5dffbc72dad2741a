//! Lists of all sockets (`toe ss`) that are being made, some sockets in each round: there may be tens of thousands of them, and
//! nobody is to wait for a list of somebody else's. Begun by `attach`, carried on by the run loop.

use crate::daemon::Daemon;
use crate::policy::Credentials;
use crate::report::{self, View};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use toe_abi::attach::Reply;
use toe_abi::errno::Errno;
use toe_base::{Cred, Instant};
use toe_engine::SocketCursor;

/// Lists that are being made at one time, one for an account.
const LISTS_MAX: usize = 16;
/// Places for sockets that one step looks at: some tens of µs if there is one in each.
const PLACES_PER_STEP: usize = 16;

/// One list.
#[derive(Debug)]
struct List {
    /// The control connection that asked for it.
    place: u32,
    who: Credentials,
    account: Cred,
    cursor: SocketCursor,
    memory: File,
    len: u64,
    /// How long its steps took.
    spent_us: u64,
}

/// The lists that are being made, whose step is next first.
#[derive(Debug, Default)]
pub struct Lists(VecDeque<List>);

impl Lists {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nobody waits at this connection any more.
    pub fn forget(&mut self, place: u32) {
        self.0.retain(|list| list.place != place);
    }
}

impl Daemon {
    /// A host asks for a list; the answer comes when it is made.
    pub(crate) fn begin_list(&mut self, now: Instant, place: u32) -> Result<(), Errno> {
        let who = self.connections.get(place).ok_or(Errno::EBADF)?.who.clone();
        let account = self.engine.view().users().account(who.cred());
        let lists = &self.lists.0;
        if now < self.next_report
            || lists.len() >= LISTS_MAX
            || lists.iter().any(|list| list.account == account)
        {
            return Err(Errno::EAGAIN);
        }
        self.counts.reports += 1;
        let mut memory = report::report_memory().map_err(|_| Errno::ENOMEM)?;
        memory.write_all(START).map_err(|_| Errno::ENOMEM)?;
        let (cursor, len) = (SocketCursor::at(now), START_LEN);
        self.lists.0.push_back(List { place, who, account, cursor, memory, len, spent_us: 0 });
        Ok(())
    }

    /// One step of one list, if its account may go. Whether there was one.
    pub(crate) fn carry_on_lists(&mut self, now: Instant) -> bool {
        let Some(mut list) = self.lists.0.pop_front() else { return false };
        let is_shared = self.budget.is_shared_beside(list.account);
        if is_shared && !self.budget.may_go(list.account) {
            self.lists.0.push_back(list);
            return true;
        }
        let before = self.clock.nanos();
        let step = self.lengthen(&mut list);
        let ns = self.clock.nanos() - before;
        list.spent_us += ns / 1000;
        if is_shared {
            self.budget.charge(list.account, ns);
        }
        if matches!(step, Ok(true)) {
            self.lists.0.push_back(list);
            return true;
        }
        let List { place, len, spent_us, .. } = list;
        // Reports may take a tenth of the engine's time, however often they are asked for.
        self.next_report = now.after_us(9 * spent_us);
        let made = step.and_then(|_| finish(list));
        let answer = made.map(|memory| (Reply::Report { len: len + END.len() as u64 }, vec![memory]));
        self.reply(now, place, answer);
        true
    }

    /// Adds the next sockets. `false`: those were the last ones.
    fn lengthen(&mut self, list: &mut List) -> Result<bool, Errno> {
        let view = View { policy: &self.policy, who: &list.who };
        let mut sockets = std::mem::take(&mut self.listed);
        let is_more = self.engine.view().more_sockets(&mut list.cursor, PLACES_PER_STEP, &mut sockets);
        let mut text = Vec::new();
        for socket in sockets.drain(..).filter(|socket| self.is_visible(socket, &view)) {
            if list.len + text.len() as u64 > START_LEN {
                text.push(b',');
            }
            serde_json::to_writer(&mut text, &self.socket_report(&socket, &view)).map_err(|_| Errno::EIO)?;
        }
        self.listed = sockets;
        list.memory.write_all(&text).map_err(|_| Errno::ENOMEM)?;
        list.len += text.len() as u64;
        Ok(is_more)
    }
}

/// What stands around the sockets.
const START: &[u8] = br#"{"sockets":["#;
const START_LEN: u64 = START.len() as u64;
const END: &[u8] = b"]}";

fn finish(mut list: List) -> Result<OwnedFd, Errno> {
    list.memory.write_all(END).map_err(|_| Errno::ENOMEM)?;
    report::sealed(list.memory).map_err(|_| Errno::ENOMEM)
}
