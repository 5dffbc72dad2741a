//! How the process comes to its sessions: an engine is looked for when it is needed, and not too often; from then on forks are watched.

use crate::attach::{Control, engines};
use crate::errno::EKEYREJECTED;
use crate::session::Session;
use crate::stack::{EngineIdx, STACKS, Stack};
use crate::sys;
use std::sync::atomic::Ordering;
use toe_abi::errno::Errno;

impl Stack {
    /// The session, attaching on first use and again after the engine has ended. `None`: there is no engine now, or
    /// it refuses.
    pub fn get(engine: EngineIdx) -> Option<&'static Stack> {
        Stack::get_or_why(engine).ok()
    }

    /// The same, with the reason, which may be that of the last attempt: an engine that is not there is not looked for each
    /// time. As of [`Stack::attach`].
    pub fn get_or_why(engine: EngineIdx) -> Result<&'static Stack, Errno> {
        if let Some(stack) = Stack::attached(engine) {
            return Ok(stack);
        }
        not_now(engine).and_then(|()| Stack::attach(engine))
    }

    /// Like [`Stack::get`], at once and with the reason. ECONNREFUSED: no engine. EACCES: it does not let this
    /// user attach. EKEYREJECTED: it is a stranger's.
    /// EPROTO: it speaks another version of the interface.
    pub fn attach(engine: EngineIdx) -> Result<&'static Stack, Errno> {
        Stack::attach_by(engine, Session::open)
    }

    /// The same, with a region of at most `room` bytes. ENOMEM: the engine makes none so small.
    pub fn attach_within(engine: EngineIdx, room: u64) -> Result<&'static Stack, Errno> {
        Stack::attach_by(engine, |engine, control| Session::open_within(engine, control, room))
    }

    /// `open` opens a session.
    fn attach_by(
        engine: EngineIdx,
        open: impl Fn(EngineIdx, Control) -> Result<Session, Errno>,
    ) -> Result<&'static Stack, Errno> {
        let failed_before = STACKS.failed[engine.index()].load(Ordering::Relaxed);
        let mut attaching = STACKS.left.lock();
        if let Some(stack) = Stack::attached(engine) {
            return Ok(stack);
        }
        // What another thread has found out meanwhile.
        let failed = STACKS.failed[engine.index()].load(Ordering::Relaxed);
        if failed != failed_before && failed != 0 {
            return Err(Errno(failed as u16));
        }
        let mut outcome = Err(Errno::ECONNREFUSED);
        for path in engines().get(engine.index()).into_iter().flatten() {
            let tried = Control::connect(path).and_then(|control| open(engine, control));
            match tried {
                Err(Errno::ECONNREFUSED) => {}
                // Who puts himself in the way of another's engine does not keep anybody from it.
                Err(EKEYREJECTED) => outcome = tried,
                _ => {
                    outcome = tried;
                    break;
                }
            }
        }
        match outcome {
            Ok(session) => {
                STACKS.failed[engine.index()].store(0, Ordering::Relaxed);
                crate::fork::install_handlers();
                let stack = Stack::adopt(session);
                stack.session.own_fds().close_left(std::mem::take(&mut attaching));
                Ok(stack)
            }
            Err(errno) => {
                let failed = sys::coarse_ms() << 16 | u64::from(errno.0);
                STACKS.failed[engine.index()].store(failed, Ordering::Relaxed);
                Err(errno)
            }
        }
    }
}

/// The reason why there is no session, as of a moment ago.
fn not_now(engine: EngineIdx) -> Result<(), Errno> {
    let failed = STACKS.failed[engine.index()].load(Ordering::Relaxed);
    let retry_ms = if failed as u16 == Errno::ETIMEDOUT.0 { RETRY_SILENT_MS } else { RETRY_MS };
    let is_fresh = failed != 0 && sys::coarse_ms().saturating_sub(failed >> 16) < retry_ms;
    if is_fresh { Err(Errno(failed as u16)) } else { Ok(()) }
}

/// Least time between two attempts to find an engine, in ms.
const RETRY_MS: u64 = 100;

/// The same where it was found and did not answer: asking takes as long as is waited for it.
const RETRY_SILENT_MS: u64 = 5_000;
