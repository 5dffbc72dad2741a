//! What was set comes to hold for a connection: of a new one the engine is told, and its stream minds the rest.

use super::{OFFLOADED, OOB_INLINE, Settings, pacing_entry};
use crate::queue::QueueIo;
use crate::socket::stream::Stream;
use toe_abi::entry::{Command, FlowOption};

impl Settings {
    /// Tells a new stream, and the engine, of everything that was set before there was one.
    pub fn apply(&self, io: &mut QueueIo, stream: &mut Stream) {
        let flow = stream.flow;
        for ((level, _, option, default), value) in OFFLOADED.iter().zip(self.offloaded) {
            if let Some(value) = value.filter(|value| value != default && stream.endpoints.heed(*level)) {
                io.command(Command::SetOption { flow, option: *option, value });
            }
        }
        if let Some(value) = self.offered_window() {
            io.command(Command::SetOption { flow, option: FlowOption::ReceiveWindowMax, value });
        }
        if self.linger.aborts() {
            io.command(Command::SetOption { flow, option: FlowOption::AbortAtClose, value: 1 });
        }
        if let Some(value) = self.shares_name_now {
            io.command(Command::SetOption { flow, option: FlowOption::SharesName, value });
        }
        if let Some(number) = self.congestion {
            io.command(Command::SetOption { flow, option: FlowOption::Congestion, value: number.into() });
        }
        if let Some(rate) = self.max_pacing {
            let value = pacing_entry(rate);
            io.command(Command::SetOption { flow, option: FlowOption::MaxPacingRate, value });
        }
        self.apply_here(stream);
    }

    /// The part of it that is the stream's own.
    pub(super) fn apply_here(&self, stream: &mut Stream) {
        if let Some(offered) = self.offered_window() {
            stream.recv.credit.set_window(offered);
        }
        if let Some(limit) = self.send_limit {
            stream.send.set_limit(stream.direct.as_deref_mut(), limit);
        }
        // TCP_CORK goes with the bytes, too, as MSG_MORE does: the command that tells the engine may reach it after bytes that were given to it
        // later. The engine keeps it for what others send who have the connection.
        let value_of = |wanted| {
            let set = OFFLOADED.iter().zip(self.offloaded).find(|((_, _, option, _), _)| *option == wanted);
            set.and_then(|(_, value)| value).unwrap_or(0)
        };
        stream.send.corked = value_of(FlowOption::Cork) != 0;
        stream.set_unsent_low_water(value_of(FlowOption::UnsentLowWater));
        if let Some(low_water) = self.low_water {
            stream.recv.low_water = low_water as usize;
        }
        stream.recv.urgent.inline = self.remembered[OOB_INLINE].is_some_and(|on| on != 0);
    }
}
