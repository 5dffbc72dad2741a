//! The control plane (IXP paper): what is not a flow's data. Addresses and routes, ARP, ICMP, listeners.

pub mod arp;
pub mod icmp;
pub mod listen;
pub mod route;
