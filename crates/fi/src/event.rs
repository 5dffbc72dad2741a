//! What is told of connections: events, and the requests among them.

use crate::address::Address;
use crate::info;
use crate::object::{self, Object, no_bind, no_control, no_ops_open};
use crate::sys::{self, Fid, FidPtr, Info, Ops};
use std::ffi::c_int;
use std::ptr::null_mut;
use toe_via::endpoint::meeting::Visitor;

/// An event. Pointers are addresses here: they are the program's to follow.
#[derive(Debug)]
pub enum Event {
    Request {
        passive: usize,
        request: Request,
    },
    Connected {
        ep: usize,
        private: Vec<u8>,
    },
    Shutdown {
        ep: usize,
    },
    Failed {
        ep: usize,
        context: usize,
        errno: c_int,
        private: Vec<u8>,
    },
    /// What a program has written.
    Written {
        event: u32,
        bytes: Vec<u8>,
    },
}

impl Event {
    pub fn is_of(&self, fid: usize) -> bool {
        match self {
            Event::Request { passive: of, .. }
            | Event::Connected { ep: of, .. }
            | Event::Shutdown { ep: of }
            | Event::Failed { ep: of, .. } => *of == fid,
            Event::Written { .. } => false,
        }
    }
}

/// A connection that was asked for: what `fi_accept` and `fi_reject` know it by.
#[derive(Debug)]
#[repr(C)]
struct Handle {
    fid: Fid,
    visitor: Visitor,
}

// SAFETY: needed to find it by its pointer: it is laid out as C would and begins with a fid.
unsafe impl Object for Handle {}

static HANDLE_OPS: Ops = Ops {
    size: size_of::<Ops>(),
    close: close_handle,
    bind: no_bind,
    control: no_control,
    ops_open: no_ops_open,
};

unsafe extern "C" fn close_handle(_: FidPtr) -> c_int {
    -libc::ENOSYS
}

/// The request, until it is read.
#[derive(Debug)]
pub struct Request {
    /// An answer of `info::make`'s with the handle in it: an address, as it is the program's from the moment that it is read.
    info: usize,
    pub private: Vec<u8>,
}

impl Request {
    /// Asked for at `source`, of one who listens with this `mr_mode` and version of libfabric's interface.
    pub fn new((api_version, mr_mode): (u32, c_int), source: Address, visitor: Visitor) -> Option<Request> {
        let from = Address::from_sockaddr(&visitor.greeting.from)?;
        let private = visitor.greeting.private.clone();
        let info = info::make(api_version, mr_mode, Some(source), Some(from))?;
        let fid = object::fid(sys::CLASS_CONNREQ, null_mut(), &HANDLE_OPS);
        let mut handle = null_mut();
        // SAFETY: needed to put the handle where the program finds it; both were made just now.
        unsafe {
            Handle { fid, visitor }.hand_out(&raw mut handle);
            (*info).handle = handle;
        }
        Some(Request { info: info.expose_provenance(), private })
    }

    pub fn info(&self) -> *mut Info {
        std::ptr::with_exposed_provenance_mut(self.info)
    }

    /// The program has it now.
    pub fn hand_over(self) {
        std::mem::forget(self);
    }
}

impl Drop for Request {
    /// Nobody has read it.
    fn drop(&mut self) {
        // SAFETY: needed to give back what was made for it and never handed over.
        unsafe {
            drop(Handle::take_back((*self.info()).handle));
            info::free(self.info());
        }
    }
}

/// The visitor of a handle, which is no more then. `None`: it is none of this provider's.
///
/// # Safety
/// A handle that the program has from a request and has not used, or another live fid, or null.
pub unsafe fn take_visitor(handle: FidPtr) -> Option<Visitor> {
    // SAFETY: needed to see what it is.
    if handle.is_null() || unsafe { (*handle).fclass } != sys::CLASS_CONNREQ {
        return None;
    }
    // SAFETY: needed to take it: its class says that it was made here.
    Some(unsafe { Handle::take_back(handle) }.visitor)
}
