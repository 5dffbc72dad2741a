//! The control plane (IXP paper): what is not a flow's data. Addresses and routes, ARP, ICMP, listeners, and
//! what is shared with the kernel.

pub mod arp;
pub mod cookie;
pub mod fast_open;
pub mod fragments;
pub mod icmp;
pub mod listen;
pub mod route;
pub mod steer;
