//! The TOE device: frames, host entries and `now` in; frames, completions and the next deadline out.
//!
//! Sans-IO: no sockets, clock, threads or shared memory in here. The daemon, a test or a simulator drives one
//! [`Engine`] over the programs' memory ([`HostMemory`]). Same inputs, same outputs.
//!
//! Folders in the order data flows. Receive: [`ingress`] → [`flow`] → [`hostif`]. Send: [`hostif`] → [`sched`] →
//! [`flow`] → [`egress`]. [`control`] holds what is not a flow's data: ARP, ICMP, routes, listeners; [`udp`] is the other protocol, with planes of its own, and [`protocols`] where more plug in. A stage takes a
//! value from [`work`] and its own records, and hands on a value from [`work`]; only the `engine` folder joins them. `store` has the records, and by what they are found.
#![forbid(unsafe_code)]

pub mod control;
pub mod counter;
pub mod egress;
mod engine;
pub mod flow;
pub mod hostif;
pub mod ingress;
pub mod kit;
mod parts;
pub mod protocols;
pub mod sched;
mod store;
pub mod udp;
pub mod via;
pub mod work;

pub use control::event::ControlEvent;
pub use control::network::SteerChange;
pub use control::network::{NetworkChange, NetworkRequest};
pub use control::route::{KernelRoute, KernelVia};
pub use counter::Counter;
pub use engine::{
    CompletionBatch, DriverRequest, Engine, EngineConfig, EngineView, FlowAudit, GivenLane, LeftBehind,
    NewEnd, OpenedDatagrams, PortRange, RxFrame, SessionView, SocketCursor, SocketView, Totals,
};
pub use hostif::channels::ChannelRequest;
pub use hostif::users::{Limit, Quotas, Resource, STAGING_LEN, User, UserIdx, Users};
pub use toe_tcp::config::{AlgorithmName, EcnMode, FastOpenMode, SynCookies, TcpConfig};
pub use toe_tcp::memory::{GivenBack, HostMemory, SharedMemory};
pub use work::{
    AnchorUse, CaptureRule, Captured, Change, Changed, Delivered, ForSocket, HandedOver, Incoming, Link,
    RxDatagram, RxDatagramError, Sighting, SightingEnd, StreamCounts,
};
