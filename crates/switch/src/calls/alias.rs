//! Second names that the C library gives some calls and that old libraries link to. A socket must not be half caught.

use super::{address, data, descriptor, open, poll};
use core::ffi::{c_int, c_long, c_void};
use libc::{fd_set, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};

macro_rules! second_names {
    ($($alias:ident = $module:ident::$name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)+) => {
        $(
            /// # Safety
            /// As the call that it is another name of.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $alias($($arg: $type),*) -> $ret {
                // SAFETY: the program's arguments, handed on.
                unsafe { $module::$name($($arg),*) }
            }
        )+
    };
}

second_names! {
    __close = open::close(fd: c_int) -> c_int;
    __connect = address::connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    __dup2 = descriptor::dup2(from: c_int, to: c_int) -> c_int;
    __fcntl = descriptor::fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    __poll = poll::poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    __read = data::read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    __select = poll::select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    __send = data::send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    __write = data::write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
}
