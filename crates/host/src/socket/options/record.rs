//! Options as they go with a connection to whoever has it next: over exec, in a message, to a child and back. They are written down
//! in the session's region before anybody else can have the descriptor, and at once when they change after that, and the engine puts
//! them before who claims the flow ([`toe_abi::command::SocketOptions`]).
//!
//! Each is its level, its number, how many bytes follow, and these; what is not there is as if it had never been set. Who reads
//! them believes them as little as the engine does: they come from a process that may be another user's.

use super::{OFFLOADED, RECEIVE_WINDOW_NEAR, REMEMBERED, Settings};
use crate::queue::{Queue, QueueIo};
use crate::slots::SlotId;
use crate::socket::options::values::{Linger, low_water_of};
use crate::socket::stream::Stream;
use crate::socket::{Kind, Socket};
use std::sync::atomic::Ordering;
use toe_abi::command::SocketOptions;
use toe_base::FlowId;

const SOCKET: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;

/// The options that are written down, in the order of their setting.
struct Writer<'a>(&'a mut SocketOptions);

impl Writer<'_> {
    /// There is room for as many as there are; what has none is lost, as what [`crate::socket::options::remembered::SavedOptions`] has no room for is.
    fn put(&mut self, level: i32, name: i32, value: &[u8]) {
        let numbers = (u8::try_from(level), u8::try_from(name), u8::try_from(value.len()));
        let (Ok(level), Ok(name), Ok(len)) = numbers else { return };
        let at = self.0.len as usize;
        let Some(room) = self.0.bytes.get_mut(at..at + 3 + value.len()) else { return };
        room[..3].copy_from_slice(&[level, name, len]);
        room[3..].copy_from_slice(value);
        self.0.len += room.len() as u32;
    }

    fn put_some<const N: usize>(&mut self, level: i32, name: i32, value: Option<[u8; N]>) {
        if let Some(value) = value {
            self.put(level, name, &value);
        }
    }
}

/// Each option that is in the record.
fn each(record: &SocketOptions, mut f: impl FnMut(i32, i32, &[u8])) {
    let mut rest = &record.bytes[..(record.len as usize).min(record.bytes.len())];
    while let [level, name, len, behind @ ..] = rest
        && let Some((value, next)) = behind.split_at_checked(usize::from(*len))
    {
        f((*level).into(), (*name).into(), value);
        rest = next;
    }
}

fn word(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn long(value: &[u8]) -> Option<u64> {
    value.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
}

impl Settings {
    fn write_down(&self, to: &mut Writer<'_>) {
        for ((level, name, ..), value) in OFFLOADED.iter().zip(self.offloaded) {
            to.put_some(*level, *name, value.map(u32::to_ne_bytes));
        }
        for ((level, name), value) in REMEMBERED.iter().zip(self.remembered) {
            to.put_some(*level, *name, value.map(i32::to_ne_bytes));
        }
        to.put_some(SOCKET, libc::SO_RCVBUF, self.receive_window.map(u32::to_ne_bytes));
        to.put_some(SOCKET, libc::SO_SNDBUF, self.send_limit.map(u32::to_ne_bytes));
        to.put_some(SOCKET, libc::SO_RCVLOWAT, self.low_water.map(u32::to_ne_bytes));
        to.put_some(SOCKET, libc::SO_LINGER, (self.linger != Linger::default()).then(|| self.linger.value()));
        to.put_some(SOCKET, libc::SO_MAX_PACING_RATE, self.max_pacing.map(u64::to_ne_bytes));
        to.put_some(TCP, libc::TCP_CONGESTION, self.congestion.map(|number| [number]));
        self.saved.each(|level, name, value| to.put(level, name, value));
    }

    /// What was written down replaces what was known here; what is not an option stays.
    fn take(&mut self, record: &SocketOptions) {
        *self = Settings {
            local: self.local,
            backlog: self.backlog,
            has_twin: self.has_twin,
            active: self.active,
            signals: self.signals,
            shares_name_now: self.shares_name_now,
            ..Settings::default()
        };
        each(record, |level, name, value| self.take_one(level, name, value));
    }

    fn take_one(&mut self, level: i32, name: i32, value: &[u8]) {
        let is_it = |known: (i32, i32)| known == (level, name);
        if let Some(at) = OFFLOADED.iter().position(|(level, name, ..)| is_it((*level, *name))) {
            self.offloaded[at] = word(value);
        } else if let Some(at) = REMEMBERED.iter().position(|known| is_it(*known)) {
            self.remembered[at] = word(value).map(|value| value as i32);
        } else {
            match (level, name) {
                (SOCKET, libc::SO_RCVBUF) => self.receive_window = word(value),
                (SOCKET, libc::SO_SNDBUF) => self.send_limit = word(value),
                (SOCKET, libc::SO_RCVLOWAT) => {
                    let most = self.receive_window.unwrap_or(RECEIVE_WINDOW_NEAR);
                    self.low_water = word(value).map(|low_water| low_water_of(low_water, most));
                }
                (SOCKET, libc::SO_LINGER) => self.linger = Linger::of(value),
                (SOCKET, libc::SO_MAX_PACING_RATE) => self.max_pacing = long(value),
                (TCP, libc::TCP_CONGESTION) => self.congestion = value.first().copied(),
                // The socket itself has them.
                (SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO | libc::SO_ERROR) => {}
                _ => self.saved.set(level, name, value),
            }
        }
    }
}

impl Socket {
    /// An option has been set: others that have the connection are to know.
    pub(in crate::socket) fn note_changed_option(&'static self) {
        self.has_new_options.store(true, Ordering::Release);
        if self.is_shared()
            && self.kind() == Kind::Stream
            && let Some((mut queue, slot_id)) = self.lock_owner_queue()
        {
            queue.write_options_of(slot_id);
        }
    }

    /// What is to be written down of a stream that has ended like that, if there is anything new.
    fn changed_options(&self, flow: FlowId, ending: u8) -> Option<SocketOptions> {
        // Before each child that is asked of every connection, so what says no is not written to.
        let is_new = || {
            self.has_new_options.load(Ordering::Acquire) && self.has_new_options.swap(false, Ordering::AcqRel)
        };
        if !is_new() && ending == 0 {
            return None;
        }
        let settings = self.settings.lock();
        let mut record = SocketOptions { flow: flow.raw(), ..SocketOptions::default() };
        let mut writer = Writer(&mut record);
        writer.put_some(SOCKET, libc::SO_ERROR, (ending != 0).then_some([ending]));
        settings.write_down(&mut writer);
        for (name, limit) in self.time_limits.named() {
            writer.put(SOCKET, name, &limit.raw().to_ne_bytes());
        }
        Some(record)
    }

    /// The stream has just been claimed: with the options that whoever had it has written down, or else those known here.
    pub(in crate::socket) fn take_options(&self, io: &QueueIo, stream: &mut Stream) {
        let at = io.session.layout().socket_options(stream.flow.slot());
        let record = io.region.read_record::<SocketOptions>(at).unwrap_or_default();
        let mut settings = self.settings.lock();
        if record.flow == stream.flow.raw() {
            settings.take(&record);
            self.tells_unread.store(settings.tells_unread(), Ordering::Relaxed);
            each(&record, |level, name, value| match (level, name) {
                (SOCKET, libc::SO_RCVTIMEO) => self.time_limits.receive.set_raw(long(value).unwrap_or(0)),
                (SOCKET, libc::SO_SNDTIMEO) => self.time_limits.send.set_raw(long(value).unwrap_or(0)),
                (SOCKET, libc::SO_ERROR) => stream.ended_before(value.first().copied().unwrap_or(0)),
                _ => {}
            });
        }
        settings.apply_here(stream);
    }
}

impl Queue {
    fn write_options_of(&mut self, slot_id: SlotId) {
        let at = |io: &QueueIo, flow: FlowId| io.session.layout().socket_options(flow.slot());
        let Some(stream) = self.streams.get_mut(slot_id) else { return };
        let has_ended = stream.custody.has_let_go() && !stream.link.is_disconnected();
        if has_ended || stream.link.is_moved() || self.io.session.is_foreign() {
            return;
        }
        let ending = stream.ending();
        if let Some(record) =
            stream.custody.socket().and_then(|socket| socket.changed_options(stream.flow, ending))
        {
            let _ = self.io.region.write_record(at(&self.io, stream.flow), &record);
        }
    }

    /// Another process is about to have a descriptor of them, or of one of them.
    pub(crate) fn write_options(&mut self, only: Option<SlotId>) {
        match only {
            Some(slot_id) => self.write_options_of(slot_id),
            None => {
                let slot_ids: Vec<SlotId> = self.streams.iter().map(|(slot_id, _)| slot_id).collect();
                slot_ids.into_iter().for_each(|slot_id| self.write_options_of(slot_id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_down_is_read_again() {
        let (from, to) = (Socket::allocate(), Socket::allocate());
        let flow = FlowId::new(3, 7);
        assert_eq!(from.changed_options(flow, 0), None, "nothing was set");
        let int = |value: i32| value.to_ne_bytes();
        for (level, name, ..) in OFFLOADED {
            assert_eq!(from.set_option(level, name, &int(1)), Ok(()), "{level} {name}");
        }
        from.set_option(SOCKET, libc::SO_LINGER, &[1, 0, 0, 0, 9, 0, 0, 0]).unwrap();
        from.set_option(SOCKET, libc::SO_RCVBUF, &int(70_000)).unwrap();
        from.set_option(SOCKET, libc::SO_RCVLOWAT, &int(500)).unwrap();
        from.keep_option(SOCKET, libc::SO_MARK, &int(11));
        let record = from.changed_options(flow, 0).expect("they have changed");
        assert_eq!(from.changed_options(flow, 0), None, "it is written down");
        to.settings.lock().take(&record);
        let get = |socket: &'static Socket, level, name| {
            let mut value = [0; 16];
            socket.get_option(level, name, &mut value).map(|_| value)
        };
        for (level, name, ..) in OFFLOADED {
            assert_eq!(get(to, level, name), get(from, level, name), "{level} {name}");
        }
        for name in [libc::SO_LINGER, libc::SO_RCVBUF, libc::SO_RCVLOWAT] {
            assert_eq!(get(to, SOCKET, name), get(from, SOCKET, name), "{name}");
        }
        let mut mark = Vec::new();
        to.with_saved_option(SOCKET, libc::SO_MARK, |value| mark.extend_from_slice(value));
        assert_eq!(mark, int(11));
        from.abandon();
        to.abandon();
    }

    #[test]
    fn what_a_stranger_writes_down_is_cut_to_what_is_there() {
        let mut settings = Settings::default();
        let mut record = SocketOptions { len: u32::MAX, ..SocketOptions::default() };
        record.bytes.fill(0xff);
        settings.take(&record);
        let low_water = libc::SO_RCVLOWAT as u8;
        record.bytes[..7].copy_from_slice(&[libc::SOL_SOCKET as u8, low_water, 4, 0xff, 0xff, 0xff, 0xff]);
        record.len = 7;
        settings.take(&record);
        assert_eq!(settings.low_water, Some(RECEIVE_WINDOW_NEAR / 2));
        record.bytes[2] = 2;
        record.len = 4;
        settings.take(&record);
        assert_eq!(settings.low_water, None);
    }
}
