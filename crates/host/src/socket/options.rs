//! Socket options: what the library keeps, what the engine is told, what is only remembered.
//!
//! Values come and go as the C calls have them: `int`s, `struct linger`, `struct timeval`, `struct tcp_info`. An option
//! that is not known here is refused with ENOPROTOOPT, so that a program finds out.

mod apply;
mod calls;
mod engine;
mod record;
pub(crate) mod remembered;
pub(crate) mod values;

use crate::errno::ENOENT;
use crate::socket::flags::FastOpen;
use crate::socket::options::remembered::SavedOptions;
use crate::socket::options::values::{Linger, int, window_of};
use std::net::SocketAddr;
use toe_abi::congestion;
use toe_abi::entry::FlowOption;
use toe_abi::errno::Errno;
use toe_base::limits::RECEIVE_WINDOW_NEAR;

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

/// Options that the engine acts on, with Linux's default. One that a program sets before it connects or listens is repeated by the switch
/// layer, if its `socket_state.rs` has it.
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
    pub(super) signals: bool,
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
    pub(super) saved: SavedOptions,
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
        settings.saved.forget(libc::SOL_SOCKET, libc::SO_PRIORITY);
        settings.saved.forget(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT);
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
        by_buffer.into_iter().chain(self.saved.window_clamp()).min()
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

/// Level and name of what the engine acts on.
pub fn offloaded() -> impl Iterator<Item = (i32, i32)> {
    OFFLOADED.iter().map(|(level, name, ..)| (*level, *name))
}

/// Whether it is an int that is known here.
fn knows(level: i32, name: i32) -> bool {
    OFFLOADED.iter().any(|(l, n, _, _)| (*l, *n) == (level, name)) || REMEMBERED.contains(&(level, name))
}
