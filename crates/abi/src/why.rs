//! The why table: which stack each descriptor of a preloaded program is on, and the reason.
//!
//! A program under the switch layer has a memory file named [`MEMFD_NAME`] among its descriptors
//! (`/proc/PID/fd/N -> /memfd:toe-why`): an array of [`ENTRIES`] little-endian 32-bit words, indexed by descriptor.
//! The switch layer writes it; `toe why` reads it. It is a report and no part of the data path. The child of a fork has its parent's until
//! it decides something itself.
//!
//! | bits | meaning |
//! |---|---|
//! | 0–7 | [`Stack`] |
//! | 8–15 | [`Reason`] |
//! | 16–23 | the rule of the policy that decided, from 1 on; 0: none |
//! | 24–27 | on an engine: its place in `TOE_ENGINE` |
//! | 28–31 | zero |

/// Name of the memory file.
pub const MEMFD_NAME: &str = "toe-why";
/// Words in the table; a descriptor beyond them is not reported.
pub const ENTRIES: usize = 65_536;
/// Size of the memory file in bytes.
pub const LEN: usize = ENTRIES * 4;

/// Names the memory file of a tally, if there is one: how many sockets of this program, and of those that it starts, went
/// to which stack for which reason. An array of [`TALLY_ENTRIES`] native-endian 64-bit counts; see [`tally_index`].
pub const TALLY_VARIABLE: &str = "TOE_EXPLAIN";
/// Counts in a tally.
pub const TALLY_ENTRIES: usize = 3 * REASONS_MAX;
/// Set to `ignore`: a program that makes calls of its own ([`crate::own_calls`]) is offloaded all the same.
pub const OWN_CALLS_VARIABLE: &str = "TOE_OWN_CALLS";
/// Size of its memory file in bytes.
pub const TALLY_LEN: usize = TALLY_ENTRIES * 8;
const REASONS_MAX: usize = 64;
const _: () = assert!(Reason::ALL.len() <= REASONS_MAX);

/// Which count of a tally is that of a decision.
pub const fn tally_index(stack: Stack, reason: Reason) -> usize {
    stack as usize * REASONS_MAX + reason as usize
}

/// Where a socket's bytes go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Stack {
    /// Not a TCP socket, or the switch layer has not seen it.
    #[default]
    None = 0,
    /// The engine.
    Engine = 1,
    /// The kernel's own stack.
    Kernel = 2,
}

impl Stack {
    pub const fn name(self) -> &'static str {
        match self {
            Stack::None => "none",
            Stack::Engine => "engine",
            Stack::Kernel => "kernel",
        }
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $remedy:literal;)+) => {
        /// Why a socket is on its stack. The numbers are part of the table's format.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Reason { $($(#[$doc])* $name = $number),+ }

        impl Reason {
            /// Every reason, by number.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),+];

            /// What was decided and why, as half a sentence.
            pub const fn text(self) -> &'static str {
                match self { $(Reason::$name => $text),+ }
            }

            /// What to do to get another decision; empty when there is nothing to do.
            pub const fn remedy(self) -> &'static str {
                match self { $(Reason::$name => $remedy),+ }
            }
        }
    };
}

reasons! {
    /// Nothing has been written for this descriptor.
    #[default]
    Unknown = 0, "the switch layer has not seen this descriptor become a TCP socket", "";
    Connected = 1, "connect() was taken by the engine", "";
    Accepted = 2, "the connection came in through the engine", "";
    Listening = 3, "the engine serves this address; connections from the kernel's stack are taken too", "";
    Claimed = 4,
        "the socket was inherited or passed from another process and claimed from the engine; between programs of this machine \
         its bytes go by the engine, not by a channel, which may be slower than the kernel's stack",
        "let the process that uses it accept or connect, or leave it to the kernel by a policy (`toe run --config`)";
    Undecided = 5,
        "neither bound to an engine's address, listening nor connected yet: the choice is still open", "";
    NoEngine = 6, "no engine is running, or it could not be reached",
        "start one with `toe start`, or run the program under `toe run`";
    AttachRefused = 7, "the engine refused this process",
        "look at the engine's log; its version differs from this library's";
    EngineGone = 8, "the engine ended; new sockets are on the kernel's stack",
        "start the engine again, then the program";
    V6Only = 9, "the socket is for IPv6 alone (IPV6_V6ONLY), and the address is one of IPv4", "clear IPV6_V6ONLY";
    NoRoute = 10, "the engine has no route to the destination",
        "give the engine an address on that network (`toe start --addr`)";
    NobodyListensInEngine = 11, "nothing listens at this loopback address in the engine, so the kernel was asked",
        "run the server under `toe run` on the same engine";
    NotEngineAddress = 12, "the address is none of the engine's",
        "bind to an address of the engine or to INADDR_ANY";
    BoundToKernelAddress = 13, "the socket is bound to an address that only the kernel has",
        "bind to an address of the engine or to INADDR_ANY";
    EngineRefused = 14, "the engine refused the command", "look at the engine's counters with `toe status`";
    EngineFull = 15, "the engine or this session has no free flow, listener or memory", "see `toe status`";
    Option = 16, "an option was set that the engine cannot do", "leave that option out";
    Duplicated = 17, "the descriptor was duplicated before its stack was chosen", "";
    AcceptedByKernel = 18, "the connection came in through the kernel's stack",
        "let the client connect to an address of the engine";
    Protocol = 19, "the protocol is not plain TCP (MPTCP, SCTP, …)", "";
    NotStream = 20, "not a stream socket, and nothing of it has gone to or come from a link of the engine's", "";
    FastOpen = 21, "TCP Fast Open without a cookie (TCP_FASTOPEN_NO_COOKIE), or by sendmmsg, is the kernel's",
        "use sendto, sendmsg or TCP_FASTOPEN_CONNECT";
    AddressInUse = 22, "another program listens at this address in the engine",
        "stop the other program, or let both set SO_REUSEPORT";
    Disabled = 23, "offload is switched off for this program (TOE_DISABLE)", "unset TOE_DISABLE";
    Inherited = 24, "a kernel socket that was there when the program started", "";
    SharedTwin = 25, "the process forked between socket() and connect() or listen(), so two may have the socket",
        "fork before socket(), or after connect() or listen()";
    PolicyKernel = 26, "the policy of `toe run` leaves it to the kernel", "change the policy in toe.toml";
    PolicyRefused = 27, "the policy of `toe run` refuses it", "change the policy in toe.toml";
    PolicyEngineOnly = 28, "no engine takes it, and the policy of `toe run` keeps it from the kernel",
        "change the policy in toe.toml, or give an engine the address";
    Signals = 29, "signals are asked for (O_ASYNC, F_SETOWN), and only the kernel's stack sends them",
        "wait by poll or epoll, or ask for signals after connect() or listen()";
    ShutBefore = 30, "shutdown() was called before connect() or listen()", "";
    OtherNamespace = 31, "a thread of the program went to another network namespace (setns, unshare)",
        "start the program in its namespace";
    NotItsName = 32, "the engine gives a port to a kernel socket that has it alone, on all devices",
        "leave out SO_BINDTODEVICE, and let nobody else have the port";
    OverQuota = 33, "this user has his share of the engine's sessions, connections, listeners or memory",
        "see `toe status`; end what is not needed, or raise the limits in [quota]";
    NotAllowed = 34, "the engine does not let this user attach",
        "start it with --allow-uid N, --allow-group or --allow-all, or let root start the program under `toe run`";
    EngineUntrusted = 35, "the engine, or its directory, is another user's, who could read and change all that goes through it",
        "start an engine as this user or as root, or name its user in TOE_ENGINE_UID";
    OwnCalls = 36, "the program, or a library of it, waits or accepts by system-call instructions of its own, past the C library",
        "if it does not do so on TCP sockets, set TOE_OWN_CALLS=ignore";
    NoDescriptor = 37, "the program had all descriptors that it may have", "raise its limit (`ulimit -n`)";
    OutOfSight = 38, "the engine's directory is not there for this process (chroot, or a mount namespace of its own)",
        "let it see that directory, for instance by a bind mount";
    AProcessEach = 39, "the server starts a process for each of many connections a second, which the kernel's stack serves faster",
        "";
    Datagrams = 40, "datagrams to and from the engine's links go by the engine, all others by the kernel", "";
    Lane = 41, "datagrams from or to another program of this machine go by memory that both have, while it looks", "";
    Groups = 42, "multicast and broadcast are the kernel's on every link; other datagrams go by the engine where it has the link", "";
    EngineSilent = 43, "the engine is there and did not answer within a second (stopped, or hung)",
        "see what `toe status` says of it; let it go on (kill -CONT), or end it (kill -9) and start it again";
}

/// What is written of one descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decided {
    pub stack: Stack,
    pub reason: Reason,
    /// See [`crate::policy::Decision::rule`].
    pub rule: u8,
    /// Below [`crate::policy::ENGINES_MAX`].
    pub engine: u8,
}

impl Decided {
    pub const fn new(stack: Stack, reason: Reason) -> Decided {
        Decided { stack, reason, rule: 0, engine: 0 }
    }

    /// One word of the table.
    pub const fn encode(self) -> u32 {
        let engine = (self.engine as u32 & 0xf) << 24;
        self.stack as u32 | (self.reason as u32) << 8 | (self.rule as u32) << 16 | engine
    }

    /// `None` for a word that this version does not know.
    pub const fn decode(word: u32) -> Option<Decided> {
        let [stack, reason, rule, engine] = word.to_le_bytes();
        let stack = match stack {
            0 => Stack::None,
            1 => Stack::Engine,
            2 => Stack::Kernel,
            _ => return None,
        };
        if reason as usize >= Reason::ALL.len() || engine > 0xf {
            return None;
        }
        Some(Decided { stack, reason: Reason::ALL[reason as usize], rule, engine })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_comes_back() {
        for (number, &reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(number, reason as usize, "ALL is indexed by number");
            for stack in [Stack::None, Stack::Engine, Stack::Kernel] {
                let decided = Decided { stack, reason, rule: 200, engine: 3 };
                assert_eq!(Decided::decode(decided.encode()), Some(decided));
            }
        }
        assert_eq!(Decided::decode(3), None);
        assert_eq!(Decided::decode(0xff00), None);
        assert_eq!(Decided::decode(1 << 28), None);
    }
}
