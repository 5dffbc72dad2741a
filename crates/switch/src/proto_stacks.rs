//! `proto_stacks` (TSSL paper, section 3.4 and Table 1): which TCP/IP stacks there are, and which of them a call is
//! tried on, in which order. Pure: it is told what a socket is bound to and answers with a list; `connect.rs` and
//! `listen.rs` do the trying and tell it what came out. `policy.rs` says which stacks a program may use at all.
//!
//! | bound to | connect, listen |
//! |---|---|
//! | nothing, INADDR_ANY, loopback | every stack by priority, engines first; connect takes the first that succeeds, listen all |
//! | an address of the kernel alone | the kernel |
//! | an address of an engine alone | the engines, of which the others refuse |
//! | an address not asked about yet | the engines, which refuse what is not theirs, then the kernel |

use core::sync::atomic::{AtomicU64, Ordering};
use toe::stack::{ENGINES_MAX, EngineIdx};
use toe_base::Addr;

const STACKS_MAX: usize = ENGINES_MAX + 1;

/// One independent TCP/IP stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtoStack {
    Engine(EngineIdx),
    /// All of the kernel's NICs together.
    Kernel,
}

/// What is known of the address that a socket is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Not bound, or to INADDR_ANY, or to a loopback address: every stack serves it.
    Everywhere,
    /// The kernel has the address; the engines have not been asked.
    Unasked,
    /// Only the kernel has it.
    KernelOnly,
    /// The kernel has it not.
    EnginesOnly,
}

/// The stacks of a program by priority: engines first, the kernel last if it may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtoStacks {
    engines: [EngineIdx; ENGINES_MAX],
    len: u8,
    kernel: bool,
}

/// The stacks to try, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    stacks: [ProtoStack; STACKS_MAX],
    len: u8,
}

impl Attempts {
    pub const fn none() -> Attempts {
        Attempts { stacks: [ProtoStack::Kernel; STACKS_MAX], len: 0 }
    }

    fn push(&mut self, stack: ProtoStack) {
        self.stacks[usize::from(self.len)] = stack;
        self.len += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = ProtoStack> {
        self.stacks.into_iter().take(usize::from(self.len))
    }

    /// The winner of the last time first, if it is among them.
    fn beginning_with(mut self, first: ProtoStack) -> Attempts {
        let stacks = &mut self.stacks[..usize::from(self.len)];
        if let Some(at) = stacks.iter().position(|stack| *stack == first) {
            stacks[..=at].rotate_right(1);
        }
        self
    }
}

impl ProtoStacks {
    /// No engine yet; `kernel`: whether the kernel may be used.
    pub fn new(kernel: bool) -> ProtoStacks {
        ProtoStacks { engines: [EngineIdx::FIRST; ENGINES_MAX], len: 0, kernel }
    }

    /// The engine of the next lower priority. One that is in already stays where it is.
    pub fn push(&mut self, engine: EngineIdx) {
        if !self.engines().any(|known| known == engine)
            && let Some(slot) = self.engines.get_mut(usize::from(self.len))
        {
            *slot = engine;
            self.len += 1;
        }
    }

    pub fn engines(&self) -> impl Iterator<Item = EngineIdx> {
        self.engines.into_iter().take(usize::from(self.len))
    }

    pub fn attempts(&self, binding: Binding) -> Attempts {
        let mut attempts = Attempts::none();
        if binding != Binding::KernelOnly {
            self.engines().for_each(|engine| attempts.push(ProtoStack::Engine(engine)));
        }
        if self.kernel && binding != Binding::EnginesOnly {
            attempts.push(ProtoStack::Kernel);
        }
        attempts
    }

    /// As [`ProtoStacks::attempts`], for a destination: the stack that took it a moment ago, after others had no route to it,
    /// is tried first (`send_ps`, `dst_addr` of the paper). If that was the kernel, no other is.
    pub fn attempts_to(&self, binding: Binding, to: Addr, known: &Destinations, now_ms: u64) -> Attempts {
        match (binding, known.winner(to, now_ms)) {
            (Binding::Everywhere | Binding::Unasked, Some(ProtoStack::Kernel)) if self.kernel => {
                self.attempts(Binding::KernelOnly)
            }
            (_, Some(engine @ ProtoStack::Engine(_))) => self.attempts(binding).beginning_with(engine),
            _ => self.attempts(binding),
        }
    }
}

/// The binding of a socket whose kernel twin is bound to `addr`.
pub fn binding(addr: Option<Addr>, engine_only: bool, known: &Destinations, now_ms: u64) -> Binding {
    match addr {
        Some(_) if engine_only => Binding::EnginesOnly,
        None => Binding::Everywhere,
        Some(addr) if addr.is_unspecified() || addr.is_loopback() => Binding::Everywhere,
        Some(addr) if known.winner(addr, now_ms) == Some(ProtoStack::Kernel) => Binding::KernelOnly,
        Some(_) => Binding::Unasked,
    }
}

/// Which stack serves an address that others have just said not to serve: a small table that forgets within a second, so
/// that an engine which gets an address later is found. Lock-free: a lost update costs one question too many.
#[derive(Debug)]
pub struct Destinations {
    /// From the top: address ([`fold`]: two addresses of IPv6 may share one, and then a second's hint), [`ProtoStack`] (32 − 4 bits on; 0 is the kernel, else the engine's index plus one), time until
    /// which it holds (in 1/16 s, wrapping). 0 is free.
    slots: [AtomicU64; Destinations::SLOTS],
}

impl Destinations {
    const SLOTS: usize = 64;
    const HOLDS_MS: u64 = 1000;
    const UNTIL_BITS: u32 = 28;
    const UNTIL: u64 = (1 << Destinations::UNTIL_BITS) - 1;

    pub const fn new() -> Destinations {
        Destinations { slots: [const { AtomicU64::new(0) }; Destinations::SLOTS] }
    }

    fn slot(&self, addr: Addr) -> &AtomicU64 {
        let hash = fold(addr).wrapping_mul(0x9e37_79b1) >> (32 - Destinations::SLOTS.ilog2());
        &self.slots[hash as usize]
    }

    pub fn note(&self, addr: Addr, winner: ProtoStack, now_ms: u64) {
        // Loopback is asked each time: a server may come up in an engine at any moment.
        if !addr.is_loopback() {
            let until = ((now_ms + Destinations::HOLDS_MS) / 64) & Destinations::UNTIL;
            let stack = match winner {
                ProtoStack::Kernel => 0,
                ProtoStack::Engine(engine) => engine.index() as u64 + 1,
            };
            let word = (u64::from(fold(addr)) << 32) | (stack << Destinations::UNTIL_BITS) | until;
            self.slot(addr).store(word, Ordering::Relaxed);
        }
    }

    /// Who serves it, if that was found out a moment ago.
    pub fn winner(&self, addr: Addr, now_ms: u64) -> Option<ProtoStack> {
        let word = self.slot(addr).load(Ordering::Relaxed);
        let left = word.wrapping_sub(now_ms / 64) & Destinations::UNTIL;
        if word >> 32 != u64::from(fold(addr)) || word == 0 || left == 0 || left > Self::HOLDS_MS / 64 {
            return None;
        }
        match (word >> Destinations::UNTIL_BITS) & 0xf {
            0 => Some(ProtoStack::Kernel),
            engine => EngineIdx::new(engine as usize - 1).map(ProtoStack::Engine),
        }
    }

    pub fn is_kernel_only(&self, addr: Addr, now_ms: u64) -> bool {
        self.winner(addr, now_ms) == Some(ProtoStack::Kernel)
    }
}

/// An address in 32 bits: of IPv4 it is the address itself.
pub fn fold(addr: Addr) -> u32 {
    if let Some(v4) = addr.to_v4() {
        return v4.to_bits();
    }
    let bits = u128::from_be_bytes(addr.bytes());
    let (high, low) = ((bits >> 64) as u64, bits as u64);
    ((high.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ low).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: Addr = Addr::v4(core::net::Ipv4Addr::new(10, 0, 0, 7));

    /// The process that runs the tests has one engine, by default.
    fn one(kernel: bool) -> ProtoStacks {
        let mut stacks = ProtoStacks::new(kernel);
        stacks.push(EngineIdx::FIRST);
        stacks
    }

    fn list(attempts: Attempts) -> Vec<ProtoStack> {
        attempts.iter().collect()
    }

    #[test]
    fn table_1_of_the_paper() {
        let known = Destinations::new();
        let engine = ProtoStack::Engine(EngineIdx::FIRST);
        let engine_then_kernel = vec![engine, ProtoStack::Kernel];
        let at = |addr, engine_only| list(one(true).attempts(binding(addr, engine_only, &known, 0)));
        assert_eq!(at(None, false), engine_then_kernel);
        assert_eq!(at(Some(Addr::UNSPECIFIED_V4), false), engine_then_kernel);
        assert_eq!(at(Some(Addr::LOCALHOST_V4), false), engine_then_kernel);
        assert_eq!(at(Some(FAR), false), engine_then_kernel);
        assert_eq!(at(Some(FAR), true), vec![engine]);
        known.note(FAR, ProtoStack::Kernel, 0);
        assert_eq!(at(Some(FAR), false), vec![ProtoStack::Kernel]);
    }

    #[test]
    fn a_host_may_have_engines_only_or_the_kernel_only() {
        let everywhere = |stacks: ProtoStacks| list(stacks.attempts(Binding::Everywhere));
        assert_eq!(everywhere(ProtoStacks::new(true)), vec![ProtoStack::Kernel]);
        assert_eq!(everywhere(one(false)), vec![ProtoStack::Engine(EngineIdx::FIRST)]);
        assert_eq!(list(one(false).attempts(Binding::KernelOnly)), vec![]);
    }

    #[test]
    fn an_engine_is_tried_once() {
        let mut stacks = one(true);
        stacks.push(EngineIdx::FIRST);
        assert_eq!(stacks, one(true));
    }

    #[test]
    fn a_destination_without_route_is_remembered_for_a_second() {
        let known = Destinations::new();
        let now = 1 << 40;
        let to = |now| list(one(true).attempts_to(Binding::Everywhere, FAR, &known, now)).len();
        assert_eq!(to(now), 2);
        known.note(FAR, ProtoStack::Kernel, now);
        assert_eq!(to(now), 1);
        assert_eq!(to(now + 900), 1);
        assert_eq!(to(now + 1100), 2);
        assert_eq!(to(now - 5000), 2);
    }

    #[test]
    fn the_winner_goes_first() {
        let attempts = one(true).attempts(Binding::Everywhere);
        let kernel_first = vec![ProtoStack::Kernel, ProtoStack::Engine(EngineIdx::FIRST)];
        assert_eq!(list(attempts.beginning_with(ProtoStack::Kernel)), kernel_first);
        let known = Destinations::new();
        known.note(FAR, ProtoStack::Engine(EngineIdx::FIRST), 5);
        assert_eq!(known.winner(FAR, 5), Some(ProtoStack::Engine(EngineIdx::FIRST)));
        assert_eq!(list(one(true).attempts_to(Binding::Everywhere, FAR, &known, 5)), list(attempts));
    }

    #[test]
    fn loopback_is_asked_each_time() {
        let known = Destinations::new();
        known.note(Addr::LOCALHOST_V4, ProtoStack::Kernel, 5);
        assert!(!known.is_kernel_only(Addr::LOCALHOST_V4, 5));
    }
}
