//! The C functions as a C program calls them, against a fake engine.

mod fake;

use fake::Engine;
use libc::{c_int, c_long, c_void, iovec, sockaddr, sockaddr_in, socklen_t, ssize_t};
use std::ptr::{null, null_mut};
use toe::Stack;
use toe_abi::command::ConnectArgs;
use toe_abi::entry::{Command, Completion};
use toe_abi::errno::Errno;
use zerocopy::FromBytes;

// SAFETY: the signatures are those of include/toe.h.
unsafe extern "C" {
    safe fn toe_init() -> c_int;
    safe fn toe_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn toe_bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn toe_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn toe_readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn toe_writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn toe_recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t;
    fn toe_getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    safe fn toe_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    safe fn toe_close(fd: c_int) -> c_int;
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn address(port: u16) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([10, 0, 0, 2]) },
        sin_zero: [0; 8],
    }
}

fn connect(fd: c_int, to: &sockaddr_in) -> c_int {
    // SAFETY: the address is a live structure of the length that is given.
    unsafe { toe_connect(fd, std::ptr::from_ref(to).cast(), size_of::<sockaddr_in>() as socklen_t) }
}

/// Says yes to the next `Connect`; returns its queue set, the flow and the arguments.
fn answer_connect(engine: &Engine) -> (usize, toe_base::FlowId, ConnectArgs) {
    let (queue_set, command, args) = engine.command();
    let Command::Connect { token } = command else { panic!("{command:?} is no Connect") };
    let flow = engine.new_flow();
    let result =
        Completion::CommandResult { token, command: command.kind(), errno: Errno::OK, id: flow.raw() };
    engine.write_info(
        flow,
        "10.0.0.1:40000".parse().expect("an address"),
        "10.0.0.2:80".parse().expect("an address"),
    );
    engine.post(queue_set, result);
    (queue_set, flow, ConnectArgs::read_from_bytes(&args).expect("64 bytes"))
}

#[test]
fn a_connection_from_c() {
    let engine = Engine::start();
    assert_eq!(toe_init(), 0);
    let fd = toe_socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
    assert!(fd >= 0);
    let bound = address(4444);
    // SAFETY: as in `connect`.
    let result =
        unsafe { toe_bind(fd, std::ptr::from_ref(&bound).cast(), size_of::<sockaddr_in>() as socklen_t) };
    assert_eq!(result, 0);
    let (queue_set, flow) = std::thread::scope(|scope| {
        let engine_side = scope.spawn(|| {
            let (queue_set, flow, args) = answer_connect(&engine);
            assert_eq!(args.local.port, 4444);
            engine.post(queue_set, Completion::Connected { flow, errno: Errno::OK });
            (queue_set, flow)
        });
        assert_eq!(connect(fd, &address(80)), 0);
        engine_side.join().expect("the engine's part")
    });
    let (mut peer, mut len) = (address(0), size_of::<sockaddr_in>() as socklen_t);
    // SAFETY: both point to live structures; `len` says how long the first is.
    assert_eq!(unsafe { toe_getpeername(fd, std::ptr::from_mut(&mut peer).cast(), &mut len) }, 0);
    assert_eq!((peer.sin_port, len), (80u16.to_be(), 16));

    let bytes = *b"abcdef";
    let piece = |at: usize, len| iovec { iov_base: bytes[at..].as_ptr().cast_mut().cast(), iov_len: len };
    let from = [piece(0, 2), iovec { iov_base: null_mut(), iov_len: 0 }, piece(2, 4)];
    // SAFETY: three live buffers, of which the empty one may be null.
    assert_eq!(unsafe { toe_writev(fd, from.as_ptr(), 3) }, 6);
    assert_eq!(engine.sent_bytes(), bytes);
    engine.data(queue_set, flow, b"xyz");
    let mut into = [0u8; 20];
    let many: Vec<iovec> =
        into.chunks_mut(1).map(|one| iovec { iov_base: one.as_mut_ptr().cast(), iov_len: 1 }).collect();
    // SAFETY: twenty live buffers of one byte.
    assert_eq!(unsafe { toe_readv(fd, many.as_ptr(), 20) }, 3);
    assert_eq!(&into[..4], b"xyz\0");

    assert_eq!(toe_fcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK, 0);
    assert_eq!(toe_fcntl(fd, libc::F_SETFL, c_long::from(libc::O_NONBLOCK)), 0);
    assert_eq!(toe_fcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK, libc::O_NONBLOCK);
    let mut one = 0u8;
    // SAFETY: one live byte.
    assert_eq!(unsafe { toe_recv(fd, std::ptr::from_mut(&mut one).cast(), 1, 0) }, -1);
    assert_eq!(errno(), libc::EAGAIN);
    let copy = toe_fcntl(fd, libc::F_DUPFD_CLOEXEC, 0);
    assert_eq!(toe_close(fd), 0);
    assert_eq!(engine.open_anchors().len(), 1, "a copy is left");
    assert_eq!(toe_close(copy), 0);
    engine.expect_close_kept();
    assert_eq!((toe_close(copy), errno()), (-1, libc::EBADF));
}

#[test]
fn a_copy_that_was_made_before_connect_holds_the_connection_too() {
    let engine = Engine::start();
    assert_eq!(toe_init(), 0);
    let fd = toe_socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
    let copy = toe_fcntl(fd, libc::F_DUPFD_CLOEXEC, 0);
    assert!(fd >= 0 && copy >= 0);
    std::thread::scope(|scope| {
        let engine_side = scope.spawn(|| {
            let (queue_set, flow, _) = answer_connect(&engine);
            engine.post(queue_set, Completion::Connected { flow, errno: Errno::OK });
        });
        assert_eq!(connect(fd, &address(80)), 0);
        engine_side.join().expect("the engine's part")
    });
    assert_eq!(toe_close(fd), 0);
    assert_eq!(engine.open_anchors().len(), 1, "the copy is left");
    assert_eq!(toe_close(copy), 0);
    engine.expect_close_kept();
}

#[test]
fn errors_of_c_programs() {
    let _engine = Engine::attached();
    assert_eq!((toe_socket(libc::AF_INET6, libc::SOCK_STREAM, 0), errno()), (-1, libc::EAFNOSUPPORT));
    let tcp = libc::IPPROTO_TCP;
    assert_eq!((toe_socket(libc::AF_INET, libc::SOCK_DGRAM, tcp), errno()), (-1, libc::EPROTONOSUPPORT));
    assert_eq!((connect(-1, &address(80)), errno()), (-1, libc::EBADF));
    let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
    assert_eq!(
        (connect(std::os::fd::AsRawFd::as_raw_fd(&pipe), &address(80)), errno()),
        (-1, libc::ENOTSOCK)
    );
    let fd = toe_socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_TCP);
    // SAFETY: a null address is refused before it is looked at.
    let result = unsafe { toe_connect(fd, null(), 16) };
    assert_eq!((result, errno()), (-1, libc::EFAULT));
    let short = address(80);
    // SAFETY: the length is less than the structure's.
    let result = unsafe { toe_connect(fd, std::ptr::from_ref(&short).cast(), 8) };
    assert_eq!((result, errno()), (-1, libc::EINVAL));
    let null_buffer = iovec { iov_base: null_mut(), iov_len: 1 };
    // SAFETY: a null buffer is refused before it is used.
    let result = unsafe { toe_readv(fd, &null_buffer, 1) };
    assert_eq!((result, errno()), (-1, libc::EFAULT));
    assert_eq!(toe_close(fd), 0);
}

#[test]
fn a_socket_made_before_the_engine_ended_connects_through_the_next() {
    let first = Engine::attached();
    let fd = toe_socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
    first.kill();
    let old = Stack::attached(toe::stack::EngineIdx::FIRST).expect("not yet noticed");
    fake::until(|| {
        old.queue_sets().for_each(toe::queue::QueueSet::look);
        (!old.session.alive()).then_some(())
    });
    assert_eq!((connect(fd, &address(80)), errno()), (-1, libc::ENETDOWN));
    drop(first);
    let second = Engine::start();
    fake::until(|| Stack::get(toe::stack::EngineIdx::FIRST));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (.., args) = answer_connect(&second);
            assert!(args.anchor < 32, "an anchor of the new engine's");
        });
        assert_eq!((connect(fd, &address(80)), errno()), (-1, libc::EINPROGRESS));
    });
    assert_eq!(toe_close(fd), 0);
}
