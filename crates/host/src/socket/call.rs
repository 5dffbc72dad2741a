//! One call's use of a socket: as a call of Linux has its file, it has the connection that it found, whatever becomes of the descriptor.
//! Called by everything that looks at a socket more than once in a call.

use super::Socket;
use std::cell::OnceCell;
use std::sync::atomic::Ordering;
use toe_abi::errno::Errno;

/// From its beginning on a call is on this use of the socket and no later one. It costs a read until the call [goes on](SocketCall::hold).
#[derive(Debug)]
pub struct SocketCall {
    pub(crate) socket: &'static Socket,
    generation: u32,
    held: OnceCell<Held>,
}

impl SocketCall {
    pub fn begin(socket: &'static Socket) -> SocketCall {
        SocketCall { socket, generation: socket.generation(), held: OnceCell::new() }
    }

    /// Whether the socket is still what the call began on. It stays so as long as the caller has the lock of its owner queue, as nothing takes a
    /// stream from there without it.
    pub fn is_on(&self) -> bool {
        self.socket.generation() == self.generation
    }

    /// The call cannot end with this look: until it does, the socket does not. The caller has the lock of its owner queue, so whoever
    /// closes the last descriptor has either ended the socket already or finds this.
    pub(crate) fn hold_locked(&self) {
        self.held.get_or_init(|| self.socket.hold_locked());
    }

    /// The same without the lock. EBADF: it has ended.
    pub(crate) fn hold(&self) -> Result<(), Errno> {
        self.held.get_or_init(|| self.socket.hold());
        if self.is_on() { Ok(()) } else { Err(Errno::EBADF) }
    }
}

/// While it lives the socket does not end: with its last descriptor closed it ends when this is dropped, or with the last thread
/// that waits then.
#[derive(Debug)]
pub struct Held(pub(super) &'static Socket);

impl Socket {
    /// The calling thread is about to wait in a call on it, or to look at it several times: as if it waited already.
    pub fn hold(&'static self) -> Held {
        let _home = self.lock_owner_queue();
        self.hold_locked()
    }

    /// The same for who has the lock of its owner queue, if it has one.
    pub(super) fn hold_locked(&'static self) -> Held {
        self.holders.fetch_add(1, Ordering::SeqCst);
        Held(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by a program that closed a connection while another thread was inside a send on it: the rest of that went into the
    /// connection that was opened next.
    #[test]
    fn a_call_does_not_go_on_with_the_next_use_of_its_socket() {
        let socket = Socket::allocate();
        let call = SocketCall::begin(socket);
        assert!(call.is_on());
        socket.abandon();
        assert!(!call.is_on());
        assert_eq!(call.hold(), Err(Errno::EBADF));
        assert_eq!(SocketCall::begin(socket).hold(), Ok(()));
    }

    #[test]
    fn a_call_counts_once_and_a_child_of_a_fork_forgets_it() {
        let socket = Socket::allocate();
        let holders = || socket.holders.load(std::sync::atomic::Ordering::SeqCst);
        let (first, second) = (SocketCall::begin(socket), SocketCall::begin(socket));
        assert_eq!((first.hold(), first.hold(), second.hold()), (Ok(()), Ok(()), Ok(())));
        assert_eq!(holders(), 2);
        drop(first);
        assert_eq!(holders(), 1);
        socket.forget_threads();
        assert_eq!(holders(), 0);
        drop(second);
        assert_eq!(holders(), 0, "a call that goes on in the child");
        socket.abandon();
    }
}
