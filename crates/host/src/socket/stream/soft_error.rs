//! Soft errors: what hinders a connection that goes on all the same (RFC 9293 section 3.9.1.8). To a program that asked, by
//! IP_RECVERR or IPV6_RECVERR, each is an error of the socket as any other: the next call fails by it, once. Without that
//! only SO_ERROR tells, as in Linux, and only as long as the engine has noted it.

use super::{ERR, Link, Stream};
use toe_abi::errno::Errno;

impl Stream {
    /// The engine tells of one.
    pub fn on_soft_error(&mut self, errno: Errno) {
        if self.link == Link::Open && !self.custody.has_let_go() {
            self.so_error.set(errno);
            self.publish(ERR);
        }
    }
}
