//! What endpoints that are connected and those that listen have in common: addresses, what is said with a connection, and what neither does.

use crate::address::{Address, SOCKADDR_LEN};
use crate::sys::{self, FidPtr, RxAttr, Ssize, TxAttr};
use std::ffi::{c_int, c_void};
use toe_via::endpoint::meeting::PRIVATE_MAX;

/// What a program says with a connection.
///
/// # Safety
/// `len` bytes, or null.
pub unsafe fn private(param: *const c_void, len: usize) -> Vec<u8> {
    if param.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: needed to read what the program has promised.
    unsafe { std::slice::from_raw_parts(param.cast::<u8>(), len) }.to_vec()
}

/// Writes an address where a program wants it. FI_ETOOSMALL: its beginning; the length is what it would be.
///
/// # Safety
/// `len` says how much room `to` has.
pub unsafe fn tell_address(address: Address, to: *mut c_void, len: *mut usize) -> c_int {
    let sockaddr = address.to_sockaddr();
    // SAFETY: needed to answer the program, which has promised so much room.
    unsafe {
        let room = len.read();
        len.write(SOCKADDR_LEN);
        if !to.is_null() {
            to.cast::<u8>().copy_from_nonoverlapping(sockaddr.as_ptr(), room.min(SOCKADDR_LEN));
        }
        if room < SOCKADDR_LEN { -sys::ETOOSMALL } else { 0 }
    }
}

/// How much a program may say with a connection: the one option that there is.
///
/// # Safety
/// As `fi_getopt`.
pub unsafe extern "C" fn getopt(
    _: FidPtr,
    level: c_int,
    option: c_int,
    to: *mut c_void,
    len: *mut usize,
) -> c_int {
    if level != sys::OPT_ENDPOINT || option != sys::OPT_CM_DATA_SIZE {
        return -libc::ENOPROTOOPT;
    }
    // SAFETY: needed to answer the program, which has promised so much room.
    unsafe {
        if len.read() < size_of::<usize>() {
            return -sys::ETOOSMALL;
        }
        to.cast::<usize>().write(PRIVATE_MAX);
        len.write(size_of::<usize>());
    }
    0
}

pub unsafe extern "C" fn no_setopt(_: FidPtr, _: c_int, _: c_int, _: *const c_void, _: usize) -> c_int {
    -libc::ENOPROTOOPT
}

pub unsafe extern "C" fn no_tx_ctx(
    _: FidPtr,
    _: c_int,
    _: *mut TxAttr,
    _: *mut FidPtr,
    _: *mut c_void,
) -> c_int {
    -libc::ENOSYS
}

pub unsafe extern "C" fn no_rx_ctx(
    _: FidPtr,
    _: c_int,
    _: *mut RxAttr,
    _: *mut FidPtr,
    _: *mut c_void,
) -> c_int {
    -libc::ENOSYS
}

pub unsafe extern "C" fn no_left(_: FidPtr) -> Ssize {
    -(libc::ENOSYS as Ssize)
}

pub unsafe extern "C" fn no_join(
    _: FidPtr,
    _: *const c_void,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    -libc::ENOSYS
}
