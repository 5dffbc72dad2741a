//! The control plane (IXP paper): what is not a flow's data. Addresses and routes, ARP, ICMP, listeners, and
//! what is shared with the kernel.

pub mod accept_queue;
pub mod arp;
pub mod cookie;
pub mod ephemeral;
pub mod event;
pub mod fast_open;
pub mod fragments;
pub mod holders;
pub mod icmp;
pub mod in_use;
pub mod listen;
pub mod listener_idx;
pub mod names;
pub mod network;
pub mod port_choice;
pub mod prefetch;
pub mod process_each;
pub mod route;
pub mod scopes;
pub mod steer;
