//! Waits of a call on a socket: for the answer to a command, for the engine's turn.

use crate::block::{BlockOn, OnSignal, block_on};
use crate::queue::{Queue, QueueSet};
use crate::silence::{ANSWER_WITHIN, Silence};
use crate::socket::{Socket, SocketCall};
use crate::sys;
use std::cell::Cell;
use std::time::Duration;
use toe_abi::errno::Errno;

impl Socket {
    pub(super) fn block<'a>(
        call: &'a SocketCall,
        timeout: Option<Duration>,
        moved: Option<&'a Cell<usize>>,
    ) -> BlockOn<'a> {
        BlockOn {
            call,
            deadline: timeout.map(|timeout| sys::now() + timeout),
            silence: None,
            too_late: Errno::EAGAIN,
            twin_ready: None,
            on_signal: OnSignal::Restart,
            moved,
            pace: None,
        }
    }

    /// Publishes a command by `start` and waits for its result. Signals do not end the wait.
    pub(super) fn command(
        &'static self,
        owner_queue: &'static QueueSet,
        start: &mut dyn FnMut(&mut Queue) -> Option<u32>,
    ) -> Result<u32, Errno> {
        self.command_within(ANSWER_WITHIN, owner_queue, start)
    }

    /// The same for so long at most; ETIMEDOUT then, and at once while the engine owes another answer that was given up on.
    pub(super) fn command_within(
        &'static self,
        limit: Duration,
        owner_queue: &'static QueueSet,
        start: &mut dyn FnMut(&mut Queue) -> Option<u32>,
    ) -> Result<u32, Errno> {
        // The wait parks on the owner queue's interrupt.
        self.set_owner_queue(owner_queue);
        let silence = Silence::within(limit);
        let mut token = None;
        let mut attempt = || {
            let mut queue = owner_queue.lock();
            if owner_queue.is_dead() {
                return Err(Errno::ENETDOWN);
            }
            queue.drain();
            if token.is_none() {
                if queue.has_pending_answer() {
                    return Err(Errno::ETIMEDOUT);
                }
                token = start(&mut queue);
            }
            match token.and_then(|token| queue.take_result(token)) {
                Some(result) => result.map(Some),
                None => {
                    drop(queue);
                    owner_queue.look();
                    Ok(None)
                }
            }
        };
        let call = SocketCall::begin(self);
        let outcome = loop {
            let on = BlockOn {
                silence: Some(&silence),
                too_late: Errno::ETIMEDOUT,
                on_signal: OnSignal::Defer,
                ..Socket::block(&call, None, None)
            };
            match block_on(on, &mut attempt) {
                Err(Errno::EINTR) => {}
                other => break other,
            }
        };
        if let (Err(_), Some(token)) = (outcome, token) {
            owner_queue.lock().abandon_result(token);
        }
        outcome
    }

    /// Waits for the peer's answer if it connects without the engine's answer: as with Linux, what a program finds right after connect
    /// to a listener of this host is a connection, with addresses, that can be written to. Where the peer does not answer at once the
    /// addresses are all that there is. `true`: it has waited.
    pub(crate) fn await_connect(&'static self) -> bool {
        if self.peek_stream(|stream| stream.is_unanswered()) != Some(true) {
            return false;
        }
        let silence = Silence::within(ANSWER_WITHIN);
        let mut attempt = || {
            let waits = self.with_stream(|_, stream, _| stream.is_unanswered());
            Ok((waits != Some(true)).then_some(()))
        };
        let call = SocketCall::begin(self);
        loop {
            let on = BlockOn {
                silence: Some(&silence),
                on_signal: OnSignal::Defer,
                // No interrupt tells of it where the peer's answer does not come at once.
                ..Socket::block(&call, Some(LOOK_AGAIN), None)
            };
            let outcome: Result<(), Errno> = block_on(on, &mut attempt);
            let info = self.flow_info();
            self.peek_stream(|stream| info.inspect(|info| stream.read_name(info)));
            if !matches!(outcome, Err(Errno::EAGAIN | Errno::EINTR)) {
                return true;
            }
            if silence.is_over() {
                return false;
            }
        }
    }
}

/// How often it is looked for what comes without an interrupt.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
