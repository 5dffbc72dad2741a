//! Where the kernel has a twin: what the program, or another process, has bound it to. Called by `connect.rs` and `listen.rs`.

use crate::ffi::{read_inet, read_inet6};
use crate::real;
use crate::socket_state::State;
use core::ffi::c_int;
use libc::{sockaddr_in6, socklen_t};
use toe::sys;
use toe_base::Endpoint;

/// Where the twin is bound, whoever has bound it.
pub fn bound_to(fd: c_int, state: State) -> Option<Endpoint> {
    let at = twin_address(fd)?;
    let is_bound = state.has(State::BOUND) || at.port != 0 || !at.addr.is_unspecified();
    is_bound.then_some(at)
}

/// Where the kernel has the twin; `None`: it cannot say.
pub fn twin_address(fd: c_int) -> Option<Endpoint> {
    let mut addr = core::mem::MaybeUninit::<sockaddr_in6>::zeroed();
    let mut len = size_of::<sockaddr_in6>() as socklen_t;
    // SAFETY: a local buffer of `len` bytes, long enough for both families; zeroed, so that it is initialised whatever the
    // kernel writes.
    unsafe {
        if real::getsockname(fd, addr.as_mut_ptr().cast(), &mut len) < 0 {
            return None;
        }
        let inet6 = read_inet6(addr.as_ptr().cast(), len);
        inet6.or_else(|| read_inet(addr.as_ptr().cast(), len).map(Endpoint::from))
    }
}

/// Whether a socket of AF_INET6 leaves IPv4 alone.
pub fn is_v6only(fd: c_int) -> bool {
    rustix::net::sockopt::ipv6_v6only(sys::borrow(fd)) != Ok(false)
}
