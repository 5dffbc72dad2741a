//! What anchors are to the engine: handed to sessions, shared, and closed. Called by `attach` and by the run loop.

use super::{Anchors, Made, SessionDirId, Unwatched};
use crate::control_server::socket::Answer;
use crate::session::Sessions;
use toe_abi::attach::{ANCHORS_AT_ONCE, Reply};
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, Instant, SessionId};
use toe_engine::{AnchorUse, ControlEvent, Engine};

/// Anchors looked after in one turn.
const DOUBTS_PER_ROUND: usize = 64;

impl Anchors {
    /// Handles that follow each other for up to `count` anchors, which the control server makes.
    pub(crate) fn grant(
        &mut self,
        now: Instant,
        (engine, sessions): (&mut Engine, &mut Sessions),
        id: SessionId,
        count: u32,
    ) -> Result<(SessionDirId, AnchorHandle, u32), Errno> {
        if count == 0 || count > ANCHORS_AT_ONCE {
            return Err(Errno::EINVAL);
        }
        let session_dir = self.session_dir_of(id).ok_or(Errno::EINVAL)?;
        let first = engine.take_anchor(id)?;
        for n in 1..count {
            let Ok(handle) = engine.take_anchor(id) else { return Ok((session_dir, first, n)) };
            if handle.0 != first.0.wrapping_add(n) {
                engine.handle_control(now, ControlEvent::Shared(handle), sessions);
                engine.handle_control(now, ControlEvent::LastClose(handle), sessions);
                return Ok((session_dir, first, n));
            }
        }
        Ok((session_dir, first, count))
    }

    /// The control server has made anchors, from the first on.
    pub(crate) fn made(
        &mut self,
        now: Instant,
        (engine, sessions): (&mut Engine, &mut Sessions),
        id: Option<SessionId>,
        wanted: u32,
        made: &Made,
    ) -> Answer {
        let (session_dir, first, count) = (made.session_dir, made.first, made.identities.len() as u32);
        let handle = |n: u32| AnchorHandle(first.0.wrapping_add(n));
        let lives = id.and_then(|id| self.session_dir_of(id)) == Some(session_dir);
        if lives {
            self.add(made);
        } else {
            self.refuse(made);
        }
        for handle in (if lives { count } else { 0 }..wanted).map(handle) {
            // Not made. Its session may have guessed the handle and used it already.
            engine.handle_control(now, ControlEvent::Shared(handle), sessions);
            engine.handle_control(now, ControlEvent::LastClose(handle), sessions);
        }
        if !lives || count == 0 {
            return Err(Errno::EMFILE);
        }
        Ok((Reply::Anchors { first: first.0, count }, Vec::new()))
    }

    /// Nobody has the anchor open any more.
    pub(crate) fn last_close(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        sessions: &mut Sessions,
        anchor: AnchorHandle,
    ) {
        engine.handle_control(now, ControlEvent::LastClose(anchor), sessions);
        self.closed(anchor);
    }

    /// The anchor is no longer for the session alone that it was made for.
    pub(crate) fn share(
        &mut self,
        now: Instant,
        engine: &mut Engine,
        sessions: &mut Sessions,
        anchor: AnchorHandle,
    ) {
        engine.handle_control(now, ControlEvent::Shared(anchor), sessions);
        self.remove_name(anchor);
    }

    /// Takes what users' threads have found out about their anchors, and looks after some that are in doubt.
    pub(crate) fn settle(&mut self, now: Instant, engine: &mut Engine, sessions: &mut Sessions) {
        self.take_unwatched(now, engine, sessions);
        self.resolve_doubts(now, engine, sessions);
    }

    /// Takes what users' threads have found out about their anchors.
    fn take_unwatched(&mut self, now: Instant, engine: &mut Engine, sessions: &mut Sessions) {
        self.take_events();
        while let Some(Unwatched { handle, closed }) = self.next_unwatched() {
            if self.is_left(handle) {
                tracing::warn!("a shared socket is lost: raise fs.inotify.max_user_watches");
                self.remove(handle);
                engine.handle_control(now, ControlEvent::LastClose(handle), sessions);
                continue;
            }
            // It is still reported by name, for which the first session has to be trusted.
            tracing::warn!("an anchor cannot be watched by itself: raise fs.inotify.max_user_watches");
            if closed {
                self.last_close(now, engine, sessions, handle);
            }
        }
    }

    /// Looks after some anchors whose session is gone or whose end may have gone unreported.
    fn resolve_doubts(&mut self, now: Instant, engine: &mut Engine, sessions: &mut Sessions) {
        for _ in 0..DOUBTS_PER_ROUND.min(self.doubts()) {
            let Some(anchor) = self.next_doubtful() else { break };
            let left = self.is_left(anchor);
            match engine.view().anchor_use(anchor) {
                AnchorUse::Unused | AnchorUse::Over if left => self.remove(anchor),
                AnchorUse::Unused => {}
                // Its host opens it only once it is connected, and then it must still have a name.
                AnchorUse::Opening if !left => self.doubt(anchor),
                _ => self.share(now, engine, sessions, anchor),
            }
        }
    }
}
