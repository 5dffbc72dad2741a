//! Unmodified programs on the engine, in network namespaces. Needs root. Each test prints what it measured:
//! `cargo test -p toe-tests --test programs NAME -- --nocapture`.
#![forbid(unsafe_code)]

mod bench;
mod cable;
mod capture;
mod datagrams;
mod death;
mod descriptor;
mod direct;
mod engines;
mod epoll;
mod fabric;
mod fast_open;
mod files;
mod hostile_why;
mod ipv6;
mod lanes;
mod layer;
mod lifecycle;
mod limits;
mod load;
mod local;
mod mixes;
mod odd_files;
mod order;
mod plain_kernel;
mod quiet;
mod records;
mod remedies;
mod rights;
mod shared;
mod socket_calls;
mod stopped;
mod tcp_info;
mod tls;
mod transfer;
mod via;
mod via_far;
mod views;
