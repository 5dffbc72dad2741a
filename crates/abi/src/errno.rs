//! Error numbers carried in completions and refusals: Linux's own (asm-generic), so that nothing has to translate.

/// A Linux error number; zero means success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Errno(pub u16);

macro_rules! errnos { ($($name:ident = $n:literal),+ $(,)?) => { impl Errno { $(pub const $name: Errno = Errno($n);)+ } }; }

errnos! {
    OK = 0, EPERM = 1, ENOENT = 2, EINTR = 4, EIO = 5, EBADF = 9, EAGAIN = 11, ENOMEM = 12, EACCES = 13, EBUSY = 16, EINVAL = 22, EMFILE = 24, ENOSPC = 28,
    ENONET = 64,     EPIPE = 32, EPROTO = 71, EMSGSIZE = 90, ENOPROTOOPT = 92, EPROTONOSUPPORT = 93, EOPNOTSUPP = 95, EADDRINUSE = 98,
    EADDRNOTAVAIL = 99, ENETDOWN = 100, ENETUNREACH = 101, ECONNABORTED = 103, ECONNRESET = 104, ENOBUFS = 105,
    EISCONN = 106, ENOTCONN = 107, ETIMEDOUT = 110, ECONNREFUSED = 111, EHOSTDOWN = 112, EHOSTUNREACH = 113, EALREADY = 114,
    EINPROGRESS = 115, EDQUOT = 122, ECANCELED = 125,
}

impl Errno {
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
}
