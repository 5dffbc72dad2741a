//! The engine's tests, as stories between two engines in virtual time.

mod acks;
mod addresses;
mod bottleneck;
mod capture;
mod closing;
mod direct;
mod fake_channels;
mod fast_open;
mod flood;
mod hostile;
mod ipv6;
mod leftovers;
mod long_stream;
mod path_mtu;
mod pieces;
mod recovery;
mod sessions;
mod shared;
mod shared_address;
mod soft_errors;
mod tcp_report;
mod transfer;
mod troubles;
mod vlan;
mod world;
