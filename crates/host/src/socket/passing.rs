//! A descriptor goes to another process while this one may have what only it can reach.

use crate::socket::Socket;
use crate::socket::shared::LOCAL;
use crate::socket::stream::Link;
use toe_abi::entry::Command;

impl Socket {
    /// Waits until no thread is inside a call that began before [`Socket::mark_shared`], and gives up what only this process
    /// can reach: whoever gets the descriptor must not have to wait until this process makes a call.
    pub fn let_others_finish(&'static self) {
        self.with_stream(|_, _, _| ());
        let Some((mut queue, slot_id)) = self.lock_owner_queue() else { return };
        queue.write_options(Some(slot_id));
        let Some((io, stream)) = queue.stream(slot_id, self) else { return };
        if let Some(anchor) = stream.custody.anchor {
            // The receiver is believed only then, if the anchor had been another connection's.
            io.command(Command::Lend { anchor });
        }
        let flow = (stream.link == Link::Open && !stream.custody.has_let_go()).then_some(stream.flow);
        // One between programs may get a channel later.
        let may_be_direct = flow.is_some_and(|flow| queue.flow_info(flow).port == LOCAL);
        drop(queue);
        if may_be_direct {
            self.relinquish();
        }
    }
}
