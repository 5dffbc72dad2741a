//! The host library: sockets and epoll over a TCP offload engine, for programs that link it and for the switch layer.
//!
//! Papers' names: the *TDDL* (attach, rings, doorbells) and the *TOPL* (socket operations to and from commands). The
//! modules in the order in which data flows up, each above those that it calls: [`process`] (this process among its children), [`attach`] and [`session`]
//! (with [`own_fds`]), [`slots`], [`send_memory`], [`channel`] and [`leaving`] (bytes from another session); the state of
//! [`socket`], [`queue`], [`datagram`] and [`epoll`] and what they do without waiting: a queue set tells its sockets, these tell who watches;
//! [`stack`] (a session with its queue sets) and [`anchor`]; [`fd_table`]; [`wait`] (a thread parks), [`fork`], [`attaching`] (the way to a session), [`block`] (a call that waits), and the calls on sockets; how
//! things end ([`fd_release`]), [`adopt`], epoll's calls and [`poll`], [`file`], [`signals`], [`cancel`], [`helper`], [`confine`], [`address_space`],
//! [`admit`], [`program_memory`], [`capi`] (the `toe_` functions of `include/toe.h`), and [`native`] (the same in Rust's words).
//!
//! Nothing here is called through the C library's socket functions: see [`sys`].

pub mod address_space;
pub mod admit;
pub mod adopt;
pub mod anchor;
pub mod attach;
mod attaching;
pub mod block;
pub mod cancel;
mod capi;
pub mod channel;
pub mod confine;
mod connect_credit;
pub mod datagram;
pub mod environment;
pub mod epoll;
pub mod errno;
pub mod fd_release;
pub mod fd_table;
mod fd_words;
pub mod file;
pub mod fork;
pub mod helper;
mod id_hasher;
mod leaving;
pub mod lock;
mod looking;
pub mod native;
pub mod own_fds;
mod pace;
pub mod poll;
mod pool;
pub mod process;
pub mod program_memory;
pub mod queue;
mod queue_io;
mod select;
pub mod send_memory;
pub mod session;
mod settling;
pub mod signal_io;
pub mod signals;
mod silence;
mod sleep;
pub mod slots;
pub mod socket;
mod spin;
pub mod stack;
pub mod sys;
mod thread;
pub mod tls;
pub mod wait;
pub mod wait_calls;
mod waiter;

pub use anchor::{Anchor, Use as AnchorUse};
pub use socket::Socket;
pub use stack::Stack;
pub use toe_abi::errno::Errno;
