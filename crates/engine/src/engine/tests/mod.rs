//! The engine's tests, as stories between two engines in virtual time.

mod bottleneck;
mod capture;
mod closing;
mod crowd;
mod crowd_parts;
mod direct;
mod fake_channels;
mod hostile;
mod long_stream;
mod path_mtu;
mod recovery;
mod sessions;
mod shared;
mod shared_address;
mod swarm;
mod transfer;
mod troubles;
mod world;
