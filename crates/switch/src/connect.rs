//! connect(2) on a TCP socket: which stack gets it, and the exchange of the descriptor when an engine takes it.
//! Called by `calls::address`; asks `proto_stacks` for the order.
//!
//! While the engine is asked, the program's descriptor stays the kernel's twin, so that a refusal leaves it as it
//! was. When the engine has begun to connect, the anchor is put over the program's number, so that other threads see the
//! socket that this one waits for; from then on the flow lives as long as the anchor does. The twin is put back when
//! the peer cannot be reached.

use crate::engines::{KNOWN, engine, reason_of, replay_options};
use crate::ffi::{fail, family, is_too_long, last_errno, read_endpoint};
use crate::policy::{self, Action, Call, Decision, Engines};
use crate::proto_stacks::{self, Attempts, Binding, ProtoStack};
use crate::replacing::{self, InKernel, Refusal, Replacing};
use crate::socket_state::{self, State};
use crate::twin::{Held, NoRoom, NotHeld, Twin, is_still, reopen, wait_connected};
use crate::twin_name::{bound_to, is_v6only};
use crate::why::{self, Decided, Reason, Stack as On};
use crate::{fork, listen, lookup, real};
use core::ffi::{c_int, c_void};
use core::net::Ipv4Addr;
use core::time::Duration;
use libc::{sockaddr, socklen_t};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use toe::socket::{ConnectHow, FastOpen, Kind, Socket};
use toe::stack::EngineIdx;
use toe::{Anchor, AnchorUse as Use, Errno, sys};
use toe_base::{Addr, Endpoint};

/// What to do after the engines were asked. The kernel's connect is made by the caller, outside of all guards: it
/// may block, and is a point of thread cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Answered; errno is set.
    Done(c_int),
    /// The kernel connects; this is why, and how to know afterwards whether the number is what it was ([`kernel_answered`]).
    Kernel(Decided, Option<InKernel>),
    /// The kernel's call, and nothing is decided by it.
    Pass,
}

/// connect on an undecided twin.
///
/// # Safety
/// `addr` is null or points to `len` readable bytes.
pub unsafe fn undecided(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Verdict {
    let flags = ConnectFlags { fast: fast_open(fd), dont_wait: false };
    // SAFETY: the caller's promise.
    unsafe { undecided_by(fd, addr, len, flags) }
}

/// The same for a call that sends bytes at once (MSG_FASTOPEN). When it is done with 0 the bytes can be sent.
///
/// # Safety
/// As [`undecided`].
pub unsafe fn sending(fd: c_int, addr: *const sockaddr, len: socklen_t, dont_wait: bool) -> Verdict {
    // SAFETY: the caller's promise.
    unsafe { undecided_by(fd, addr, len, ConnectFlags { fast: FastOpen::Message, dont_wait }) }
}

/// How it is connected.
#[derive(Clone, Copy, Debug)]
struct ConnectFlags {
    fast: FastOpen,
    /// Whatever the descriptor's own flag says.
    dont_wait: bool,
}

/// Whether TCP_FASTOPEN_CONNECT is set on a twin.
fn fast_open(fd: c_int) -> FastOpen {
    if !socket_state::get(fd).has(State::FAST_OPEN) {
        return FastOpen::No;
    }
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    let name = libc::TCP_FASTOPEN_CONNECT;
    // SAFETY: a local buffer of `len` bytes.
    let result =
        unsafe { real::getsockopt(fd, libc::IPPROTO_TCP, name, (&raw mut value).cast::<c_void>(), &mut len) };
    if result == 0 && value != 0 { FastOpen::Option } else { FastOpen::No }
}

/// # Safety
/// As [`undecided`].
unsafe fn undecided_by(fd: c_int, addr: *const sockaddr, len: socklen_t, flags: ConnectFlags) -> Verdict {
    let state = socket_state::get(fd);
    // SAFETY: the caller's promise.
    let Some(remote) = (unsafe { read_endpoint(addr, len, state.has(State::INET6)) }) else {
        return Verdict::Pass;
    };
    if state.has(State::INET6) && remote.addr.is_v4() && is_v6only(fd) {
        return Verdict::Kernel(Decided::new(On::Kernel, Reason::V6Only), None);
    }
    if fork::in_vfork_child() {
        return Verdict::Pass;
    }
    const BROADCAST: Addr = Addr::v4(Ipv4Addr::BROADCAST);
    if remote.port == 0 || remote.addr.is_multicast() || remote.addr == BROADCAST {
        return Verdict::Kernel(Decided::new(On::Kernel, Reason::NoRoute), None);
    }
    let now_ms = sys::coarse_ms();
    let local = bound_to(fd, state);
    let state = match local {
        // By another process that has the descriptor, or within the C library (bindresvport).
        Some(_) if !state.has(State::BOUND) => {
            socket_state::add(fd, State::BOUND);
            socket_state::get(fd)
        }
        _ => state,
    };
    // Linux takes INADDR_ANY as a destination for "this host": the socket's own address if it has one.
    let remote = match remote.addr.is_unspecified() {
        true => {
            let own = local.map(|local| local.addr).filter(|own| !own.is_unspecified());
            remote.at(own.unwrap_or(remote.addr.localhost()))
        }
        false => remote,
    };
    let decision = policy::decide(Call::Connect, remote);
    if decision.action == Action::Refuse {
        why::set(fd, Decided { rule: decision.rule, ..Decided::new(On::Kernel, Reason::PolicyRefused) });
        return Verdict::Done(fail(Errno::EACCES));
    }
    let shared = state.may_be_shared();
    if let (Some(reason), true) = (shared, decision.action != Action::EngineOnly) {
        return Verdict::Kernel(Decided::new(On::Kernel, reason), None);
    }
    let engine_address = state.has(State::ENGINE_ADDRESS);
    let binding = proto_stacks::binding(local.map(|l| l.addr), engine_address, &KNOWN, now_ms);
    let stacks = policy::stacks(decision, remote);
    // Of a twin that another process has, too, an engine would be given one side only.
    let attempts = match shared.is_some() {
        true => Attempts::none(),
        false => stacks.attempts_to(binding, remote.addr, &KNOWN, now_ms),
    };
    let mut asking = Asking {
        fd,
        state,
        local,
        remote,
        flags,
        decision,
        binding,
        refused: None,
        all_unserved: true,
        held: None,
    };
    asking.each(attempts)
}

/// connect on a socket that no engine can have: whether the policy lets the kernel have it.
///
/// # Safety
/// As [`undecided`].
pub unsafe fn of_kernel(fd: c_int, addr: *const sockaddr, len: socklen_t) -> Verdict {
    // SAFETY: the caller's promise.
    let Some(remote) = (unsafe { read_endpoint(addr, len, socket_state::get(fd).has(State::INET6)) }) else {
        return Verdict::Pass;
    };
    let decision = policy::decide(Call::Connect, remote);
    let (reason, error) = match decision.action {
        Action::Refuse => (Reason::PolicyRefused, Errno::EACCES),
        Action::EngineOnly => (Reason::PolicyEngineOnly, Errno::ENETUNREACH),
        _ => return Verdict::Pass,
    };
    why::set(fd, Decided { rule: decision.rule, ..Decided::new(On::Kernel, reason) });
    Verdict::Done(fail(error))
}

/// A connect that asks one stack after the other.
struct Asking {
    fd: c_int,
    state: State,
    local: Option<Endpoint>,
    remote: Endpoint,
    flags: ConnectFlags,
    decision: Decision,
    binding: Binding,
    /// What the last engine said that refused.
    refused: Option<(Reason, Errno)>,
    /// All that refused do not serve one of the addresses: what is to be remembered.
    all_unserved: bool,
    /// The kernel's socket, from the moment that the first engine is asked.
    held: Option<Held>,
}

impl Asking {
    fn each(&mut self, attempts: Attempts) -> Verdict {
        let kernel_too = attempts.iter().any(|stack| stack == ProtoStack::Kernel);
        for stack in attempts.iter() {
            let ProtoStack::Engine(engine) = stack else {
                if self.is_an_engines_alone() {
                    break;
                }
                self.note_winner(ProtoStack::Kernel);
                return self.by_kernel();
            };
            match self.by_engine(engine, kernel_too) {
                Attempt::Answered(result) => {
                    self.note_winner(stack);
                    policy::note_given(engine);
                    return Verdict::Done(crate::ffi::status(result));
                }
                Attempt::Over(verdict) => return verdict,
                Attempt::Refused(reason, error) => {
                    self.all_unserved &= matches!(reason, Reason::NoRoute | Reason::NotEngineAddress);
                    // That nobody listens there says more than that another engine is not there.
                    if !matches!(self.refused, Some((_, Errno::ECONNREFUSED))) {
                        self.refused = Some((reason, error));
                    }
                }
            }
        }
        // The kernel may not have it: its address is an engine's, or the policy says so.
        let (reason, error) = self.refused.unwrap_or((Reason::NotEngineAddress, Errno::ENETUNREACH));
        let reason = match self.decision.action {
            Action::EngineOnly => Reason::PolicyEngineOnly,
            Action::Kernel => Reason::PolicyKernel,
            _ => reason,
        };
        why::set(self.fd, Decided { rule: self.decision.rule, ..Decided::new(On::Kernel, reason) });
        Verdict::Done(fail(error))
    }

    /// An engine has the address, and nobody listens there. The kernel, which does not have it, would look for it elsewhere.
    fn is_an_engines_alone(&self) -> bool {
        matches!(self.refused, Some((_, Errno::ECONNREFUSED)))
            && !self.remote.addr.is_loopback()
            && !kernel_has(self.remote)
    }

    /// The kernel connects what is at the number: if that is still the program's socket.
    fn by_kernel(&mut self) -> Verdict {
        let because = self.because_of_kernel();
        match self.held.take().map(Held::leave_to_kernel) {
            None => Verdict::Kernel(because, None),
            Some(Some(in_kernel)) => Verdict::Kernel(because, Some(in_kernel)),
            Some(None) => Verdict::Done(fail(Errno::EBADF)),
        }
    }

    fn because_of_kernel(&self) -> Decided {
        let reason = match (self.decision.action, self.binding, self.refused) {
            (Action::Kernel, ..) => Reason::PolicyKernel,
            (_, Binding::KernelOnly, _) => Reason::BoundToKernelAddress,
            (_, _, Some((reason, _))) => reason,
            _ => Reason::NoRoute,
        };
        Decided { rule: self.decision.rule, ..Decided::new(On::Kernel, reason) }
    }

    /// The next connect to the same address begins with the stack that took this one, if the engines before it do not
    /// serve the address.
    fn note_winner(&self, winner: ProtoStack) {
        // Of some of the engines only, it would say nothing of the others; and balance chooses anew each time.
        if self.decision.engines != Engines::ALL || (winner != ProtoStack::Kernel && policy::balances()) {
            return;
        }
        let now_ms = sys::coarse_ms();
        match (self.refused, self.local) {
            (Some((Reason::NotEngineAddress, _)), Some(local)) if self.all_unserved => {
                KNOWN.note(local.addr, winner, now_ms);
            }
            (Some(_), _) if self.all_unserved => KNOWN.note(self.remote.addr, winner, now_ms),
            _ => {}
        }
    }

    fn by_engine(&mut self, engine: EngineIdx, kernel_too: bool) -> Attempt {
        let on = Decided {
            rule: self.decision.rule,
            engine: engine.index() as u8,
            ..Decided::new(On::Engine, Reason::Connected)
        };
        let how = (self.flags, kernel_too);
        by_engine(self.fd, self.state, (self.local, self.remote), how, on, &mut self.held)
    }
}

/// connect on a socket that an engine has.
///
/// # Safety
/// As [`undecided`].
pub unsafe fn again(fd: c_int, socket: &'static Socket, addr: *const sockaddr, len: socklen_t) -> Verdict {
    if is_too_long(len) {
        return Verdict::Done(fail(Errno::EINVAL));
    }
    // SAFETY: the caller's promise.
    let disconnects = unsafe { family(addr, len) } == Some(libc::AF_UNSPEC);
    if addr.is_null() && len > 0 {
        return Verdict::Done(fail(crate::ffi::errno(libc::EFAULT)));
    }
    if matches!(socket.kind(), Kind::Listener) {
        if !disconnects {
            return Verdict::Done(fail(Errno::EISCONN));
        }
        // SAFETY: as above.
        let result = unsafe { real::connect(fd, addr, len) };
        if result == 0 {
            listen::end(socket);
        }
        return Verdict::Done(result);
    }
    if disconnects {
        socket.disconnect();
        return Verdict::Done(0);
    }
    let was_over = socket.disconnected().is_some();
    let earlier = match was_over {
        true => Err(Errno::ECONNABORTED),
        false => socket.wait_connected(socket.nonblocking()),
    };
    match earlier {
        // The program hears of an attempt that has failed; the next one is another.
        Err(error) if !was_over && socket.disconnected().is_some() => Verdict::Done(fail(error)),
        Err(Errno::ECONNABORTED) => match reopen(fd) {
            // It may have copies, which the kernel has, too.
            Ok(()) if !socket_state::get(fd).has(State::TWIN) => Verdict::Pass,
            // SAFETY: the caller's promise.
            Ok(()) => unsafe { undecided(fd, addr, len) },
            Err(error) => Verdict::Done(fail(error)),
        },
        result => Verdict::Done(crate::ffi::status(result)),
    }
}

/// Before a call that Linux lets a disconnected socket make, which an engine's is not made for: the kernel has the socket again.
pub fn renew(fd: c_int) {
    if lookup::stream(fd).is_some_and(|socket| socket.disconnected().is_some()) {
        let _ = reopen(fd);
    }
}

/// Notes what came out of the kernel's connect; errno is left as it is.
pub fn kernel_answered(fd: c_int, result: c_int, (why, in_kernel): (Decided, Option<InKernel>)) {
    let error = last_errno();
    if in_kernel.is_some_and(|in_kernel| !replacing::is_back(fd, in_kernel)) {
        // It is another socket's by now.
    } else if result == 0 || matches!(error, Errno::EINPROGRESS | Errno::EINTR) {
        socket_state::decided(fd);
        why::set(fd, why);
    } else {
        // It keeps the port that it was to connect from.
        socket_state::touch(fd);
    }
    crate::ffi::set_errno(c_int::from(error.0));
}

enum Attempt {
    /// The engine has the connection, or tried and failed for good: what connect(2) returns.
    Answered(Result<(), Errno>),
    /// It does not want it; the next stack may.
    Refused(Reason, Errno),
    /// The descriptor is no longer this call's to decide on.
    Over(Verdict),
}

/// `on`: what is reported if it takes the connection. `held`: the socket, from when on it is held.
fn by_engine(
    fd: c_int,
    state: State,
    (local, remote): (Option<Endpoint>, Endpoint),
    (flags, kernel_too): (ConnectFlags, bool),
    on: Decided,
    held: &mut Option<Held>,
) -> Attempt {
    let stack = match EngineIdx::new(on.engine.into()).ok_or(Reason::NoEngine).and_then(engine) {
        Ok(stack) => stack,
        Err(reason) => return Attempt::Refused(reason, Errno::ENETUNREACH),
    };
    let to = remote.to_socket_addr();
    if let Some(error) = Socket::left_to_kernel(stack, to).filter(|_| kernel_too) {
        return Attempt::Refused(reason_of(error, remote.addr), error);
    }
    let twin = match held.take().map_or_else(|| Held::take(stack, fd), Ok) {
        Ok(twin) => twin,
        Err(NotHeld::NoDescriptor(error)) => return Attempt::Refused(Reason::NoDescriptor, error),
        Err(NotHeld::Replaced(refusal)) => return Attempt::Over(by_others(fd, refusal, kernel_too)),
    };
    let anchor = match Anchor::take(stack, Use::Connection) {
        Ok(anchor) => anchor,
        Err(error) => {
            *held = Some(twin);
            return Attempt::Refused(reason_of(error, remote.addr), error);
        }
    };
    // The program's descriptor is the kernel's still: it holds the port that the program has bound.
    let from = local.map(|local| (local.to_socket_addr(), sys::borrow(twin.number())));
    let need_not_ask = flags.fast == FastOpen::No && from.is_none();
    let begun = need_not_ask.then(|| Socket::connect_at_once(&anchor, to, fd)).flatten();
    let asked = || Socket::connect(&anchor, from, to, fd, ConnectHow { fast: flags.fast, kernel_too });
    let socket = match begun.map_or_else(asked, Ok) {
        Ok(socket) => socket,
        Err(error) => {
            anchor.refused(error);
            if error == Errno::EADDRNOTAVAIL && is_all_its_own(local, remote) {
                return Attempt::Answered(Err(error));
            }
            *held = Some(twin);
            return Attempt::Refused(reason_of(error, remote.addr), error);
        }
    };
    let nonblocking = sys::is_nonblocking(twin.number());
    socket.set_nonblocking(nonblocking);
    replay_options(twin.number(), state, socket);
    let dont_wait = nonblocking || flags.dont_wait || socket.time_limits.send.get() == Some(Duration::ZERO);
    let placed = match twin.make_room(fd, nonblocking, anchor, (socket, on)) {
        Ok(placed) => placed,
        Err(NoRoom::Ended(anchor)) => {
            // The program has closed the descriptor. As with Linux the connection is made all the same, and ends with this call.
            let result = socket.wait_connected(dont_wait);
            drop(anchor);
            socket.abandon();
            return Attempt::Answered(result);
        }
        Err(NoRoom::Errno(error)) => return Attempt::Answered(Err(error)),
    };
    wait_placed(fd, placed, (socket, remote), (flags, dont_wait), held)
}

/// The connection is at the program's number: waits for it, if that is asked for.
fn wait_placed(
    fd: c_int,
    (mut twin, replacing): (Twin, Replacing),
    (socket, remote): (&'static Socket, Endpoint),
    (flags, dont_wait): (ConnectFlags, bool),
    held: &mut Option<Held>,
) -> Attempt {
    let waits = (!dont_wait).then(|| socket.hold());
    drop(replacing);
    let result = match flags.fast {
        // The bytes that it waits for come with this call, and then it is waited for.
        FastOpen::Message if socket.waits_for_bytes() => Ok(()),
        _ => wait_connected(fd, (socket, waits), &mut twin, dont_wait),
    };
    if !is_still(fd, socket) {
        // Another thread has closed the descriptor.
        return Attempt::Answered(result);
    }
    match result {
        // Interrupted or timed out: the attempt goes on, and the program asks for it with this descriptor.
        Ok(()) | Err(Errno::EINTR | Errno::EINPROGRESS) => {
            twin.keep(fd);
            Attempt::Answered(result)
        }
        Err(error) => {
            *held = twin.put_back(fd, socket);
            if error == Errno::ECONNREFUSED && remote.addr.is_loopback() && held.is_some() {
                return Attempt::Refused(Reason::NobodyListensInEngine, error);
            }
            if error == Errno::ENETDOWN && held.is_some() {
                return Attempt::Refused(Reason::EngineSilent, error);
            }
            Attempt::Answered(Err(error))
        }
    }
}

/// Whether the kernel has the address, as far as it says.
#[cold]
fn kernel_has(remote: Endpoint) -> bool {
    let family = if remote.addr.is_v4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let probe = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let bound =
        probe.and_then(|probe| rustix::net::bind(&probe, &Endpoint { port: 0, ..remote }.to_socket_addr()));
    bound != Err(rustix::io::Errno::ADDRNOTAVAIL)
}

/// The descriptor is another thread's to decide on, or gone.
fn by_others(fd: c_int, refusal: Refusal, kernel_too: bool) -> Verdict {
    match lookup::stream(fd) {
        Some(socket) => Verdict::Done(crate::ffi::status(socket.wait_connected(socket.nonblocking()))),
        None if refusal == Refusal::Ended && !kernel_too => Verdict::Done(fail(Errno::ENETUNREACH)),
        // The kernel knows what it has of it. If the program has ended it, this call comes after that.
        None => Verdict::Pass,
    }
}

/// Whether both addresses are such as every engine has: where it has no name left between them, or that one is taken, the
/// kernel, which does not know of its connections, has nothing to say.
fn is_all_its_own(local: Option<Endpoint>, remote: Endpoint) -> bool {
    let is_own = |addr: Addr| addr.is_loopback() || addr.is_unspecified();
    remote.addr.is_loopback() && local.is_none_or(|local| is_own(local.addr))
}
