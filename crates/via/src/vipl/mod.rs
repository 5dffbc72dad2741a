//! Native VIA: the functions of `include/vipl.h`, the core of the Virtual Interface Provider Library 1.0.
//!
//! In the order in which a descriptor goes down: `calls` (the C functions), `handles` (what they are given), `types` (the specification's names and numbers), [`nic`] (what a
//! process has), [`memory`] (who may touch what), [`descriptor`] (descriptors in registered memory), [`vi`] (queues, and what is sent),
//! [`receive`] (what comes). Below is what EVIL stands on too: links, fragments, credit, sleep.

mod calls;
pub(crate) mod descriptor;
mod handle_number;
mod handles;
pub(crate) mod memory;
pub(crate) mod nic;
mod progress;
pub(crate) mod receive;
pub(crate) mod types;
pub(crate) mod vi;

#[cfg(test)]
mod tests;
