//! `toed`: the thin shell around the engine. It owns the clock, the links, the memory shared with hosts and the
//! control socket, and drives one [`toe_engine::Engine`].
//!
//! Read in this order: [`run_loop`] (the rounds), [`session`] and [`host_side`] (what is shared with a host),
//! [`attach`] (how a host comes and what it may ask), then the rest.
//!
//! Everything a host sends, in rings or in messages, is taken for hostile: it can cost that host its session, and
//! nobody else anything.
#![deny(unsafe_code)]

pub mod anchor_root;
pub mod anchors;
pub mod attach;
mod budget;
pub mod capture;
pub mod channels;
mod clock;
mod coalescing_sleeps;
pub mod command_line;
pub mod config;
pub mod confine;
pub mod connections;
pub mod control_server;
pub mod cores;
pub mod daemon;
mod datagrams;
mod entries;
pub mod host_side;
pub mod hosts;
pub mod irq_names;
pub mod kernel;
pub mod lanes;
pub mod limits;
pub mod load;
pub mod log;
mod log_limit;
mod opening;
pub mod outside;
pub mod own_addresses;
mod own_file;
mod pace;
pub mod policy;
pub mod poller;
pub mod ports;
mod queue_sets;
pub mod report;
mod reports;
pub mod rest;
pub mod run_loop;
pub mod runtime;
pub mod session;
pub mod slice;
pub mod stages;
mod status;
pub mod sys;
mod timing;
pub mod via;
pub mod watchdog;

pub use config::Config;
pub use daemon::Daemon;

#[cfg(test)]
mod tests;
