//! What the engine has from the kernel on shared addresses, and what it follows on all links: interfaces, addresses,
//! routes and neighbours as netlink tells of them, and port numbers that the kernel keeps for the engine.

pub mod events;
pub mod follow;
pub mod netlink;
pub mod reserve;

/// The number of an interface, as it stands in the zone of an address. `None`: there is none of this name.
pub fn index_of(interface: &str) -> Option<u32> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
    rustix::net::netdevice::name_to_index(socket.ok()?, interface).ok()
}
