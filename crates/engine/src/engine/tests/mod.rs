//! The engine's tests, as stories between two engines in virtual time.

mod acks;
mod addresses;
mod bottleneck;
mod capture;
mod closing;
mod crowd;
mod crowd_parts;
mod direct;
mod fake_channels;
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
mod swarm;
mod tcp_report;
mod transfer;
mod troubles;
mod vlan;
mod world;
