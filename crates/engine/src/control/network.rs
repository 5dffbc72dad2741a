//! What the driver and the engine tell each other of links, addresses, routes and neighbours. Of a port that shares its addresses with the
//! kernel, all of that is the kernel's, and the driver follows it.

use crate::control::route::KernelRoute;
use crate::flow::key::FlowKey;
use crate::work::Link;
use toe_base::{Addr, Endpoint, PortId};
use toe_wire::link::MacAddr;

/// Something has changed.
#[derive(Clone, Copy, Debug)]
pub enum NetworkChange<'a> {
    /// There is a `local` port: loopback addresses are the engine's, too.
    Loopback,
    /// The port's addresses, routes and neighbours are the kernel's. Before it has any.
    Shared { port: PortId },
    /// The port's link is another by now: its interface was replaced, or its MTU changed.
    Link { port: PortId, link: Link },
    /// The port has this address from now on, or its network is another.
    Address { port: PortId, addr: Addr, prefix_len: u8 },
    /// It has it no more. Connections that have it stay, as of Linux, and end when nobody answers.
    NoAddress { port: PortId, addr: Addr },
    /// The next hop of a port whose addresses are the engine's own.
    Gateway { port: PortId, gateway: Addr },
    /// All routes that the kernel has now. Connections take the way that the new ones say.
    Routes(&'a [KernelRoute]),
    /// The kernel knows a neighbour's hardware address; `is_doubtful`: it has not heard of it for a while.
    Neighbour { port: PortId, addr: Addr, mac: MacAddr, is_doubtful: bool },
    /// The kernel knows it no more; `failed`: it asked, and nobody answered.
    NoNeighbour { port: PortId, addr: Addr, failed: bool },
    /// The kernel keeps this port number for the engine, for connections that name none.
    PortReserved(u16),
    /// What comes to the listener cannot be steered here: it is the kernel's, and the listener's kernel socket takes it.
    SteeringRefused { local: Endpoint },
}

/// A change of what is steered to the engine, for the driver to carry out before it sends or answers anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SteerChange {
    Listen { local: Endpoint, on: bool },
    Flow { key: FlowKey, on: bool },
}

/// Something that the driver is to do in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkRequest {
    /// To keep so many more port numbers; asked once.
    ReservePorts(usize),
    /// Before anything is sent or posted that relies on it.
    Steer(SteerChange),
    /// To find a neighbour, or to make sure of it.
    FindNeighbour { port: PortId, addr: Addr },
    /// To see whether this kernel socket is still there ([`crate::control::names::Twin`]): all who had the listener that rests on it have let
    /// go, and Linux refuses who connects then.
    LookAtTwin { identity: u64 },
}
