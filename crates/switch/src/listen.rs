//! bind, listen and accept of TCP sockets over several stacks. Called by `calls::address`.
//!
//! A listener is a kernel listener always (the program's descriptor is the twin, which holds the port) and, when an
//! engine serves its address, a listener of the engine too. The twin is then non-blocking in the kernel whatever the
//! program set; the program's own flag is kept in the engine's socket, and waiting is done for both stacks at once. The
//! listener's anchor does not go over exec: what the next program inherits is the twin, by which it becomes a holder of
//! the engine's listener, too (`adopt.rs`).

use crate::engines::{KNOWN, engine, is_in_use, keep_on_kernel, reason_of, replay_options};
use crate::ffi::{fail, last_errno, number, write_inet};
use crate::policy::{self, Action, Call, Decision, Engines};
use crate::proto_stacks::{self, Binding, ProtoStack};
use crate::replacing::Replacing;
use crate::socket_state::{self, Replayed, State};
use crate::twin_name::twin_address;
use crate::why::{self, Decided, Reason, Stack as On};
use crate::{fork, lookup, option_model, real, tables};
use core::ffi::c_int;
use libc::{sockaddr, socklen_t};
use rustix::fs::OFlags;
use toe::errno::ERESTART;
use toe::socket::{AcceptError, AcceptHow, Accepted, OfKernel, Shutdown, Socket};
use toe::stack::EngineIdx;
use toe::{Anchor, AnchorUse as Use, Errno, epoll, fd_release, fd_table, sys, wait, wait_calls};
use toe_base::{Addr, Endpoint};

/// net/tcp_states.h
const LISTEN: u8 = 10;

/// The same for one that is to listen again at the port that it has.
pub fn is_taken(fd: c_int) -> bool {
    state_now(fd) != LISTEN && twin_address(fd).is_some_and(|local| is_in_use(local, fd))
}

/// Whether the kernel keeps the port for it still, whose name it shows either way. One that has a port is not bound again, and Linux says so
/// before it says that the name, here a probe's, is in use. One that has none loses its address by that, and gets it back.
pub fn has_its_port(fd: c_int, state: State) -> bool {
    let inet6 = state.has(State::INET6);
    let Some(probe) = option_model::model(inet6) else { return true };
    let mut name = core::mem::MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = size_of_val(&name) as socklen_t;
    let begin_placing = name.as_mut_ptr().cast::<sockaddr>();
    let own = twin_address(fd).filter(|own| !own.addr.is_unspecified());
    // SAFETY: the name is a local with room for any, and of zeros the family alone is needed; the probe's descriptor is nobody else's.
    unsafe {
        (*begin_placing).sa_family = if inet6 { libc::AF_INET6 } else { libc::AF_INET } as libc::sa_family_t;
        if real::bind(probe.raw(), begin_placing, len) < 0
            || real::getsockname(probe.raw(), begin_placing, &mut len) < 0
        {
            return true;
        }
        let has_port = real::bind(fd, begin_placing, len) < 0 && last_errno() == Errno::EINVAL;
        if let Some(own) = own.filter(|_| !has_port) {
            len = size_of::<libc::sockaddr_storage>() as socklen_t;
            let address = std::net::SocketAddr::new(own.to_socket_addr().ip(), 0);
            let _ = write_inet(address, inet6, begin_placing, &mut len);
            real::bind(fd, begin_placing, len);
        }
        has_port
    }
}

/// What the policy says of a twin that is about to listen.
pub fn decide(fd: c_int) -> Decision {
    twin_address(fd).map_or(policy::NOT_SUBJECT, |local| policy::decide(Call::Listen, local))
}

/// The same for a listener that another program has made, and that may be others' still: whether it may listen was that
/// program's to say. This one's policy can only keep it from engines.
pub fn decide_adopted(fd: c_int) -> Decision {
    let own = decide(fd);
    match own.action {
        Action::Kernel => own,
        _ => Decision { action: Action::Offload, ..own },
    }
}

/// The policy refuses it; what listen(2) returns.
pub fn refused(fd: c_int, decision: Decision) -> c_int {
    why::set(fd, Decided { rule: decision.rule, ..Decided::new(On::Kernel, Reason::PolicyRefused) });
    fail(Errno::EACCES)
}

/// The twin is to hold its port as a listener does, so that programs after exec find it, but to let nobody in: a filter
/// that drops all.
///
/// An error: nothing was done.
pub fn shut_kernel_out(fd: c_int) -> Result<(), Errno> {
    let drop_all = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: (&raw const drop_all).cast_mut() };
    let len = size_of_val(&program) as socklen_t;
    // SAFETY: the option's value is a local that points to another one; the kernel copies both.
    let result = unsafe {
        real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const program).cast(), len)
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Undoes [`shut_kernel_out`]; errno stays as it is.
pub fn let_kernel_in(fd: c_int) {
    let (error, none) = (last_errno(), 0);
    let len = size_of::<c_int>() as socklen_t;
    let value: *const c_int = &raw const none;
    // SAFETY: the option takes no value, but the kernel wants room for one.
    unsafe { real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, value.cast(), len) };
    crate::ffi::set_errno(c_int::from(error.0));
}

/// Whether a filter may keep the kernel's connections out, [`shut_kernel_out`]'s or another: whoever listens with the socket now, and
/// whatever this program's policy is.
fn is_kernel_excluded(fd: c_int) -> bool {
    // linux/socket.h; of the same number as SO_ATTACH_FILTER. How many instructions the filter has.
    let mut count: socklen_t = 0;
    // SAFETY: no room is named; the count is a local.
    let result = unsafe {
        real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_GET_FILTER, core::ptr::null_mut(), &mut count)
    };
    result != 0 || count != 0
}

/// After the twin has begun to listen in the kernel: listens in every engine too that serves the address.
pub fn undecided(fd: c_int, backlog: c_int, decision: Decision) -> Result<(), Errno> {
    if fork::in_vfork_child() {
        return Ok(());
    }
    // What another thread that listens or connects has made of it, or the program's close, is how it stays.
    let Ok(replacing) = Replacing::begin_after_others(fd, State::TWIN) else { return Ok(()) };
    let state = socket_state::get(fd).without(State::REPLACING);
    let Some(local) = twin_address(fd) else {
        return kernel_listens(fd, false, decision, (Reason::EngineRefused, Errno::EADDRNOTAVAIL));
    };
    if shares_port(fd) && is_of_such_group(fd, local) {
        return kernel_listens(fd, false, decision, (Reason::Option, Errno::EADDRNOTAVAIL));
    }
    let engine_address = state.has(State::ENGINE_ADDRESS);
    let binding = proto_stacks::binding(Some(local.addr), engine_address, &KNOWN, sys::coarse_ms());
    let mut refused = match (decision.action, binding) {
        (Action::Kernel, _) => (Reason::PolicyKernel, Errno::EADDRNOTAVAIL),
        (_, Binding::KernelOnly) => (Reason::BoundToKernelAddress, Errno::EADDRNOTAVAIL),
        _ => (Reason::NoEngine, Errno::EADDRNOTAVAIL),
    };
    let mut head: Option<&'static Socket> = None;
    let mut all_unserved = true;
    let is_taken_from = !is_kernel_excluded(fd);
    for stack in policy::stacks(decision, local).attempts(binding).iter() {
        let ProtoStack::Engine(engine) = stack else { continue };
        match (at_engine(engine, (fd, is_taken_from), local, backlog), head) {
            (Ok(socket), None) => head = Some(socket),
            (Ok(socket), Some(head)) => head.join(socket),
            (Err(why), _) => {
                all_unserved &= why.0 == Reason::NotEngineAddress;
                refused = why;
            }
        }
    }
    if let Some(head) = head.filter(|_| !replacing.begin_placing()) {
        head.abandon();
        return Err(Errno::EBADF);
    }
    if let Some(head) = head {
        become_listener(fd, state, head, decision);
        if state.has(State::INHERITED) {
            for copy in socket_state::inherited_copies(fd) {
                let is_watched = socket_state::get(copy).has(State::IN_EPOLL);
                fd_table::duplicate(fd, copy);
                if is_watched {
                    move_to_engine(copy, head);
                }
                socket_state::decided(copy);
                why::copy(fd, copy);
            }
        }
        if state.may_be_shared().is_some() {
            // Whoever has the kernel's socket, too, holds the listener once it accepts or waits.
            head.mark_shared(fd);
        }
        return Ok(());
    }
    if all_unserved
        && refused.0 == Reason::NotEngineAddress
        && decision.engines == Engines::ALL
        && !engine_address
    {
        KNOWN.note(local.addr, ProtoStack::Kernel, sys::coarse_ms());
    }
    kernel_listens(fd, engine_address, decision, refused)
}

/// No engine has it: the kernel's listener does alone, if it may.
fn kernel_listens(
    fd: c_int,
    engine_address: bool,
    decision: Decision,
    (reason, error): (Reason, Errno),
) -> Result<(), Errno> {
    let by_policy = decision.action == Action::EngineOnly;
    let reason = if by_policy { Reason::PolicyEngineOnly } else { reason };
    why::set(fd, Decided { rule: decision.rule, ..Decided::new(On::Kernel, reason) });
    if by_policy {
        // SAFETY: the call takes numbers only. It ends the twin's listening, not the socket.
        unsafe { real::shutdown(fd, libc::SHUT_RD) };
        let_kernel_in(fd);
    }
    if by_policy || engine_address {
        return Err(error);
    }
    socket_state::decided(fd);
    Ok(())
}

fn at_engine(
    index: EngineIdx,
    (fd, is_taken_from): (c_int, bool),
    local: Endpoint,
    backlog: c_int,
) -> Result<&'static Socket, (Reason, Errno)> {
    let stack = engine(index).map_err(|reason| (reason, Errno::EADDRNOTAVAIL))?;
    let refused = |error| match error {
        Errno::EADDRNOTAVAIL => (Reason::NotEngineAddress, error),
        _ => (reason_of(error, Addr::UNSPECIFIED_V4), error),
    };
    let anchor = Anchor::take(stack, Use::Listener).map_err(refused)?;
    let of_kernel = OfKernel { fd: sys::borrow(fd), is_taken_from };
    Socket::listen(anchor, local.to_socket_addr(), backlog_of(backlog), Some(of_kernel), fd).map_err(refused)
}

/// The program's descriptor is a listener of the engine's from now on.
fn become_listener(fd: c_int, state: State, socket: &'static Socket, decision: Decision) {
    if state.has(State::INET6) {
        socket.set_inet6();
    }
    socket.set_nonblocking(wants_nonblocking(fd));
    hold_nonblocking(fd, socket.nonblocking());
    replay_options(fd, state, socket);
    fd_table::install(fd, socket);
    follow_cloexec(socket);
    if state.has(State::IN_EPOLL) {
        move_to_engine(fd, socket);
    }
    socket_state::decided(fd);
    let engine = socket.engine().index() as u8;
    let listening = Decided::new(On::Engine, Reason::Listening);
    why::set(fd, Decided { rule: decision.rule, engine, ..listening });
}

/// What epoll sets have registered of a kernel socket, they have of the engine's from now on.
fn move_to_engine(fd: c_int, socket: &'static Socket) {
    epoll::note_disarmed(fd);
    epoll::replace(fd, socket);
}

/// The hidden anchor goes over exec when one of the program's descriptors for the listener does, so that the listener and
/// what waits there are still there when the next program comes to it.
pub fn follow_cloexec(listener: &'static Socket) {
    let mut keep = false;
    fd_table::for_each(0, c_int::MAX, |fd| {
        keep |= fd_table::get(fd).is_some_and(|other| core::ptr::eq(other, listener))
            && tables::goes_over_exec(fd);
    });
    listener.keep_over_exec(keep);
}

/// The mark on a twin that it is non-blocking for our sake.
const OURS: OFlags = OFlags::from_bits_retain(toe::socket::TWIN_MARK as u32);

/// Whether the program wants this kernel socket to be non-blocking.
fn wants_nonblocking(fd: c_int) -> bool {
    rustix::fs::fcntl_getfl(sys::borrow(fd))
        .is_ok_and(|flags| flags.contains(OFlags::NONBLOCK) && !flags.contains(OURS))
}

/// Whether a kernel listener is non-blocking only for another process, which has it from this one and listens with it on an
/// engine, too.
pub fn is_held_elsewhere(fd: c_int, flags: c_int) -> bool {
    let held = OFlags::NONBLOCK | OURS;
    OFlags::from_bits_retain(flags as u32).contains(held) && state_now(fd) == LISTEN
}

/// accept on such a listener: this process's program wants to wait.
///
/// # Safety
/// As [`accept`].
pub unsafe fn accept_held(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let limit = rustix::net::sockopt::socket_timeout(sys::borrow(fd), rustix::net::sockopt::Timeout::Recv);
    let end = limit.ok().flatten().map(|limit| sys::now() + limit);
    loop {
        let left = end.map(|end| end.saturating_sub(sys::now()));
        let mut twin = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        let (waited, is_interrupted) = wait::sleep(None, || wait_calls::ppoll(&mut twin, left, None));
        if is_interrupted || waited == Err(Errno::EINTR) {
            return fail(if wait::restarts(end.is_some()) { ERESTART } else { Errno::EINTR });
        }
        match waited {
            Ok(0) => return fail(Errno::EAGAIN),
            Err(error) => return fail(error),
            Ok(_) => {}
        }
        // SAFETY: the caller's promise.
        let new = unsafe { accept_from_twin(fd, addr, len, flags) };
        if new != Err(Errno::EAGAIN) {
            return number(new);
        }
    }
}

/// Makes a listener's twin non-blocking, and notes on it what the program `wants`.
pub fn hold_nonblocking(fd: c_int, wants: bool) {
    if let Ok(flags) = rustix::fs::fcntl_getfl(sys::borrow(fd)) {
        let mut wanted = flags | OFlags::NONBLOCK;
        wanted.set(OURS, !wants);
        if wanted != flags {
            let _ = rustix::fs::fcntl_setfl(sys::borrow(fd), wanted);
        }
    }
}

/// The twin is no listener's any more: its flag is what the program wants.
fn release_nonblocking(fd: c_int, wants: bool) {
    if let Ok(mut flags) = rustix::fs::fcntl_getfl(sys::borrow(fd)) {
        flags.set(OFlags::NONBLOCK, wants);
        flags.remove(OURS);
        let _ = rustix::fs::fcntl_setfl(sys::borrow(fd), flags);
    }
}

/// The start of a kernel socket's `struct tcp_info`.
fn info_now(fd: c_int) -> Option<[u8; 32]> {
    let mut info = [0u8; 32];
    let mut len = info.len() as socklen_t;
    // SAFETY: a local buffer of `len` bytes.
    let result = unsafe {
        real::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut len)
    };
    (result == 0).then_some(info)
}

/// The backlog of a kernel socket that listens.
pub fn backlog_now(fd: c_int) -> c_int {
    // tcpi_sacked, which of a listener is its backlog.
    let word = info_now(fd).and_then(|info| info.get(28..32)?.try_into().ok());
    word.map_or(0, c_int::from_ne_bytes)
}

/// The state of a kernel socket, as net/tcp_states.h numbers them; 0: it is none of TCP.
fn state_now(fd: c_int) -> u8 {
    info_now(fd).map_or(0, |info| info[0])
}

/// A backlog as Linux reads it: a negative one is as large as can be.
pub fn backlog_of(backlog: c_int) -> u32 {
    u32::try_from(backlog).unwrap_or(u32::MAX)
}

/// The kernel's socket listens no more (shutdown(2), or connect(2) to nowhere): in the engine it does not either, and all
/// of the program's descriptors for it are of an undecided socket again.
pub fn end(listener: &'static Socket) {
    let _ = listener.shutdown(Shutdown::Both);
    let mut descriptors = Vec::new();
    fd_table::for_each(0, c_int::MAX, |fd| {
        if fd_table::get(fd).is_some_and(|other| core::ptr::eq(other, listener)) {
            descriptors.push(fd);
        }
    });
    let (wants, is_shared) = (listener.nonblocking(), listener.is_shared());
    let is_copied = descriptors.len() > 1;
    // A negative one shows as none.
    let is_limited = |option: Replayed| match option.name {
        libc::SO_RCVTIMEO => listener.time_limits.receive.get().is_some(),
        _ => listener.time_limits.send.get().is_some(),
    };
    let limits = State::of_options(|option| option.is_time_limit() && is_limited(option));
    for fd in descriptors {
        let is_watched = epoll::move_back(fd, listener);
        fd_release::remove(fd);
        release_nonblocking(fd, wants);
        // What was set before it listened, its next connections are to have as well.
        socket_state::set(fd, socket_state::of_unknown(fd).with(State::WAS_LISTENER).with(limits));
        why::set_reason(fd, On::Kernel, Reason::Undecided);
        if is_watched {
            socket_state::add(fd, State::IN_EPOLL);
        }
        // As for any socket with copies before its stack is chosen: to go to an engine, all would have to be known.
        if is_copied {
            keep_on_kernel(fd, Reason::Duplicated);
        } else if is_shared {
            keep_on_kernel(fd, Reason::SharedTwin);
        }
    }
}

/// The program asks of a listener what only the kernel does: connections come there alone from here on. `of_group`: of all listeners with its
/// address.
pub fn leave_to_kernel(fd: c_int, listener: &'static Socket, of_group: bool) {
    end(listener);
    keep_on_kernel(fd, Reason::Option);
    if of_group {
        leave_group(fd);
    }
}

/// The kernel chooses among all listeners that have the address of `fd` by a program of this program's: none of them is an engine's.
pub fn leave_group(fd: c_int) {
    let Some(local) = twin_address(fd) else { return };
    let mut others = Vec::new();
    let mut add = |other: c_int| {
        if other != fd && shares_port(other) && twin_address(other) == Some(local) {
            others.push(other);
        }
    };
    fd_table::for_each(0, c_int::MAX, &mut add);
    socket_state::for_each(0, c_int::MAX, &mut add);
    for other in others {
        if let Some(listener) = lookup::listener(other) {
            end(listener);
        }
        keep_on_kernel(other, Reason::Option);
    }
}

fn shares_port(fd: c_int) -> bool {
    rustix::net::sockopt::socket_reuseport(sys::borrow(fd)) == Ok(true)
}

/// Whether a program chooses among the listeners that `fd` is about to be one of.
fn is_of_such_group(fd: c_int, local: Endpoint) -> bool {
    let mut found = false;
    socket_state::for_each(0, c_int::MAX, |other| {
        let by_option = other != fd && why::is(other, Reason::Option) && shares_port(other);
        found |= by_option && twin_address(other) == Some(local);
    });
    found
}

/// accept on a listener that both stacks serve.
///
/// # Safety
/// `addr` and `len` are as accept(2) wants them.
pub unsafe fn accept(
    fd: c_int,
    listener: &'static Socket,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
        return fail(Errno::EINVAL);
    }
    loop {
        let dont_wait = listener.nonblocking();
        let how = AcceptHow {
            dont_wait,
            cloexec: flags & libc::SOCK_CLOEXEC != 0,
            nonblocking: flags & libc::SOCK_NONBLOCK != 0,
            with_twin: listener.has_twin(),
        };
        let mut of_kernel = Err(Errno::EAGAIN);
        let accepted = listener.accept_of_both(how, &mut |twin| {
            // SAFETY: the caller's promise.
            of_kernel = unsafe { accept_from_twin(twin, addr, len, flags) };
            of_kernel != Err(Errno::EAGAIN)
        });
        let error = match accepted {
            // SAFETY: the caller's promise.
            Ok(accepted) => return unsafe { give(accepted, addr, len) },
            Err(AcceptError::OfKernel) => return number(of_kernel),
            Err(AcceptError::Errno(Errno::EAGAIN)) if !dont_wait => return fail(Errno::EAGAIN),
            Err(AcceptError::Errno(error)) => error,
        };
        let gone = matches!(error, Errno::ENETDOWN | Errno::ECONNRESET);
        if !listener.has_twin() || !(error == Errno::EAGAIN || gone) {
            return fail(error);
        }
        // SAFETY: the caller's promise.
        let of_kernel = unsafe { accept_from_twin(fd, addr, len, flags) };
        if of_kernel != Err(Errno::EAGAIN) || dont_wait {
            return number(of_kernel);
        }
        if gone && listener.has_engine() {
            // Another one goes on.
            continue;
        }
        if gone {
            // The engine has ended; the kernel's side of the listener goes on alone.
            let mut twin = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            let (waited, _) = wait::sleep(None, || wait_calls::ppoll(&mut twin, None, None));
            if let Err(error) = waited {
                return fail(error);
            }
        }
    }
}

/// The connection is the program's, which is told its peer's address.
///
/// # Safety
/// As [`accept`].
unsafe fn give(accepted: Accepted, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    socket_state::set(accepted.fd, State::default());
    if !addr.is_null() {
        // SAFETY: the caller's promise.
        let written = unsafe { write_inet(accepted.peer, accepted.socket.is_inet6(), addr, len) };
        if let Err(error) = written {
            // Linux, too, has taken the connection when it cannot tell of its peer, and lets go of it.
            // SAFETY: the call takes a number only.
            tables::close(accepted.fd);
            return fail(error);
        }
    }
    let engine = accepted.socket.engine().index() as u8;
    why::set(accepted.fd, Decided { engine, ..Decided::new(On::Engine, Reason::Accepted) });
    accepted.fd
}

/// accept4 of the twin, which is non-blocking; by the system call, as it must be no point of thread cancellation here.
///
/// # Safety
/// As [`accept`].
unsafe fn accept_from_twin(
    twin: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Result<c_int, Errno> {
    // Linux makes the new socket before it looks whether a connection waits: asking first is much cheaper in vain.
    let mut polled = [libc::pollfd { fd: twin, events: libc::POLLIN, revents: 0 }];
    if wait_calls::ppoll(&mut polled, Some(core::time::Duration::ZERO), None) == Ok(0) {
        return Err(Errno::EAGAIN);
    }
    // SAFETY: the caller's promise; the kernel checks the pointers.
    let new = unsafe {
        crate::ffi::syscall(
            libc::SYS_accept4,
            [twin as usize, addr.expose_provenance(), len.expose_provenance(), flags as usize],
        )
    };
    if new < 0 {
        return Err(last_errno());
    }
    tables::is_new(new);
    why::set_reason(new, On::Kernel, Reason::AcceptedByKernel);
    Ok(new)
}

/// bind of an address that the kernel does not have but an engine has: the twin takes the port all the same.
///
/// # Safety
/// As bind(2).
pub unsafe fn bind_freely(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    let on: c_int = 1;
    let on_len = size_of::<c_int>() as socklen_t;
    // SAFETY: the option's value is a local; the address is the caller's promise.
    unsafe {
        if real::setsockopt(fd, libc::IPPROTO_IP, libc::IP_FREEBIND, (&raw const on).cast(), on_len) < 0 {
            return -1;
        }
        real::bind(fd, addr, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_backlog_is_a_large_one() {
        assert_eq!(backlog_of(-1), u32::MAX);
        assert_eq!(backlog_of(0), 0);
        assert_eq!(backlog_of(511), 511);
    }

    #[test]
    fn a_twin_remembers_what_the_program_wants() {
        use std::os::fd::AsRawFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let fd = listener.as_raw_fd();
        assert!(!wants_nonblocking(fd));
        hold_nonblocking(fd, false);
        assert!(!wants_nonblocking(fd) && sys::is_nonblocking(fd));
        hold_nonblocking(fd, true);
        assert!(wants_nonblocking(fd));
        assert_eq!(backlog_now(fd), 4096.min(backlog_now(fd)));
        assert!(backlog_now(fd) >= 1);
    }
}
