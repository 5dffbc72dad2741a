//! Socket options: what the library keeps, what the engine is told, what is only remembered.
//!
//! Values come and go as the C calls have them: `int`s, `struct linger`, `struct timeval`, `struct tcp_info`. An option
//! that is not known here is refused with ENOPROTOOPT, so that a program finds out.

mod apply;
mod record;

use crate::errno::ENOENT;
use crate::socket::kept::KeptOptions;
use crate::socket::own_options::Linger;
use crate::socket::{FastOpen, Kind, Link, Shutdown, Socket};
use crate::tls;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use toe_abi::command::FlowInfo;
use toe_abi::congestion;
use toe_abi::entry::{Command, FlowOption};
use toe_abi::errno::Errno;
use toe_base::limits::{RECEIVE_WINDOW_INITIAL, RECEIVE_WINDOW_NEAR};

/// Place of SO_OOBINLINE in [`REMEMBERED`].
const OOB_INLINE: usize = 0;
/// And of TCP_FASTOPEN_CONNECT.
const FAST_OPEN_CONNECT: usize = 1;

/// Remembered for the program, without effect on the engine.
const REMEMBERED: [(i32, i32); 7] = [
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, TCP_INQ),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
];
/// Younger than libc crates.
pub const TCP_INQ: i32 = 36;

/// What of these is not 0 when nothing was set.
const REMEMBERED_DEFAULTS: [((i32, i32), i32); 1] = [((libc::IPPROTO_TCP, libc::TCP_QUICKACK), 1)];
/// What TCP_MAXSEG may be set to.
const MAXSEG: std::ops::RangeInclusive<i32> = 88..=32_767;

/// Options that the engine acts on, with Linux's default.
const OFFLOADED: [(i32, i32, FlowOption, u32); 16] = [
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, FlowOption::NoDelay, 0),
    (libc::IPPROTO_TCP, libc::TCP_CORK, FlowOption::Cork, 0),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, FlowOption::KeepAlive, 0),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, FlowOption::KeepIdleSecs, 7200),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, FlowOption::KeepIntervalSecs, 75),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, FlowOption::KeepCount, 9),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, FlowOption::UserTimeoutMs, 0),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT, FlowOption::SynRetries, SYN_RETRIES),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, FlowOption::UnsentLowWater, 0),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2, FlowOption::FinWait2Secs, FIN_TIMEOUT_SECS),
    (libc::IPPROTO_IP, libc::IP_TOS, FlowOption::TrafficClass, 0),
    (libc::IPPROTO_IP, libc::IP_TTL, FlowOption::HopLimit, HOP_LIMIT),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, FlowOption::TrafficClass, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, FlowOption::HopLimit, HOP_LIMIT),
    (libc::IPPROTO_IP, libc::IP_RECVERR, FlowOption::SoftErrors, 0),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, FlowOption::SoftErrors, 0),
];
/// Linux's tcp_syn_retries, and MAX_TCP_SYNCNT.
const SYN_RETRIES: u32 = 6;
const SYN_RETRIES_MAX: u32 = 127;
/// Linux's tcp_fin_timeout and TCP_FIN_TIMEOUT_MAX.
const FIN_TIMEOUT_SECS: u32 = 60;
const FIN_TIMEOUT_SECS_MAX: u32 = 120;
/// What is too much of TCP_KEEPIDLE and TCP_KEEPINTVL, and of TCP_KEEPCNT (MAX_TCP_KEEPIDLE and its like).
const KEEP_SECS_MAX: u32 = 32_768;
const KEEP_COUNT_MAX: u32 = 128;
/// TTL and hop limit of a connection that says nothing.
const HOP_LIMIT: u32 = 64;
/// The part of IP_TOS that is not the program's: ECN.
const ECN_BITS: u32 = 0b11;
/// IP_RECVERR and IPV6_RECVERR of a program that also wants to hear of retransmissions that reach R1 (RFC 9293 section
/// 3.8.3). To Linux it is as 1, which is all that a program says that knows nothing of this.
const RECVERR_AND_R1: u32 = 2;

/// States of connections, by Linux's numbers.
const ESTABLISHED: u8 = 1;
pub(super) const SYN_RECV: u8 = 3;
const FIN_WAIT1: u8 = 4;
const FIN_WAIT2: u8 = 5;
const TIME_WAIT: u8 = 6;
pub(super) const CLOSED: u8 = 7;
const CLOSE_WAIT: u8 = 8;
const CLOSING: u8 = 11;

/// The settings of a socket.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Address that it is bound to.
    pub local: Option<SocketAddr>,
    pub linger: Linger,
    pub backlog: u32,
    /// The program's descriptor is a kernel listener on the same port.
    pub has_twin: bool,
    /// Accept credit was posted.
    pub active: bool,
    /// O_ASYNC.
    signals: bool,
    /// What connections let others have of their name, if their listener has been told after it began to listen.
    pub(super) shares_name_now: Option<u32>,
    offloaded: [Option<u32>; OFFLOADED.len()],
    remembered: [Option<i32>; REMEMBERED.len()],
    pub(super) receive_window: Option<u32>,
    pub(super) send_limit: Option<u32>,
    low_water: Option<u32>,
    /// Number of the algorithm of congestion control that the program chose.
    congestion: Option<u8>,
    /// Bytes a second.
    max_pacing: Option<u64>,
    pub(super) kept: KeptOptions,
}

impl Settings {
    /// What an accepted connection takes over from its listener.
    pub fn for_accepted(&self) -> Settings {
        let mut settings = Settings {
            // It keeps the address that its listener was bound to, when it has no connection any more.
            local: self.local.filter(|local| !local.ip().is_unspecified()),
            backlog: 0,
            has_twin: false,
            active: false,
            signals: false,
            ..self.clone()
        };
        // Linux gives every connection its own, or none.
        settings.kept.forget(libc::SOL_SOCKET, libc::SO_PRIORITY);
        settings.kept.forget(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT);
        settings
    }

    /// SO_ZEROCOPY.
    pub fn has_zerocopy(&self) -> bool {
        let at = REMEMBERED.iter().position(|known| *known == (libc::SOL_SOCKET, libc::SO_ZEROCOPY));
        at.is_some_and(|at| self.remembered[at] == Some(1))
    }

    /// TCP_INQ.
    pub(super) fn tells_unread(&self) -> bool {
        let at = REMEMBERED.iter().position(|known| *known == (libc::IPPROTO_TCP, TCP_INQ));
        at.is_some_and(|at| self.remembered[at] == Some(1))
    }

    /// What connect is to do.
    pub(super) fn fast_open(&self) -> FastOpen {
        match self.remembered[FAST_OPEN_CONNECT] {
            Some(1..) => FastOpen::Option,
            _ => FastOpen::No,
        }
    }

    pub(super) fn set_fast_open(&mut self) {
        self.remembered[FAST_OPEN_CONNECT] = Some(1);
    }

    /// The most that may be offered to the peer, where the program has bounded it: by its buffer, by TCP_WINDOW_CLAMP.
    fn offered_window(&self) -> Option<u32> {
        let by_buffer = self.receive_window.map(window_of);
        by_buffer.into_iter().chain(self.kept.window_clamp()).min()
    }

    /// The options that were set, but for the kept ones.
    pub(super) fn names_set(&self) -> Vec<(i32, i32)> {
        let offloaded = OFFLOADED.iter().zip(self.offloaded).filter(|(_, value)| value.is_some());
        let remembered = REMEMBERED.iter().zip(self.remembered).filter(|(_, value)| value.is_some());
        let names = offloaded.map(|(known, _)| (known.0, known.1)).chain(remembered.map(|(known, _)| *known));
        let others = [
            (libc::SOL_SOCKET, libc::SO_LINGER, self.linger.time().is_some()),
            (libc::SOL_SOCKET, libc::SO_RCVBUF, self.receive_window.is_some()),
            (libc::SOL_SOCKET, libc::SO_SNDBUF, self.send_limit.is_some()),
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT, self.low_water.is_some()),
            (libc::IPPROTO_TCP, libc::TCP_CONGESTION, self.congestion.is_some()),
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, self.max_pacing.is_some()),
        ];
        let others = others.into_iter().filter(|(.., is_set)| *is_set).map(|(level, name, _)| (level, name));
        names.chain(others).collect()
    }
}

/// Linux offers half of a receive buffer (tcp_adv_win_scale).
fn window_of(buffer: u32) -> u32 {
    buffer / 2
}

/// What SO_RCVLOWAT of a socket with this buffer may be.
fn low_water_of(bytes: u32, buffer: u32) -> u32 {
    bytes.min(buffer / 2).max(1)
}

pub(super) fn int(value: &[u8]) -> Result<i32, Errno> {
    value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)
}

/// The number of an algorithm by its name, which ends at a zero byte or at the end; Linux cuts a longer one.
fn congestion_number(value: &[u8]) -> Result<u8, Errno> {
    if value.is_empty() {
        return Err(Errno::EINVAL);
    }
    let value = &value[..value.len().min(congestion::NAME_MAX - 1)];
    let name = value.split(|byte| *byte == 0).next().unwrap_or_default();
    core::str::from_utf8(name).ok().and_then(congestion::number_of).ok_or(ENOENT)
}

/// SO_MAX_PACING_RATE as 4 or 8 bytes; all ones: no limit.
fn pacing_rate(value: &[u8]) -> Result<u64, Errno> {
    if let Some(wide) = value.first_chunk() {
        return Ok(u64::from_ne_bytes(*wide));
    }
    let rate = int(value)? as u32;
    Ok(if rate == u32::MAX { u64::MAX } else { rate.into() })
}

/// The same in an entry, where 0 is no limit.
fn pacing_entry(rate: u64) -> u32 {
    u32::try_from(rate).ok().filter(|rate| *rate < u32::MAX).unwrap_or(0)
}

/// What the engine is told where the program says `value`.
fn offloaded_value(level: i32, option: FlowOption, default: u32, value: i32) -> Result<u32, Errno> {
    let is_v6 = level == libc::IPPROTO_IPV6;
    match (option, u32::try_from(value)) {
        (FlowOption::TrafficClass, _) if is_v6 && value == -1 => Ok(default),
        (FlowOption::TrafficClass, _) if is_v6 && !(0..=255).contains(&value) => Err(Errno::EINVAL),
        (FlowOption::TrafficClass, _) => Ok(value as u32 & 0xff & !ECN_BITS),
        (FlowOption::HopLimit, _) if value == -1 => Ok(default),
        (FlowOption::HopLimit, Ok(value @ 1..=255)) => Ok(value),
        // Linux's IPv6 takes it; the engine goes on with what it has.
        (FlowOption::HopLimit, Ok(0)) if is_v6 => Ok(0),
        (FlowOption::HopLimit, _) => Err(Errno::EINVAL),
        (FlowOption::UserTimeoutMs, Ok(value)) => Ok(value),
        (FlowOption::UserTimeoutMs, _) => Err(Errno::EINVAL),
        (FlowOption::FinWait2Secs, Err(_)) => Ok(u32::MAX),
        (FlowOption::FinWait2Secs, Ok(0)) => Ok(FIN_TIMEOUT_SECS),
        (FlowOption::FinWait2Secs, Ok(secs)) => Ok(secs.min(FIN_TIMEOUT_SECS_MAX)),
        (FlowOption::SoftErrors, Ok(RECVERR_AND_R1)) => Ok(RECVERR_AND_R1),
        (FlowOption::KeepIdleSecs | FlowOption::KeepIntervalSecs, Ok(KEEP_SECS_MAX..)) => Err(Errno::EINVAL),
        (FlowOption::KeepCount, Ok(KEEP_COUNT_MAX..)) => Err(Errno::EINVAL),
        (FlowOption::SynRetries, Ok(value @ 1..=SYN_RETRIES_MAX)) => Ok(value),
        (FlowOption::SynRetries, _) => Err(Errno::EINVAL),
        // Linux takes it for unsigned.
        (FlowOption::UnsentLowWater, _) => Ok(value as u32),
        _ if default == 0 => Ok(u32::from(value != 0)),
        (_, Ok(value @ 1..)) => Ok(value),
        _ => Err(Errno::EINVAL),
    }
}

/// Whether it is an int that is known here.
fn knows(level: i32, name: i32) -> bool {
    OFFLOADED.iter().any(|(l, n, _, _)| (*l, *n) == (level, name)) || REMEMBERED.contains(&(level, name))
}

fn put(out: &mut [u8], value: &[u8]) -> usize {
    let len = out.len().min(value.len());
    out[..len].copy_from_slice(&value[..len]);
    len
}

impl Socket {
    /// `setsockopt`, with the value as the C call has it. ENOPROTOOPT: no such option here.
    pub fn set_option(&'static self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.settle_here()?;
        match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_ULP) => return self.set_upper_protocol(value),
            (tls::SOL_TLS, _) => return self.set_tls_option(name, value),
            (libc::SOL_SOCKET, libc::SO_LINGER) => self.set_linger(level, value)?,
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => Self::set_time_limit(&self.receive_timeout, value)?,
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => Self::set_time_limit(&self.send_timeout, value)?,
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
                    stream.low_water = low_water as usize;
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

    /// What bounds the receive window has changed.
    pub(super) fn bound_window(&'static self, level: i32) {
        let Some(offered) = self.settings.lock().offered_window() else { return };
        self.with_stream(|_, stream, _| stream.set_window(offered));
        self.tell_engine(level, FlowOption::ReceiveWindowMax, offered);
        if offered < RECEIVE_WINDOW_INITIAL {
            self.leave_channel();
        }
    }

    fn set_int_option(&'static self, level: i32, name: i32, value: i32) -> Result<(), Errno> {
        let found = OFFLOADED.iter().position(|(l, n, _, _)| (*l, *n) == (level, name));
        if let Some(at) = found {
            let (_, _, option, default) = OFFLOADED[at];
            let value = offloaded_value(level, option, default, value)?;
            let before = self.settings.lock().offloaded[at].replace(value).unwrap_or(default);
            self.tell_engine(level, option, value);
            match option {
                FlowOption::Cork => _ = self.with_stream(|_, stream, _| stream.corked = value != 0),
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
                stream.urgent.inline = value != 0;
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

    pub(super) fn tell_engine(&self, level: i32, option: FlowOption, value: u32) {
        self.with_stream(|io, stream, _| {
            if !stream.let_go && stream.heeds(level) {
                // What is only said beforehand of what is yet to be sent wakes nobody.
                io.command_quietly(Command::SetOption { flow: stream.flow, option, value });
                if !matches!((option, value), (FlowOption::Cork, 1)) {
                    io.ring();
                }
            }
        });
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
                let now = self.peek_stream(|stream| stream.send.limit());
                now.or(self.settings.lock().send_limit).unwrap_or(crate::send_memory::SEND_LIMIT_INITIAL)
                    as i32
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => self.flow_info().map_or(536, |info| info.mss.into()),
            (libc::IPPROTO_TCP, libc::TCP_ULP) => return Ok(self.upper_protocol(out)),
            (tls::SOL_TLS, _) => return self.get_tls_option(name, out),
            (libc::SOL_SOCKET, libc::SO_LINGER) => return Ok(put(out, &self.settings.lock().linger.value())),
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
                return Ok(put(out, &Self::time_limit_value(&self.receive_timeout)));
            }
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
                return Ok(put(out, &Self::time_limit_value(&self.send_timeout)));
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
        let noted =
            self.flow_info().and_then(|info| self.peek_stream(|stream| stream.take_noted_error(&info)));
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

    /// O_ASYNC: the owner of the descriptor is told of input and output by signals ([`crate::signal_io`]).
    pub fn tell_by_signals(&self, on: bool) {
        self.settings.lock().signals = on;
    }

    pub fn tells_by_signals(&self) -> bool {
        self.settings.lock().signals
    }

    /// Where the urgent byte is, if there is one that has not been read past.
    pub(crate) fn urgent_at(&self) -> Option<u64> {
        self.peek_stream(|stream| stream.urgent.place_in_stream()).flatten()
    }

    /// Whether both directions are open: TCP_ESTABLISHED.
    pub fn is_established(&self) -> bool {
        self.kind() == Kind::Stream && self.state() == ESTABLISHED
    }

    /// Whether it has no connection (any more): what has to be set before one may be set now.
    pub fn has_no_connection(&self) -> bool {
        self.kind() != Kind::Stream || self.state() == CLOSED
    }

    /// Whether its program has taken its connection back, and may connect anew; and then which directions it has shut since.
    pub fn disconnected(&self) -> Option<Option<Shutdown>> {
        self.peek_stream(|stream| stream.disconnected()).flatten()
    }

    /// The connection's state by Linux's numbers; 0: it has none.
    pub(super) fn state(&self) -> u8 {
        if self.disconnected().is_some() {
            return CLOSED;
        }
        match known_state(self, self.flow_info().map_or(0, |info| info.state)) {
            // Its last wait is not the program's any more: what that has is closed.
            TIME_WAIT => CLOSED,
            state => state,
        }
    }

    pub(super) fn flow_info(&self) -> Option<FlowInfo> {
        let (mut queue, place) = self.lock_home()?;
        let flow = queue.stream(place, self).map(|(_, stream)| stream.flow)?;
        Some(queue.flow_info(flow))
    }
}

/// The `state` that the engine tells of a connection, with what the peer has said itself and the engine may not know yet.
pub(super) fn known_state(socket: &Socket, state: u8) -> u8 {
    match (state, socket.peek_stream(|stream| (stream.link, stream.peer_closed))) {
        (0, _) => 0,
        (_, Some((Link::Closed, _))) => CLOSED,
        (ESTABLISHED, Some((_, true))) => CLOSE_WAIT,
        (FIN_WAIT1, Some((_, true))) => CLOSING,
        (FIN_WAIT2, Some((_, true))) => TIME_WAIT,
        _ => state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(socket.receive_timeout(), Some(std::time::Duration::from_secs(2)));
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
