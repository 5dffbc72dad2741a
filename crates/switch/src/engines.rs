//! Whether an engine can have a socket, and what it answers: for `connect.rs`, `listen.rs` and `datagram_stack.rs`.

use crate::policy;
use crate::proto_stacks::{Destinations, ProtoStack};
use crate::socket_state::{self, State};
use crate::why::{self, Reason, Stack as On};
use crate::{fork, own_calls};
use core::ffi::c_int;
use toe::socket::Socket;
use toe::stack::{EngineIdx, Stack};
use toe::{Anchor, AnchorUse as Use, Errno, sys};
use toe_base::{Addr, Endpoint};

/// What engines just said not to serve, and who does.
pub static KNOWN: Destinations = Destinations::new();

/// Whether an engine has an address that the kernel has not.
pub fn engine_has(addr: Endpoint, fd: c_int) -> bool {
    if fork::in_vfork_child() || KNOWN.is_kernel_only(addr.addr, sys::coarse_ms()) {
        return false;
    }
    let mut any_asked = false;
    for stack in policy::all_engines().engines().filter_map(|index| engine(index).ok()) {
        let Ok(anchor) = Anchor::take(stack, Use::Listener) else { continue };
        match Socket::engine_has(anchor, addr.to_socket_addr(), fd) {
            Ok(true) => return true,
            Ok(false) => any_asked = true,
            Err(_) => {}
        }
    }
    if any_asked {
        KNOWN.note(addr.addr, ProtoStack::Kernel, sys::coarse_ms());
    }
    false
}

/// Whether a connection of an engine keeps a twin from being bound there: the kernel does not know of them.
pub fn is_in_use(addr: Endpoint, fd: c_int) -> bool {
    if fork::in_vfork_child() || KNOWN.is_kernel_only(addr.addr, sys::coarse_ms()) {
        return false;
    }
    let stacks = policy::all_engines();
    let mut sessions = stacks.engines().filter_map(|index| engine(index).ok());
    sessions.any(|stack| Socket::is_in_use(stack, addr.to_socket_addr(), sys::borrow(fd)) == Ok(true))
}

/// What the program asks of an undecided socket only the kernel can do.
pub fn keep_on_kernel(fd: c_int, reason: Reason) {
    let state = socket_state::get(fd);
    if !state.has(State::TWIN) {
        return;
    }
    let copies = if state.has(State::INHERITED) { socket_state::inherited_copies(fd) } else { Vec::new() };
    for fd in [fd].into_iter().chain(copies) {
        socket_state::decided(fd);
        why::set_reason(fd, On::Kernel, reason);
    }
}

/// An engine's session, or why there is none.
pub fn engine(engine: EngineIdx) -> Result<&'static Stack, Reason> {
    if fork::may_have_moved() {
        return Err(Reason::OtherNamespace);
    }
    if own_calls::found() {
        return Err(Reason::OwnCalls);
    }
    Stack::get_or_why(engine).map_err(|error| match error {
        Errno::EPROTO => Reason::AttachRefused,
        Errno::EACCES | Errno::EPERM => Reason::NotAllowed,
        toe::errno::EKEYREJECTED => Reason::EngineUntrusted,
        Errno::ENETDOWN | Errno::ECONNRESET => Reason::EngineGone,
        Errno::ETIMEDOUT => Reason::EngineSilent,
        Errno::EDQUOT => Reason::OverQuota,
        _ if toe::attach::is_out_of_sight(engine.index()) => Reason::OutOfSight,
        _ => Reason::NoEngine,
    })
}

/// What an engine's refusal means for the why table.
pub fn reason_of(error: Errno, remote: Addr) -> Reason {
    match error {
        Errno::ENETUNREACH | Errno::EHOSTUNREACH => Reason::NoRoute,
        Errno::ECONNREFUSED if remote.is_loopback() => Reason::NobodyListensInEngine,
        Errno::EADDRNOTAVAIL => Reason::NotEngineAddress,
        Errno::EADDRINUSE => Reason::AddressInUse,
        Errno::EHOSTDOWN => Reason::AProcessEach,
        // EINVAL: the engine does not take the kernel socket that it was shown.
        Errno::EACCES | Errno::EINVAL => Reason::NotItsName,
        Errno::ENOMEM | Errno::ENOBUFS | Errno::EMFILE => Reason::EngineFull,
        Errno::EDQUOT => Reason::OverQuota,
        Errno::ENETDOWN | Errno::ECONNRESET => Reason::EngineGone,
        Errno::ETIMEDOUT => Reason::EngineSilent,
        _ => Reason::EngineRefused,
    }
}

/// Sets on the engine's socket what the program had set on the twin.
pub fn replay_options(fd: c_int, state: State, socket: &'static Socket) {
    for option in state.options() {
        let Some((mut value, len)) = option.value_on(fd) else { continue };
        if option.level == libc::SOL_SOCKET && matches!(option.name, libc::SO_RCVBUF | libc::SO_SNDBUF) {
            // Linux reports twice what was set.
            let doubled = i32::from_ne_bytes([value[0], value[1], value[2], value[3]]);
            value[..4].copy_from_slice(&(doubled / 2).to_ne_bytes());
        }
        if option.is_time_limit() && value == [0; _] {
            // It was set, so it is none that lasts for ever: Linux shows both alike.
            value[..8].copy_from_slice(&(-1i64).to_ne_bytes());
        }
        let value = &value[..len];
        if socket.set_option(option.level, option.name, value) == Err(Errno::ENOPROTOOPT) {
            socket.keep_option(option.level, option.name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_reasons() {
        let far = Addr::from([10, 0, 0, 1]);
        assert_eq!(reason_of(Errno::ENETUNREACH, far), Reason::NoRoute);
        assert_eq!(reason_of(Errno::ECONNREFUSED, Addr::LOCALHOST_V6), Reason::NobodyListensInEngine);
        assert_eq!(reason_of(Errno::ECONNREFUSED, far), Reason::EngineRefused);
        assert_eq!(reason_of(Errno::ENETDOWN, far), Reason::EngineGone);
        assert_eq!(reason_of(Errno::ETIMEDOUT, far), Reason::EngineSilent);
        assert_eq!(reason_of(Errno::ENOBUFS, far), Reason::EngineFull);
        assert_eq!(reason_of(Errno::EDQUOT, far), Reason::OverQuota);
        assert_eq!(reason_of(Errno::EACCES, far), Reason::NotItsName);
    }
}
