//! `proto_stacks` (TSSL paper, section 3.4 and Table 1): which TCP/IP stacks there are, and which of them a call is
//! tried on, in which order. Pure: it is told what a socket is bound to and answers with a list; `connect.rs` and
//! `listen.rs` do the trying and tell it what came out.
//!
//! | bound to | connect, listen |
//! |---|---|
//! | nothing, INADDR_ANY, loopback | every stack by priority, engines first; the first that succeeds |
//! | an address of the kernel alone | the kernel |
//! | an address of an engine alone | that engine |
//! | an address not asked about yet | the engines, which refuse what is not theirs, then the kernel |

use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicU64, Ordering};

/// Engines that one process can be attached to at a time.
pub const ENGINES_MAX: usize = 4;
const STACKS_MAX: usize = ENGINES_MAX + 1;

/// One independent TCP/IP stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtoStack {
    /// The engine with this index.
    Engine(u8),
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
    /// Only this engine has it.
    EngineOnly(u8),
}

/// The stacks to try, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts {
    stacks: [ProtoStack; STACKS_MAX],
    len: u8,
}

impl Attempts {
    const fn none() -> Attempts {
        Attempts { stacks: [ProtoStack::Kernel; STACKS_MAX], len: 0 }
    }

    fn push(&mut self, stack: ProtoStack) {
        self.stacks[usize::from(self.len)] = stack;
        self.len += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = ProtoStack> {
        self.stacks.into_iter().take(usize::from(self.len))
    }
}

/// The stacks of this process by priority: engines first, the kernel last.
#[derive(Clone, Copy, Debug)]
pub struct ProtoStacks {
    pub engines: u8,
}

impl ProtoStacks {
    pub fn attempts(&self, binding: Binding) -> Attempts {
        let mut attempts = Attempts::none();
        match binding {
            Binding::EngineOnly(engine) => attempts.push(ProtoStack::Engine(engine)),
            Binding::KernelOnly => attempts.push(ProtoStack::Kernel),
            Binding::Everywhere | Binding::Unasked => {
                (0..self.engines.min(ENGINES_MAX as u8)).for_each(|n| attempts.push(ProtoStack::Engine(n)));
                attempts.push(ProtoStack::Kernel);
            }
        }
        attempts
    }

    /// As [`ProtoStacks::attempts`], for a destination: one that an engine had no route to a moment ago goes to the
    /// kernel at once (`send_ps`, `dst_addr` of the paper).
    pub fn attempts_to(&self, binding: Binding, to: Ipv4Addr, known: &Destinations, now_ms: u64) -> Attempts {
        match binding {
            Binding::Everywhere | Binding::Unasked if known.is_kernel_only(to, now_ms) => {
                self.attempts(Binding::KernelOnly)
            }
            _ => self.attempts(binding),
        }
    }
}

/// The binding of a socket whose kernel twin is bound to `addr`.
pub fn binding(addr: Option<Ipv4Addr>, engine_only: bool, known: &Destinations, now_ms: u64) -> Binding {
    match addr {
        Some(_) if engine_only => Binding::EngineOnly(0),
        None => Binding::Everywhere,
        Some(addr) if addr.is_unspecified() || addr.is_loopback() => Binding::Everywhere,
        Some(addr) if known.is_kernel_only(addr, now_ms) => Binding::KernelOnly,
        Some(_) => Binding::Unasked,
    }
}

/// Addresses that the engines have just said not to serve: a small table that forgets within a second, so that an
/// engine which gets an address later is found. Lock-free: a lost update costs one question too many.
#[derive(Debug)]
pub struct Destinations {
    /// Address in the upper half, time until which it holds (in 1/16 s, wrapping) in the lower; 0 is free.
    slots: [AtomicU64; Destinations::SLOTS],
}

impl Destinations {
    const SLOTS: usize = 64;
    const HOLDS_MS: u64 = 1000;

    pub const fn new() -> Destinations {
        Destinations { slots: [const { AtomicU64::new(0) }; Destinations::SLOTS] }
    }

    fn slot(&self, addr: Ipv4Addr) -> &AtomicU64 {
        let hash = u32::from(addr).wrapping_mul(0x9e37_79b1) >> (32 - Destinations::SLOTS.ilog2());
        &self.slots[hash as usize]
    }

    pub fn note_kernel_only(&self, addr: Ipv4Addr, now_ms: u64) {
        // Loopback is asked each time: a server may come up in the engine at any moment.
        if !addr.is_loopback() {
            let until = (now_ms + Destinations::HOLDS_MS) / 64;
            let word = (u64::from(u32::from(addr)) << 32) | (until & 0xffff_ffff);
            self.slot(addr).store(word, Ordering::Relaxed);
        }
    }

    pub fn is_kernel_only(&self, addr: Ipv4Addr, now_ms: u64) -> bool {
        let word = self.slot(addr).load(Ordering::Relaxed);
        let left = (word as u32).wrapping_sub((now_ms / 64) as u32);
        word >> 32 == u64::from(u32::from(addr))
            && word != 0
            && left > 0
            && left <= (Self::HOLDS_MS / 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ProtoStacks = ProtoStacks { engines: 1 };
    const FAR: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 7);

    fn list(attempts: Attempts) -> Vec<ProtoStack> {
        attempts.iter().collect()
    }

    #[test]
    fn table_1_of_the_paper() {
        let known = Destinations::new();
        let engine_then_kernel = vec![ProtoStack::Engine(0), ProtoStack::Kernel];
        let at = |addr, engine_only| list(ONE.attempts(binding(addr, engine_only, &known, 0)));
        assert_eq!(at(None, false), engine_then_kernel);
        assert_eq!(at(Some(Ipv4Addr::UNSPECIFIED), false), engine_then_kernel);
        assert_eq!(at(Some(Ipv4Addr::LOCALHOST), false), engine_then_kernel);
        assert_eq!(at(Some(FAR), false), engine_then_kernel);
        assert_eq!(at(Some(FAR), true), vec![ProtoStack::Engine(0)]);
        known.note_kernel_only(FAR, 0);
        assert_eq!(at(Some(FAR), false), vec![ProtoStack::Kernel]);
    }

    #[test]
    fn engines_come_before_the_kernel_and_none_is_fine() {
        let everywhere = |engines| list(ProtoStacks { engines }.attempts(Binding::Everywhere));
        assert_eq!(everywhere(0), vec![ProtoStack::Kernel]);
        assert_eq!(everywhere(2), vec![ProtoStack::Engine(0), ProtoStack::Engine(1), ProtoStack::Kernel]);
        assert_eq!(everywhere(200).len(), STACKS_MAX);
    }

    #[test]
    fn a_destination_without_route_is_remembered_for_a_second() {
        let known = Destinations::new();
        let now = 1 << 40;
        let to = |now| list(ONE.attempts_to(Binding::Everywhere, FAR, &known, now)).len();
        assert_eq!(to(now), 2);
        known.note_kernel_only(FAR, now);
        assert_eq!(to(now), 1);
        assert_eq!(to(now + 900), 1);
        assert_eq!(to(now + 1100), 2);
        assert_eq!(to(now - 5000), 2);
    }

    #[test]
    fn loopback_is_asked_each_time() {
        let known = Destinations::new();
        known.note_kernel_only(Ipv4Addr::LOCALHOST, 5);
        assert!(!known.is_kernel_only(Ipv4Addr::LOCALHOST, 5));
    }
}
