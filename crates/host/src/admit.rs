//! Handing the right to attach on, before this process becomes another user: a server that root started and that gives
//! root up, or whose workers do, goes on with its engines. Called by the switch layer before setuid(2) and its like.
//!
//! It often happens between fork and exec, so nothing of this process's sessions is used or changed: each engine is asked
//! over a connection of its own. And it must not hinder the program: without an engine it is one connect that fails, and an
//! engine that does not answer is left alone after a moment.

use crate::attach::{Control, engines};
use crate::sys::Fd;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{MemfdFlags, Uid};
use std::time::Duration;
use toe_abi::attach::{ReportKind, Request};
use toe_abi::errno::Errno;

/// An engine answers within a round of its loop; one that has been stopped never does.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// A thing of that user's: in a user namespace of this process's own the number means another user than to the engine, and the kernel
/// says whose the thing is in the engine's. `None`: this process may give nothing away, and the number has to do.
fn thing_of(uid: u32) -> Option<Fd> {
    let thing = rustix::fs::memfd_create("toe-user", MemfdFlags::CLOEXEC).map(Fd::from).ok()?;
    rustix::fs::fchown(&thing, Some(Uid::from_raw(uid)), None).ok()?;
    Some(thing)
}

/// This process is about to become user `uid`.
pub fn before_becoming(uid: u32) {
    // Root alone becomes somebody else; and what is asked for by a process whose calls are filtered may kill it.
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || uid == 0 || uid == u32::MAX || crate::sys::is_filtered() {
        return;
    }
    for paths in engines() {
        for path in paths {
            let asked = Control::connect_within(path, ANSWER_WITHIN).and_then(|control| {
                // Until the engine's door has seen who this is, no descriptor gets in (SO_PASSRIGHTS): an answer says that it has, and so
                // does that there is no report so soon after another one.
                match control.request(Request::Report { what: ReportKind::Status }, &[]) {
                    Ok(_) | Err(Errno::EAGAIN) => {}
                    Err(errno) => return Err(errno),
                }
                let presented = thing_of(uid);
                let presented: Vec<BorrowedFd<'_>> = presented.iter().map(AsFd::as_fd).collect();
                control.request(Request::Admit { uid }, &presented)
            });
            // None there: it may be at the next of its places. Whatever else it answers, there is nothing more to do.
            if asked.err() != Some(Errno::ECONNREFUSED) {
                break;
            }
        }
    }
}
