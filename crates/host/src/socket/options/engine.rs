//! What the engine is told of an option of a connection.

use crate::socket::Socket;
use toe_abi::entry::{Command, FlowOption};
use toe_base::limits::RECEIVE_WINDOW_INITIAL;

impl Socket {
    /// What bounds the receive window has changed.
    pub(crate) fn bound_window(&'static self, level: i32) {
        let Some(offered) = self.settings.lock().offered_window() else { return };
        self.with_stream(|_, stream, _| stream.recv.credit.set_window(offered));
        self.tell_engine(level, FlowOption::ReceiveWindowMax, offered);
        if offered < RECEIVE_WINDOW_INITIAL {
            self.leave_channel();
        }
    }

    pub(crate) fn tell_engine(&self, level: i32, option: FlowOption, value: u32) {
        self.with_stream(|io, stream, _| {
            if !stream.custody.has_let_go() && stream.endpoints.heed(level) {
                // What is only said beforehand of what is yet to be sent wakes nobody.
                io.command_quietly(Command::SetOption { flow: stream.flow, option, value });
                if !matches!((option, value), (FlowOption::Cork, 1)) {
                    io.ring();
                }
            }
        });
    }

    /// What comes from now on comes by the engine.
    pub(crate) fn leave_channel(&'static self) {
        if let Some((mut queue, slot_id)) = self.lock_owner_queue()
            && queue.stream(slot_id, self).is_some_and(|(_, stream)| stream.direct.is_some())
        {
            queue.leave(slot_id);
        }
    }
}
