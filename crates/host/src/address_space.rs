//! Programs that limit their own address space (RLIMIT_AS). A session's memory is hundreds of MiB of it, of which most is never
//! touched, and all of it counts. What attaches under a limit has asked the engine for less ([`sys::address_room`]); a process that
//! sets one later gets another session, which fits. Called by the switch layer.
//!
//! For that the process is treated as if it were its own child: its connections go back to the engine, which keeps them for
//! whoever shows their descriptors, its session ends, and the new one claims them as they are used. A child that has its parent's
//! connections and no session yet may have no room for one afterwards, and gets it before, with the connections.

use crate::attach::Control;
use crate::session::Session;
use crate::stack::{EngineIdx, Stack};
use crate::{attach, confine, fork, sys};
use toe_abi::errno::Errno;

/// No other thread can be using what is unmapped. Of the directory with an entry for each thread two links are its own.
fn has_one_thread() -> bool {
    rustix::fs::stat("/proc/self/task").is_ok_and(|stat| stat.st_nlink == 2 + 1)
}

/// Bytes that are enough for a session of any engine's, and what the smallest ones may take.
const ENOUGH: u64 = 64 << 20;
const LEAST: u64 = 16 << 20;

/// The process is about to be limited to `limit` bytes.
pub fn before_little(limit: u64) {
    let mapped: u64 = Stack::all_attached().map(|stack| stack.session.layout().len()).sum();
    // What is here already and stays counts against the limit, too.
    let room = || sys::room_below(limit, mapped);
    if sys::is_filtered() {
        return;
    }
    if mapped == 0 {
        if room() < ENOUGH {
            confine::claim_all(|engine| attach_within(engine, room()));
        }
        return;
    }
    if mapped <= room() || !has_one_thread() {
        return;
    }
    // First of all the new ones: where one cannot be had (no descriptor, a quota, an engine out of sight) all stays as it is.
    let mut fitting = Vec::new();
    for engine in Stack::all_attached().map(|stack| stack.session.engine) {
        match open(engine, room()) {
            Ok(stack) => fitting.push(stack),
            Err(_) => return fitting.into_iter().for_each(Session::discard),
        }
    }
    fork::leave_sessions();
    fitting.into_iter().for_each(|stack| _ = Stack::adopt(stack));
}

/// With the smallest session that the engine makes, if it makes none of `room` bytes: of what is below the limit then there may be
/// nothing left, which is better than connections that cannot be used.
fn attach_within(engine: EngineIdx, room: u64) {
    let rooms = std::iter::successors(Some(room.max(LEAST)), |room| Some(room * 2));
    for room in rooms.take_while(|room| *room <= ENOUGH) {
        if Stack::attach_within(engine, room).err() != Some(Errno::ENOMEM) {
            break;
        }
    }
}

fn open(engine: EngineIdx, room: u64) -> Result<Session, Errno> {
    let paths = attach::engines().get(engine.index()).into_iter().flatten();
    let mut outcome = Err(Errno::ECONNREFUSED);
    for path in paths {
        outcome = Control::connect(path).and_then(|control| Session::open_within(engine, control, room));
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}
