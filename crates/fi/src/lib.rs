//! OpenTOE's provider for libfabric: `FI_EP_MSG` endpoints over virtual interfaces, as a library that an unchanged libfabric finds by
//! `FI_PROVIDER_PATH` (decision 0038). Reliable datagrams and tagged messages (`FI_EP_RDM`, `FI_TAGGED`) are made of that by libfabric's
//! own ofi_rxm: `toe;ofi_rxm`.
//!
//! What endpoints do is `toe_via::endpoint`'s; here is what is C about it. From the outside in: [`info`] (what is offered), [`open`] (fabrics and domains), [`memory`] (its
//! regions), [`passive`] (who listens), [`ep`] and [`transfer`] (endpoints), [`eq`] (connections' events), [`cq`] (completions), [`wait_object`] (waiting),
//! [`address`], and [`sys`], libfabric's structures.
#![deny(unsafe_op_in_unsafe_fn)]

mod address;
mod cm;
mod completions;
mod cq;
mod domain;
mod ep;
mod eq;
mod event;
mod fabric;
mod info;
mod memory;
mod object;
mod open;
mod opened;
mod passive;
pub mod sys;
mod transfer;
mod wait_object;

use std::ptr::null_mut;

/// libfabric writes into it as long as the library is loaded.
#[repr(transparent)]
struct Shared(std::cell::UnsafeCell<sys::Provider>);

// SAFETY: needed to have it outlive the call. It is read and written by libfabric alone, under its own lock.
unsafe impl Sync for Shared {}

static PROVIDER: Shared = Shared(std::cell::UnsafeCell::new(sys::Provider {
    version: info::VERSION,
    fi_version: sys::version(1, 17),
    context: [null_mut(); 4],
    name: info::PROVIDER.as_ptr(),
    getinfo: info::getinfo,
    fabric: open::open,
    cleanup,
}));

unsafe extern "C" fn cleanup() {}

/// Called by libfabric when it has loaded the library: the provider.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut sys::Provider {
    PROVIDER.0.get()
}
