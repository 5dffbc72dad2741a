//! `setsockopt` and `getsockopt`: which option is whose.

use crate::socket::options::values::{int, low_water_of, put};
use crate::socket::options::{
    MAXSEG, OFFLOADED, OOB_INLINE, REMEMBERED, REMEMBERED_DEFAULTS, TCP_INQ, congestion_number, knows,
    offloaded_value, pacing_entry, pacing_rate,
};
use crate::socket::saved_options::WITHOUT_EFFECT;
use crate::socket::stream::Link;
use crate::socket::{Kind, Socket};
use crate::tls;
use std::sync::atomic::Ordering;
use toe_abi::congestion;
use toe_abi::entry::{Command, FlowOption};
use toe_abi::errno::Errno;
use toe_base::limits::{RECEIVE_WINDOW_INITIAL, RECEIVE_WINDOW_NEAR};

impl Socket {
    /// `setsockopt`, with the value as the C call has it. ENOPROTOOPT: no such option here.
    pub fn set_option(&'static self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.settle_here()?;
        match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_ULP) => return self.set_upper_protocol(value),
            (tls::SOL_TLS, _) => return self.set_tls_option(name, value),
            (libc::SOL_SOCKET, libc::SO_LINGER) => self.set_linger(level, value)?,
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => self.time_limits.receive.set(value)?,
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => self.time_limits.send.set(value)?,
            (
                libc::SOL_SOCKET,
                libc::SO_RCVBUF | libc::SO_RCVBUFFORCE | libc::SO_SNDBUF | libc::SO_SNDBUFFORCE,
            ) => self.set_buffer(level, name, int(value)?),
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => {
                // Linux: a negative one is as large as can be. More than a window holds would never come.
                let most = self.settings.lock().receive_window.unwrap_or(RECEIVE_WINDOW_NEAR);
                let low_water = low_water_of(u32::try_from(int(value)?).unwrap_or(u32::MAX), most);
                self.settings.lock().low_water = Some(low_water);
                self.with_stream(|_, stream, _| {
                    stream.recv.low_water = low_water as usize;
                    stream.publish(0);
                });
            }
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => {
                let number = congestion_number(value)?;
                self.settings.lock().congestion = Some(number);
                self.tell_engine(level, FlowOption::Congestion, number.into());
            }
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => {
                let rate = pacing_rate(value)?;
                self.settings.lock().max_pacing = Some(rate);
                self.tell_engine(level, FlowOption::MaxPacingRate, pacing_entry(rate));
            }
            _ if !knows(level, name) => return Err(Errno::ENOPROTOOPT),
            _ => self.set_int_option(level, name, int(value)?)?,
        }
        self.note_changed_option();
        Ok(())
    }

    fn set_int_option(&'static self, level: i32, name: i32, value: i32) -> Result<(), Errno> {
        let found = OFFLOADED.iter().position(|(l, n, _, _)| (*l, *n) == (level, name));
        if let Some(at) = found {
            let (_, _, option, default) = OFFLOADED[at];
            let value = offloaded_value(level, option, default, value)?;
            let before = self.settings.lock().offloaded[at].replace(value).unwrap_or(default);
            self.tell_engine(level, option, value);
            match option {
                FlowOption::Cork => _ = self.with_stream(|_, stream, _| stream.send.corked = value != 0),
                FlowOption::UnsentLowWater => {
                    _ = self.with_stream(|_, stream, _| stream.set_unsent_low_water(value));
                }
                _ => {}
            }
            if (level, name) == (libc::IPPROTO_IP, libc::IP_TOS) && value != before {
                self.keep_priority_of(value);
            }
            return Ok(());
        }
        let at = REMEMBERED.iter().position(|known| *known == (level, name)).ok_or(Errno::ENOPROTOOPT)?;
        let is_segment = (level, name) == (libc::IPPROTO_TCP, libc::TCP_MAXSEG);
        if is_segment && value != 0 && !MAXSEG.contains(&value) {
            return Err(Errno::EINVAL);
        }
        let is_inq = (level, name) == (libc::IPPROTO_TCP, TCP_INQ);
        let is_zerocopy = (level, name) == (libc::SOL_SOCKET, libc::SO_ZEROCOPY);
        if (is_inq || is_zerocopy) && !matches!(value, 0 | 1) {
            return Err(Errno::EINVAL);
        }
        if level == libc::IPPROTO_TCP && !self.may_set_fast_open(name, value) {
            return Err(Errno::EINVAL);
        }
        let is_flag = at == OOB_INLINE || (level, name) == (libc::IPPROTO_TCP, libc::TCP_QUICKACK);
        let value = if is_flag { i32::from(value != 0) } else { value };
        self.settings.lock().remembered[at] = Some(value);
        if is_inq {
            self.tells_unread.store(value != 0, Ordering::Relaxed);
        }
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) {
            self.limit_fast_open(value);
        }
        if at == OOB_INLINE {
            self.with_stream(|_, stream, _| {
                stream.recv.urgent.inline = value != 0;
                stream.publish(0);
            });
        }
        Ok(())
    }

    /// Whether this is no option of Fast Open's, or one that may be set now and so: for a connection it is too late.
    fn may_set_fast_open(&self, name: i32, value: i32) -> bool {
        match name {
            libc::TCP_FASTOPEN => value >= 0 && self.has_no_connection(),
            libc::TCP_FASTOPEN_CONNECT => {
                matches!(value, 0 | 1) && self.has_no_connection() && self.kind() != Kind::Listener
            }
            _ => true,
        }
    }

    /// TCP_FASTOPEN of a listener: so many connections may be handed out before their handshake is complete.
    fn limit_fast_open(&'static self, value: i32) {
        if self.kind() != Kind::Listener {
            return;
        }
        let limit = u32::try_from(value).unwrap_or(0);
        for member in self.members(0) {
            member.with_listener(|io, listener| {
                io.command(Command::FastOpen { listener: listener.id, limit });
            });
        }
    }

    /// `getsockopt`: writes the value as the C call has it and returns its length (cut to `out`).
    pub fn get_option(&'static self, level: i32, name: i32, out: &mut [u8]) -> Result<usize, Errno> {
        let is_of_socket = level == libc::SOL_SOCKET
            && matches!(name, libc::SO_TYPE | libc::SO_DOMAIN | libc::SO_PROTOCOL | libc::SO_ACCEPTCONN);
        if self.kind() == Kind::Stream && !is_of_socket {
            // Who has it now may have set some. One that cannot be had says what was known of it.
            let _ = self.settle_here();
        }
        let int = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => i32::from(self.socket_error().0),
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_DOMAIN) if self.is_inet6() => libc::AF_INET6,
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => libc::AF_INET,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => i32::from(self.kind() == Kind::Listener),
            (libc::SOL_SOCKET, libc::SO_SNDLOWAT) => 1,
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => self.settings.lock().low_water.unwrap_or(1) as i32,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => {
                self.settings.lock().receive_window.unwrap_or(RECEIVE_WINDOW_INITIAL) as i32
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                let now = self.peek_stream(|stream| stream.send.memory.limit());
                now.or(self.settings.lock().send_limit).unwrap_or(crate::send_memory::SEND_LIMIT_INITIAL)
                    as i32
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => self.flow_info().map_or(536, |info| info.mss.into()),
            (libc::IPPROTO_TCP, libc::TCP_ULP) => return Ok(self.upper_protocol(out)),
            (tls::SOL_TLS, _) => return self.get_tls_option(name, out),
            (libc::SOL_SOCKET, libc::SO_LINGER) => return Ok(put(out, &self.settings.lock().linger.value())),
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
                return Ok(put(out, &self.time_limits.receive.value()));
            }
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
                return Ok(put(out, &self.time_limits.send.value()));
            }
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => return Ok(put(out, &self.congestion_name())),
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE) => return Ok(self.get_pacing_rate(out)),
            (libc::IPPROTO_TCP, libc::TCP_INFO) => return Ok(put(out, &self.tcp_info())),
            (libc::IPPROTO_TCP, libc::TCP_CC_INFO) => {
                let (info, len) = self.congestion_info();
                return Ok(put(out, &info[..len]));
            }
            _ => self.get_int_option(level, name)?,
        };
        Ok(put(out, &int.to_ne_bytes()))
    }

    /// SO_ERROR: the error that waits, or else what is known to hinder the connection; either once.
    fn socket_error(&'static self) -> Errno {
        let waits = self.take_error();
        if !waits.is_ok() {
            return waits;
        }
        let Some(info) = self.flow_info() else { return Errno::OK };
        let noted = self.peek_stream(|stream| match stream.link {
            Link::Open => stream.so_error.take_noted(&info),
            _ => Errno::OK,
        });
        noted.unwrap_or(Errno::OK)
    }

    fn get_int_option(&self, level: i32, name: i32) -> Result<i32, Errno> {
        if let Some(at) = OFFLOADED.iter().position(|(l, n, _, _)| (*l, *n) == (level, name)) {
            let value = self.settings.lock().offloaded[at].unwrap_or(OFFLOADED[at].3);
            // What only engines know is as 1.
            let is_flag = OFFLOADED[at].2 == FlowOption::SoftErrors;
            return Ok(if is_flag { value.min(1) } else { value } as i32);
        }
        let at = REMEMBERED.iter().position(|known| *known == (level, name)).ok_or(Errno::ENOPROTOOPT)?;
        let default = REMEMBERED_DEFAULTS.iter().find(|(option, _)| *option == (level, name));
        Ok(self.settings.lock().remembered[at].unwrap_or(default.map_or(0, |(_, value)| *value)))
    }

    /// What the program chose, or else what the engine says that it uses.
    fn congestion_name(&self) -> [u8; congestion::NAME_MAX] {
        let chosen = self.settings.lock().congestion;
        let number = chosen.or_else(|| self.flow_info().map(|info| info.congestion)).unwrap_or(0);
        let name = congestion::name_of(number).unwrap_or(congestion::DEFAULT);
        let mut value = [0; congestion::NAME_MAX];
        value[..name.len()].copy_from_slice(name.as_bytes());
        value
    }

    fn get_pacing_rate(&self, out: &mut [u8]) -> usize {
        let rate = self.settings.lock().max_pacing.unwrap_or(u64::MAX);
        if out.len() >= size_of::<u64>() {
            return put(out, &rate.to_ne_bytes());
        }
        put(out, &u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes())
    }

    /// `setsockopt` of a native socket.
    pub(crate) fn set_native_option(&'static self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        match self.set_option(level, name, value) {
            Err(Errno::ENOPROTOOPT) if WITHOUT_EFFECT.contains(&(level, name)) => {
                let value = value.first_chunk::<4>().ok_or(Errno::EINVAL)?;
                self.keep_option(level, name, value);
                Ok(())
            }
            other => other,
        }
    }

    /// `getsockopt` of a native socket.
    pub(crate) fn get_native_option(
        &'static self,
        level: i32,
        name: i32,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        match self.get_option(level, name, out) {
            Err(Errno::ENOPROTOOPT) if WITHOUT_EFFECT.contains(&(level, name)) => {
                let mut value = [0; 4];
                self.with_saved_option(level, name, |saved| value.copy_from_slice(&saved[..4]));
                let len = out.len().min(value.len());
                out[..len].copy_from_slice(&value[..len]);
                Ok(len)
            }
            other => other,
        }
    }

    /// Every option that the program has set, with its value as setsockopt has it: for a socket that is to be as this one.
    pub fn options_set(&'static self) -> Vec<(i32, i32, Vec<u8>)> {
        let (names, mut set) = {
            let settings = self.settings.lock();
            (settings.names_set(), settings.saved.all())
        };
        let limits = self.time_limits.named().into_iter().filter(|(_, limit)| limit.get().is_some());
        let names = names.into_iter().chain(limits.map(|(name, _)| (libc::SOL_SOCKET, name)));
        for (level, name) in names {
            let mut value = [0; 16];
            let Ok(len) = self.get_option(level, name, &mut value) else { continue };
            if level == libc::SOL_SOCKET && matches!(name, libc::SO_RCVBUF | libc::SO_SNDBUF) {
                // Told is twice what was set.
                let doubled = super::values::int(&value).unwrap_or(0);
                value[..4].copy_from_slice(&(doubled / 2).to_ne_bytes());
            }
            if matches!((level, name), (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO))
                && value == [0; _]
            {
                // One that is over at once is shown as none.
                value[..8].copy_from_slice(&(-1i64).to_ne_bytes());
            }
            set.push((level, name, value[..len].to_vec()));
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::ENOENT;
    use crate::socket::FastOpen;

    #[test]
    fn a_socket_without_a_connection_keeps_options_for_later() {
        let socket = Socket::allocate();
        let one = 1i32.to_ne_bytes();
        assert_eq!(socket.set_option(libc::IPPROTO_TCP, libc::TCP_NODELAY, &one), Ok(()));
        assert_eq!(
            socket.set_option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &0i32.to_ne_bytes()),
            Err(Errno::EINVAL)
        );
        assert_eq!(socket.set_option(libc::SOL_SOCKET, 9999, &one), Err(Errno::ENOPROTOOPT));
        assert_eq!(socket.set_option(libc::SOL_SOCKET, libc::SO_LINGER, &one), Err(Errno::EINVAL));
        let mut out = [0; 4];
        assert_eq!(socket.get_option(libc::IPPROTO_TCP, libc::TCP_NODELAY, &mut out), Ok(4));
        assert_eq!(i32::from_ne_bytes(out), 1);
        assert_eq!(socket.get_option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, &mut out), Ok(4));
        assert_eq!(i32::from_ne_bytes(out), 7200);
        let mut time = [0; 16];
        time[0] = 2;
        assert_eq!(socket.set_option(libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time), Ok(()));
        assert_eq!(socket.time_limits.receive.get(), Some(std::time::Duration::from_secs(2)));
        socket.abandon();
    }

    #[test]
    fn fast_open_is_asked_for_before_there_is_a_connection() {
        let socket = Socket::allocate();
        let set = |name, value: i32| socket.set_option(libc::IPPROTO_TCP, name, &value.to_ne_bytes());
        assert_eq!(socket.settings.lock().fast_open(), FastOpen::No);
        assert_eq!(set(libc::TCP_FASTOPEN_CONNECT, 2), Err(Errno::EINVAL));
        assert_eq!(set(libc::TCP_FASTOPEN_CONNECT, 1), Ok(()));
        assert_eq!(socket.settings.lock().fast_open(), FastOpen::Option);
        assert_eq!(set(libc::TCP_FASTOPEN, -1), Err(Errno::EINVAL));
        assert_eq!(set(libc::TCP_FASTOPEN, 5), Ok(()));
        socket.kind.store(Kind::Stream as u8, Ordering::Release);
        assert_eq!(set(libc::TCP_FASTOPEN_CONNECT, 1), Err(Errno::EINVAL));
        assert_eq!(set(libc::TCP_FASTOPEN, 5), Err(Errno::EINVAL));
        socket.become_fresh();
        socket.abandon();
    }

    #[test]
    fn an_algorithm_has_a_name_that_is_known() {
        let socket = Socket::allocate();
        let set = |name: &[u8]| socket.set_option(libc::IPPROTO_TCP, libc::TCP_CONGESTION, name);
        assert_eq!(set(b""), Err(Errno::EINVAL));
        assert_eq!(set(b"vegas"), Err(ENOENT));
        assert_eq!(set(b"\0"), Err(ENOENT));
        let mut out = [1; 20];
        let get = |out: &mut [u8]| socket.get_option(libc::IPPROTO_TCP, libc::TCP_CONGESTION, out);
        assert_eq!(get(&mut out), Ok(16));
        assert_eq!(out[..16], *b"cubic\0\0\0\0\0\0\0\0\0\0\0");
        for name in ["reno", "dctcp\0and more", "bbr"] {
            assert_eq!(set(name.as_bytes()), Ok(()));
        }
        assert_eq!(get(&mut out[..4]), Ok(4));
        assert_eq!(out[..4], *b"bbr\0");
        assert_eq!(socket.settings.lock().for_accepted().congestion, congestion::number_of("bbr"));
        socket.abandon();
    }

    #[test]
    fn the_window_is_bounded_by_the_buffer_and_by_the_clamp() {
        let socket = Socket::allocate();
        let offered = || socket.settings.lock().offered_window();
        let clamp = |value: i32| {
            socket.keep_option(libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, &value.to_ne_bytes());
        };
        assert_eq!(offered(), None);
        clamp(20_000);
        assert_eq!(offered(), Some(20_000));
        assert_eq!(socket.set_option(libc::SOL_SOCKET, libc::SO_RCVBUF, &8_000i32.to_ne_bytes()), Ok(()));
        assert_eq!(offered(), Some(8_000));
        clamp(-1);
        assert_eq!(offered(), Some(1152));
        socket.abandon();
    }

    #[test]
    fn a_pacing_rate_is_told_in_either_width() {
        let socket = Socket::allocate();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
        let mut wide = [0; 8];
        assert_eq!(socket.get_option(level, name, &mut wide), Ok(8));
        assert_eq!(u64::from_ne_bytes(wide), u64::MAX);
        assert_eq!(socket.set_option(level, name, &5_000_000_000u64.to_ne_bytes()), Ok(()));
        let mut narrow = [0; 4];
        assert_eq!(socket.get_option(level, name, &mut narrow), Ok(4));
        assert_eq!(u32::from_ne_bytes(narrow), u32::MAX);
        assert_eq!(socket.set_option(level, name, &1_000_000u32.to_ne_bytes()), Ok(()));
        assert_eq!(socket.get_option(level, name, &mut wide), Ok(8));
        assert_eq!(u64::from_ne_bytes(wide), 1_000_000);
        assert_eq!(socket.set_option(level, name, &[1, 2]), Err(Errno::EINVAL));
        assert_eq!((pacing_entry(u64::MAX), pacing_entry(7)), (0, 7));
        socket.abandon();
    }
}
