//! What is remembered of a TCP socket whose stack is not decided: it is the INET *twin* itself, and everything that
//! the program does to it is done to the twin by the kernel, so almost all of its state can be asked of the kernel at
//! the moment of decision. What cannot, or would cost a call each time, are the bits here: one word per descriptor.
//!
//! Written by `calls` (socket, setsockopt, bind, dup, close); read by `connect.rs` and `listen.rs`.

use crate::{fork, option_model, real};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use libc::socklen_t;
use rustix::net::{AddressFamily, sockopt};
use toe::sys;
use toe_abi::why::Reason;

/// Descriptors that have a word; one beyond is left to the kernel.
const DESCRIPTORS: usize = 1 << 20;

/// Lies in .bss: the kernel gives memory only to the pages in use.
static STATES: [Remembered; DESCRIPTORS] =
    [const { Remembered { state: AtomicU64::new(0), decided: AtomicU32::new(0) } }; DESCRIPTORS];

/// What is known of a descriptor. Both words stand in one page, as a fork costs a copy of each page that is written to after it.
#[derive(Debug)]
struct Remembered {
    state: AtomicU64,
    /// Of [`crate::why`].
    decided: AtomicU32,
}

/// One more than the largest descriptor that ever had a state.
static END: AtomicU32 = AtomicU32::new(0);

/// The word: flags, from [`OPTION_SHIFT`] on one bit for each of [`REPLAYED`], and from [`FORKS_SHIFT`] on two counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State(pub u64);

impl State {
    /// An undecided stream socket of AF_INET or AF_INET6.
    pub const TWIN: State = State(1);
    /// The program has called bind with success.
    pub const BOUND: State = State(2);
    /// Bound with IP_FREEBIND to an address that only an engine has.
    pub const ENGINE_ADDRESS: State = State(4);
    /// Noted in an epoll set (of any descriptor that is not the engine's, TCP or not).
    pub const IN_EPOLL: State = State(8);
    /// Has an entry in the why table.
    pub const REPORTED: State = State(16);
    /// Has a kernel socket behind it (`hidden_twin.rs`).
    pub const KEEPS_TWIN: State = State(32);
    /// The program has changed something of the kernel's socket that is not noted here.
    pub const TOUCHED: State = State(64);
    /// A thread is about to put something else there (`replacing.rs`): it may become an engine's, or the kernel's again, at any moment.
    pub const REPLACING: State = State(128);
    /// Of AF_INET6: the engine can have it for addresses that are IPv4's.
    pub const INET6: State = State(256);
    /// The policy may keep it from the kernel, whatever else becomes of it.
    pub const SUBJECT: State = State(512);
    /// It was there when the program started: a listener is the engine's only once this program uses it (`adopt.rs`).
    pub const INHERITED: State = State(1 << 31);
    /// It has been a listener of the engine's: connections that came in by it may still have its port.
    pub const WAS_LISTENER: State = State(1 << 30);
    /// TCP_NODELAY and SO_KEEPALIVE are among the options that were set.
    pub const NO_DELAY: State = State::of_option(libc::IPPROTO_TCP, libc::TCP_NODELAY);
    pub const KEEP_ALIVE: State = State::of_option(libc::SOL_SOCKET, libc::SO_KEEPALIVE);
    /// TCP_FASTOPEN or TCP_FASTOPEN_CONNECT is among them: which, the kernel's socket says.
    pub const FAST_OPEN: State = State::of_option(libc::IPPROTO_TCP, libc::TCP_FASTOPEN);

    /// A kernel socket as it was made just now.
    pub fn new_twin() -> State {
        let (forks, others) = (toe::process::count(), fork::made_otherwise());
        State(State::TWIN.0 | State::ages(forks, others))
    }

    /// The two counts, as far as they fit.
    const fn ages(forks: u32, others: u32) -> u64 {
        (forks as u16 as u64) << FORKS_SHIFT | (others as u16 as u64) << OTHERS_SHIFT
    }

    /// Whether a child of a fork has it, too. One that was made otherwise is to execute something at once.
    pub fn is_older_than_fork(self) -> bool {
        self.has(State::TWIN) && (self.0 >> FORKS_SHIFT) as u16 != toe::process::count() as u16
    }

    /// Why another process may have this undecided socket, too, if so.
    pub fn may_be_shared(self) -> Option<Reason> {
        match self.has(State::INHERITED) {
            true => Some(Reason::Inherited),
            false => self.is_older_than_fork().then_some(Reason::SharedTwin),
        }
    }

    const fn of_option(level: c_int, name: c_int) -> State {
        let mut n = 0;
        while REPLAYED[n].level != level || REPLAYED[n].name != name {
            n += 1;
        }
        State(1 << (OPTION_SHIFT + n))
    }

    pub const fn without(self, flags: State) -> State {
        State(self.0 & !flags.0)
    }

    pub const fn only(self, flags: State) -> State {
        State(self.0 & flags.0)
    }

    pub const fn has(self, flags: State) -> bool {
        self.0 & flags.0 == flags.0
    }

    pub const fn with(self, flags: State) -> State {
        State(self.0 | flags.0)
    }

    /// Those options that `is_set` says so of.
    pub fn of_options(is_set: impl Fn(Replayed) -> bool) -> State {
        let bits = (0..REPLAYED.len()).map(|n| State(1 << (OPTION_SHIFT + n)));
        bits.filter(|bit| bit.options().any(&is_set)).fold(State::default(), State::with)
    }

    /// The options that the program has set, to be repeated on the engine's socket.
    pub fn options(self) -> impl Iterator<Item = Replayed> {
        REPLAYED.iter().enumerate().filter(move |(n, _)| self.0 & (1 << (OPTION_SHIFT + n)) != 0).flat_map(
            |(_, first)| {
                let group = GROUPS.iter().find(|(known, _)| known == first);
                let others = group.map_or(&[][..], |(_, others)| *others);
                core::iter::once(*first).chain(others.iter().copied())
            },
        )
    }
}

const OPTION_SHIFT: usize = 10;
/// How often the process had forked when the socket was made, and how many processes it had made otherwise.
const FORKS_SHIFT: usize = 32;
const OTHERS_SHIFT: usize = 48;

/// An option that is read from the twin and set on the engine's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    pub level: c_int,
    pub name: c_int,
}

impl Replayed {
    /// SO_RCVTIMEO or SO_SNDTIMEO, which count as set while there is a limit.
    pub const fn is_time_limit(self) -> bool {
        self.level == libc::SOL_SOCKET && matches!(self.name, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO)
    }

    /// Whether that value takes it back: a time limit of zero is none, as at the beginning. (A negative one is over at once.)
    pub fn is_none(self, value: &[u8]) -> bool {
        self.is_time_limit() && value.iter().zip(0..size_of::<libc::timeval>()).all(|(byte, _)| *byte == 0)
    }

    /// What the kernel says of it; `None`: it knows of none there.
    pub fn value_on(self, fd: c_int) -> Option<([u8; VALUE_MAX], usize)> {
        let mut value = [0; VALUE_MAX];
        let mut len = VALUE_MAX as socklen_t;
        // SAFETY: a local buffer of `len` bytes.
        let result = unsafe {
            real::getsockopt(fd, self.level, self.name, value.as_mut_ptr().cast::<c_void>(), &mut len)
        };
        (result == 0).then_some((value, len as usize))
    }
}

/// None of them is longer.
const VALUE_MAX: usize = 16;

const fn replayed(level: c_int, name: c_int) -> Replayed {
    Replayed { level, name }
}

/// The options with an effect on an engine's socket, each with a bit of the state. The bits are used up: one more belongs to [`RARE`]. What is
/// in none of these tables, and unknown to [`option_model`], is the twin's alone ([`OptionKind::Indifferent`]), and the engine never hears of it.
const REPLAYED: [Replayed; 20] = [
    replayed(libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    replayed(libc::SOL_SOCKET, libc::SO_LINGER),
    replayed(libc::SOL_SOCKET, libc::SO_OOBINLINE),
    replayed(libc::SOL_SOCKET, libc::SO_REUSEADDR),
    replayed(libc::SOL_SOCKET, libc::SO_REUSEPORT),
    // Before SO_PRIORITY, which it sets.
    FIRST_OF_IP,
    replayed(libc::SOL_SOCKET, libc::SO_RCVBUF),
    replayed(libc::SOL_SOCKET, libc::SO_SNDBUF),
    replayed(libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    replayed(libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    replayed(libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    replayed(libc::IPPROTO_TCP, libc::TCP_NODELAY),
    replayed(libc::IPPROTO_TCP, libc::TCP_CORK),
    FIRST_OF_KEEPALIVE,
    replayed(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    replayed(libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    replayed(libc::IPPROTO_TCP, libc::TCP_CONGESTION),
    replayed(libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE),
    replayed(libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
    // After the sizes of buffers, which set SO_BUF_LOCK.
    FIRST_OF_RARE,
];

/// Options that share the bit of the first: whoever sets one has the others repeated as they are.
const GROUPS: [(Replayed, &[Replayed]); 3] = [
    (
        FIRST_OF_IP,
        &[
            replayed(libc::IPPROTO_IP, libc::IP_TTL),
            replayed(libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
            replayed(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
            replayed(libc::IPPROTO_IP, libc::IP_RECVERR),
            replayed(libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
            replayed(libc::IPPROTO_IP, libc::IP_RECVTOS),
            replayed(libc::IPPROTO_IP, libc::IP_RECVTTL),
        ],
    ),
    (
        FIRST_OF_KEEPALIVE,
        &[replayed(libc::IPPROTO_TCP, libc::TCP_KEEPINTVL), replayed(libc::IPPROTO_TCP, libc::TCP_KEEPCNT)],
    ),
    (FIRST_OF_RARE, RARE),
];
/// What few programs set, and the connection, or those that come in at a listener, are to say again. Whoever sets one of them has all of them
/// repeated as the twin has them: of those that he did not set, these are the kernel's defaults.
const RARE: &[Replayed] = &[
    replayed(libc::SOL_SOCKET, libc::SO_PRIORITY),
    replayed(libc::SOL_SOCKET, libc::SO_MARK),
    replayed(libc::SOL_SOCKET, libc::SO_DONTROUTE),
    replayed(libc::SOL_SOCKET, SO_BUF_LOCK),
    replayed(libc::IPPROTO_TCP, libc::TCP_LINGER2),
    replayed(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    replayed(libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    replayed(libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS),
    replayed(libc::IPPROTO_TCP, libc::TCP_SAVE_SYN),
    replayed(libc::IPPROTO_TCP, toe::socket::TCP_INQ),
    replayed(libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    replayed(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    replayed(libc::IPPROTO_IP, libc::IP_FREEBIND),
    replayed(libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT),
    replayed(libc::IPPROTO_IP, option_model::IP_LOCAL_PORT_RANGE),
];
const FIRST_OF_RARE: Replayed = replayed(libc::SOL_SOCKET, libc::SO_BROADCAST);
const FIRST_OF_IP: Replayed = replayed(libc::IPPROTO_IP, libc::IP_TOS);
const FIRST_OF_KEEPALIVE: Replayed = replayed(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE);

const _: () = assert!(1 << (OPTION_SHIFT + REPLAYED.len()) <= State::WAS_LISTENER.0);

/// What setting an option on a twin means for the choice of its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// Has to be repeated on the engine's socket: this bit of the state says so.
    Replay(State),
    /// Only the kernel's stack can do it.
    KernelOnly,
    /// Works on the twin (names, ports) or makes no difference.
    Indifferent,
}

/// Which way a connection goes, from which port, and how long it waits: engines have this from their routes and their configuration. The
/// numbers are those of Linux's headers, which some libc crates are older than.
fn chooses_path_or_time(level: c_int, name: c_int) -> bool {
    const IPV6_ADDR_PREFERENCES: c_int = 72;
    // TCP_RTO_MAX_MS, TCP_RTO_MIN_US, TCP_DELACK_MAX_US.
    const TIMES: core::ops::RangeInclusive<c_int> = 44..=46;
    match level {
        libc::IPPROTO_IP => name == libc::IP_UNICAST_IF,
        libc::IPPROTO_IPV6 => matches!(name, libc::IPV6_UNICAST_IF | IPV6_ADDR_PREFERENCES),
        libc::IPPROTO_TCP => TIMES.contains(&name),
        _ => false,
    }
}

/// Younger than some libc crates.
const SO_BUF_LOCK: c_int = 72;

pub fn option_kind(level: c_int, name: c_int) -> OptionKind {
    let (level, name) = option_model::older_name(level, name);
    let option = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE) => replayed(level, libc::SO_RCVBUF),
        (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE) => replayed(level, libc::SO_SNDBUF),
        _ => replayed(level, name),
    };
    let group = GROUPS.iter().find(|(_, others)| others.contains(&option));
    let option = group.map_or(option, |(first, _)| *first);
    if let Some(n) = REPLAYED.iter().position(|o| *o == option) {
        return OptionKind::Replay(State(1 << (OPTION_SHIFT + n)));
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) {
        return OptionKind::Replay(State::FAST_OPEN);
    }
    // What is said in a SYN, or who may send one, beside what engines do not do at any time: with a connection it is too late.
    let kernel_only = level == libc::IPPROTO_TCP
        && matches!(
            name,
            option_model::TCP_FASTOPEN_NO_COOKIE
                | libc::TCP_MAXSEG
                | libc::TCP_WINDOW_CLAMP
                | libc::TCP_MD5SIG
        );
    let kernel_only = kernel_only || chooses_path_or_time(level, name);
    if kernel_only || option_model::has_effect(level, name) {
        OptionKind::KernelOnly
    } else {
        OptionKind::Indifferent
    }
}

/// What is known of a kernel socket of which no note was kept, and on which anything may have been set: the options that are not what
/// they are of a new one.
pub fn of_unknown(fd: c_int) -> State {
    let known = State::new_twin().with(State::BOUND).with(State::TOUCHED);
    let is_inet6 = sockopt::socket_domain(sys::borrow(fd)) == Ok(AddressFamily::INET6);
    let set = option_model::model(is_inet6).map_or(State::default(), |model| {
        State::of_options(|option| option.value_on(fd) != option.value_on(model.raw()))
    });
    known.with(set).with(if is_inet6 { State::INET6 } else { State::default() })
}

fn word(fd: c_int) -> Option<&'static AtomicU64> {
    STATES.get(usize::try_from(fd).ok()?).map(|known| &known.state)
}

/// The word that [`crate::why`] keeps of the descriptor.
pub fn decided_word(fd: c_int) -> Option<&'static AtomicU32> {
    STATES.get(usize::try_from(fd).ok()?).map(|known| &known.decided)
}

#[inline]
pub fn get(fd: c_int) -> State {
    State(word(fd).map_or(0, |w| w.load(Ordering::Relaxed)))
}

/// Replaces what is known of a descriptor.
pub fn set(fd: c_int, state: State) {
    if let Some(word) = word(fd) {
        word.store(state.0, Ordering::Relaxed);
        note_end(fd);
    }
}

fn note_end(fd: c_int) {
    // Most are below: a store would be one more page of which a child gets a copy.
    if END.load(Ordering::Relaxed) <= fd as u32 {
        END.fetch_max(fd as u32 + 1, Ordering::Relaxed);
    }
}

/// Forgets what is known of a descriptor: gives it back.
pub fn take(fd: c_int) -> State {
    State(word(fd).map_or(0, |word| word.swap(0, Ordering::Relaxed)))
}

/// Adds flags to what is known of a descriptor.
pub fn add(fd: c_int, flags: State) {
    let _ = before_adding(fd, flags);
}

/// The same: what was known before.
pub fn before_adding(fd: c_int, flags: State) -> State {
    let Some(word) = word(fd) else { return State::default() };
    note_end(fd);
    State(word.fetch_or(flags.0, Ordering::Relaxed))
}

/// Takes flags out of what is known of a descriptor.
pub fn remove(fd: c_int, flags: State) {
    if let Some(word) = word(fd) {
        word.fetch_and(!flags.0, Ordering::Relaxed);
    }
}

/// The kernel has set an option that is to be repeated (`bit`): an engine's socket is to have it, or, if the value takes it back, not.
pub fn note_option(fd: c_int, bit: State, option: Replayed, value: &[u8]) {
    let is_none = option.is_none(value);
    let note = |fd| if is_none { remove(fd, bit) } else { add(fd, bit) };
    note(fd);
    if get(fd).has(State::INHERITED) {
        inherited_copies(fd).into_iter().for_each(note);
    }
}

/// The other descriptors of an undecided socket that came with the program: they are decided with it.
pub fn inherited_copies(fd: c_int) -> Vec<c_int> {
    let identity = |fd| rustix::fs::fstat(sys::borrow(fd)).map(|stat| (stat.st_dev, stat.st_ino));
    let this = identity(fd);
    let is_copy = |other: c_int| {
        other != fd && get(other).has(State::INHERITED.with(State::TWIN)) && identity(other) == this
    };
    let mut copies = Vec::new();
    for_each(0, c_int::MAX, |other| {
        if is_copy(other) {
            copies.push(other);
        }
    });
    copies
}

/// The program changes something of the kernel's socket.
pub fn touch(fd: c_int) {
    if get(fd).has(State::TWIN) {
        add(fd, State::TOUCHED);
    }
}

/// The stack is decided: all that was for the decision is forgotten.
pub fn decided(fd: c_int) {
    if let Some(word) = word(fd) {
        let kept = State::IN_EPOLL.with(State::REPORTED).with(State::SUBJECT).with(State::INET6);
        let kept = kept.with(State::WAS_LISTENER);
        let before = State(word.fetch_and(kept.0, Ordering::Relaxed));
        if before.has(State::INHERITED) {
            // What it was to the program before nobody knows.
            add(fd, State::WAS_LISTENER);
        }
    }
}

/// Calls `each` with every descriptor in `from..=to` that has a state.
pub fn for_each(from: c_int, to: c_int, mut each: impl FnMut(c_int)) {
    let end = END.load(Ordering::Relaxed) as c_int;
    (from.max(0)..end.min(to.saturating_add(1)))
        .filter(|&fd| get(fd) != State::default())
        .for_each(&mut each);
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each test uses descriptors of its own: the table is the process's.

    #[test]
    fn what_the_engine_acts_on_is_repeated() {
        for (level, name) in toe::socket::offloaded() {
            let option = replayed(level, name);
            let OptionKind::Replay(bit) = option_kind(level, name) else {
                panic!("{option:?} would be accepted and never told to the engine: add it to RARE")
            };
            assert!(bit.options().any(|repeated| repeated == option), "{option:?}");
        }
    }

    #[test]
    fn options_are_collected_and_listed() {
        let fd = 900_001;
        set(fd, State::TWIN);
        for (level, name) in [(libc::IPPROTO_TCP, libc::TCP_NODELAY), (libc::SOL_SOCKET, libc::SO_KEEPALIVE)]
        {
            let OptionKind::Replay(bit) = option_kind(level, name) else { panic!("not replayed") };
            add(fd, bit);
        }
        let options: Vec<_> = get(fd).options().collect();
        assert_eq!(
            options,
            [replayed(libc::SOL_SOCKET, libc::SO_KEEPALIVE), replayed(libc::IPPROTO_TCP, libc::TCP_NODELAY)]
        );
    }

    #[test]
    fn option_bits_and_flags_are_apart() {
        let flags = State::TWIN.with(State::BOUND).with(State::ENGINE_ADDRESS).with(State::INET6);
        assert_eq!(flags.options().count(), 0);
        assert_eq!(
            State(u64::MAX).options().count(),
            REPLAYED.len() + GROUPS.iter().map(|(_, others)| others.len()).sum::<usize>()
        );
    }

    #[test]
    fn what_the_engine_cannot_do_keeps_the_socket_on_the_kernel() {
        assert_eq!(
            option_kind(libc::IPPROTO_TCP, option_model::TCP_FASTOPEN_NO_COOKIE),
            OptionKind::KernelOnly
        );
        for name in [libc::TCP_FASTOPEN, libc::TCP_FASTOPEN_CONNECT] {
            assert_eq!(option_kind(libc::IPPROTO_TCP, name), OptionKind::Replay(State::FAST_OPEN));
        }
        assert_eq!(option_kind(libc::SOL_SOCKET, libc::SO_BINDTODEVICE), OptionKind::KernelOnly);
        assert!(matches!(option_kind(libc::SOL_SOCKET, libc::SO_MARK), OptionKind::Replay(_)));
        for (level, name) in [
            (libc::IPPROTO_IP, libc::IP_OPTIONS),
            (libc::IPPROTO_IP, libc::IP_MINTTL),
            (libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
            (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
        ] {
            assert_eq!(option_kind(level, name), OptionKind::KernelOnly);
        }
        assert_eq!(option_kind(libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP), OptionKind::Indifferent);
        let of_ip = option_kind(libc::IPPROTO_IP, libc::IP_TOS);
        assert!(matches!(of_ip, OptionKind::Replay(_)));
        assert_eq!(option_kind(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS), of_ip);
        assert_eq!(option_kind(libc::IPPROTO_IP, libc::IP_RECVERR), of_ip);
    }

    #[test]
    fn a_decision_keeps_the_note_about_epoll() {
        let fd = 900_002;
        set(fd, State::TWIN.with(State::IN_EPOLL).with(State::BOUND));
        decided(fd);
        assert_eq!(get(fd), State::IN_EPOLL);
    }

    #[test]
    fn descriptors_out_of_range_have_no_state() {
        set(-1, State::TWIN);
        set(c_int::MAX, State::TWIN);
        assert_eq!(get(-1), State(0));
        assert_eq!(get(c_int::MAX), State(0));
    }
}
