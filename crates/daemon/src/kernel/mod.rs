//! What the engine has from the kernel on shared addresses, and what it follows on all links: interfaces, addresses,
//! routes and neighbours as netlink tells of them, port numbers that the kernel keeps for the engine, and which sockets of
//! the kernel listen.

pub mod follow;
pub mod listeners;
pub mod netlink;
pub mod news;
pub mod reserve;
