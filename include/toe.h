/* The native interface of OpenTOE: the socket and epoll calls with a prefix.
 *
 * An ordinary epoll program becomes one on the engine by putting toe_ before its socket and epoll calls and linking
 * with -ltoe. Every descriptor is a real one of the kernel. Errors are -1 and errno, with Linux's numbers and meanings.
 * Every function may be called by any thread, also on one descriptor at a time. From a signal handler call only
 * toe_close, and only when it did not interrupt another toe_ function.
 *
 * Made from the sources of crates/host by cbindgen; do not edit. */

#ifndef OPENTOE_TOE_H
#define OPENTOE_TOE_H

#include <poll.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

/* Of the C library, with _GNU_SOURCE. */
struct mmsghdr;

/* As the length of a transfer: until the file ends, or what the peer sends. */
#define TOE_ALL ((size_t)-1)

/* A transfer beside the program: see toe_directwrite_begin. */
typedef struct toe_transfer toe_transfer;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Attaches this process to an engine: to the one whose socket's path is in the environment variable TOE_ENGINE, else
// to the user's engine named "default", else to root's. Calling it again while attached does nothing. The other
// functions attach by themselves at first use; call this to find out early.
//
// Blocks until the engine has answered. Any thread may call it.
//
// Returns 0, or -1 with errno:
// ECONNREFUSED: no engine listens there; EACCES, EPERM: the engine refuses this user; EPROTO: the engine speaks
// another version of the host interface; ENOMEM, EMFILE: out of memory or descriptors.
int toe_init(void);

// Ends the session: the engine ends every connection and listener of this process, with FIN, or RST where received
// data was not read. Their descriptors stay open until toe_close and then give ECONNRESET.
//
// Does not block. Any thread may call it; threads inside other functions return.
void toe_terminate(void);

// Sends a datagram of `len` bytes to `addr` (a struct sockaddr_in of `addr_len` bytes), or, with NULL, to what the socket is connected
// to. `flags`: MSG_DONTWAIT, MSG_NOSIGNAL; with others, as MSG_MORE, the kernel sends it. On a TCP socket as toe_send.
//
// Blocks while the engine has no room for it, unless the socket or the call is non-blocking; SO_SNDTIMEO limits the wait. The bytes
// are copied: `buf` can be used again at once.
//
// Returns `len`, or -1 with errno: EAGAIN: no room now, or time over; EMSGSIZE: larger than a datagram can be, or than the path takes where
// IP_MTU_DISCOVER says that it may not be cut; EDESTADDRREQ; ECONNREFUSED: nobody was at the port that was sent to before, told once;
// EINTR: a signal came; EBADF, ENOTSOCK, EAFNOSUPPORT, EINVAL, EFAULT.
ssize_t toe_sendto(int fd,
                   const void *buf,
                   size_t len,
                   int flags,
                   const struct sockaddr *addr,
                   socklen_t addr_len);

// Receives a datagram: up to `len` bytes of it, the rest is lost. `addr` may be NULL; otherwise the sender's address is written there, up to
// `*addr_len` bytes, and `*addr_len` set to its length. `flags`: MSG_DONTWAIT, MSG_PEEK, MSG_TRUNC (the datagram's whole length is
// returned), MSG_ERRQUEUE (which is the kernel's). On a TCP socket as toe_recv.
//
// Blocks until there is one, unless the socket or the call is non-blocking; SO_RCVTIMEO limits the wait.
//
// Returns the bytes received, or -1 with errno: EAGAIN: none now, or time over; ECONNREFUSED: nobody is at the port that the socket is
// connected to; EINTR: a signal came; EBADF, ENOTSOCK, EFAULT.
ssize_t toe_recvfrom(int fd,
                     void *buf,
                     size_t len,
                     int flags,
                     struct sockaddr *addr,
                     socklen_t *addr_len);

// Like toe_sendto, of several buffers, with control data: IP_PKTINFO, IP_TTL, IP_TOS and UDP_SEGMENT; with other control data the kernel sends
// it. UDP sockets only.
//
// Returns the bytes sent, or -1 with errno as toe_sendto; EOPNOTSUPP: a TCP socket.
ssize_t toe_sendmsg(int fd,
                    const struct msghdr *message,
                    int flags);

// Like toe_recvfrom, into several buffers, with the control data that has been asked for by toe_setsockopt: IP_PKTINFO, IP_RECVTOS, UDP_GRO, and
// all others, with which every datagram comes by the kernel. UDP sockets only.
//
// Returns the bytes received, or -1 with errno as toe_recvfrom; EOPNOTSUPP: a TCP socket.
ssize_t toe_recvmsg(int fd,
                    struct msghdr *message,
                    int flags);

// Sends up to `count` messages (1024 at most), each as toe_sendmsg does, and sets `msg_len` of each that was sent.
//
// Returns how many were, or -1 with errno, if the first could not be.
int toe_sendmmsg(int fd,
                 struct mmsghdr *messages,
                 unsigned int count,
                 int flags);

// Receives up to `count` messages (1024 at most), each as toe_recvmsg does, and sets `msg_len` of each. `flags` also: MSG_WAITFORONE: does
// not wait once there is one. `timeout` may be NULL; when it is over, as it is found to be after a message, that was the last.
//
// Returns how many came, or -1 with errno, if none did.
int toe_recvmmsg(int fd,
                 struct mmsghdr *messages,
                 unsigned int count,
                 int flags,
                 struct timespec *timeout);

// Makes an epoll descriptor, for sockets and all other descriptors alike. `size` is ignored but must be positive. Does not
// block. Close it with toe_close. Any thread may use it, several at a time.
//
// Returns the descriptor, or -1 with errno: EINVAL, EMFILE, ENFILE, ENOMEM.
int toe_epoll_create(int size);

// Like toe_epoll_create. `flags`: 0 or EPOLL_CLOEXEC.
int toe_epoll_create1(int flags);

// Adds (EPOLL_CTL_ADD), changes (EPOLL_CTL_MOD) or takes out (EPOLL_CTL_DEL) a descriptor. Events as in Linux, with
// EPOLLET, EPOLLONESHOT, EPOLLEXCLUSIVE and EPOLLRDHUP. Adding a listener makes it begin to take connections. A socket
// whose last descriptor is closed leaves by itself. Does not block.
//
// Returns 0, or -1 with errno: EEXIST, ENOENT, EBADF, EINVAL, EPERM, EFAULT, ENOMEM.
int toe_epoll_ctl(int epfd,
                  int op,
                  int fd,
                  struct epoll_event *event);

// Waits for events: fills in up to `max` of them. `timeout` in milliseconds, negative: no limit, 0: do not block.
// Readiness is looked at again before it is reported (TOE Manager thesis, section 3.3).
//
// Returns the number of events, 0 when the time is over, or -1 with errno: EINTR: a signal came; EINVAL: `max` is not
// positive, or `epfd` no epoll descriptor; EBADF; EFAULT.
int toe_epoll_wait(int epfd,
                   struct epoll_event *events,
                   int max,
                   int timeout);

// Sends `length` bytes of `file` from `offset` on, without the program's hands: a part a call, or all of it in one (TOE_ALL: to its
// end). The file's position stays. The bytes are those that the file has when they are taken, each one copied once.
//
// Blocks until all is in the engine's hands, unless the socket is non-blocking: then as much as fits. SO_SNDTIMEO limits the wait.
// A disk is waited for in any case.
//
// Returns the bytes sent: fewer than `length` where the file has ended; 0: it has no more. Or -1 with errno, if none were: EBADF: `file`
// is not open for reading; EINVAL: a negative offset; ESPIPE, EISDIR: what it is has no positions; EIO and others of read(2); and those
// of toe_send, with its SIGPIPE.
ssize_t toe_directwrite(int file,
                        int fd,
                        off_t offset,
                        size_t length);

// Receives `length` bytes into `file`, without the program's hands: at `offset`, or where the file stands when that is -1 (pipes, too,
// and what is open for appending). TOE_ALL: all that the peer sends.
//
// Blocks until all are written, or the stream has ended, unless the socket is non-blocking: then as many as are there. SO_RCVTIMEO limits
// the wait.
//
// Returns the bytes written: fewer than `length` where the stream, or the room for the file, has ended; 0: the stream has. Or -1 with
// errno, if none were: ENOSPC, EDQUOT, EFBIG (and SIGXFSZ: RLIMIT_FSIZE), EIO, EBADF: `file` is not open for writing; EAGAIN: a pipe is
// full, or nothing is there; and those of toe_recv. What has come and was not written is there for the next call.
ssize_t toe_directread(int fd,
                       int file,
                       off_t offset,
                       size_t length);

// Begins what toe_directwrite does, in a thread of the library's, whether the socket blocks or not: the program goes on at once, and may
// close both descriptors. Nothing else is to be sent on the socket until it is over. No SIGPIPE is raised.
//
// A file that the process has locks of (fcntl F_SETLK) is used by the program's own descriptor, because with the close of another one the locks would go:
// that one is to stay open, or it ends with EBADF. A lock that is taken while it is under way does not outlive an exec.
// A child made by fork() has nothing of the transfer; one made by _Fork() or clone() has a copy of the file's descriptor until it executes something
// or ends, and who reads from a pipe sees no end before.
//
// Does not block. Returns a handle for toe_transfer_end, or a null pointer with errno: EAGAIN: there can be no thread; EMFILE; EBADF,
// ENOTSOCK, EINVAL; ECONNREFUSED: there is no engine any more.
struct toe_transfer *toe_directwrite_begin(int file,
                                           int fd,
                                           off_t offset,
                                           size_t length);

// Begins what toe_directread does in the same way. Nothing else is to be received on the socket until it is over.
struct toe_transfer *toe_directread_begin(int fd,
                                          int file,
                                          off_t offset,
                                          size_t length);

// A descriptor that is readable when the transfer is over, for toe_poll, toe_epoll_ctl and the kernel's. It goes with toe_transfer_end.
//
// # Safety
// `transfer` is a handle that has not been ended.
int toe_transfer_fd(const struct toe_transfer *transfer);

// Bytes that are sent, or written, by now.
//
// # Safety
// `transfer` is a handle that has not been ended.
size_t toe_transfer_done(const struct toe_transfer *transfer);

// Ends it before its time, within a twentieth of a second: with ECANCELED, unless it is over before. Does not block.
//
// # Safety
// `transfer` is a handle that has not been ended.
void toe_transfer_cancel(const struct toe_transfer *transfer);

// Waits until the transfer is over and frees the handle. `done`, unless it is null: how many bytes went.
//
// Returns 0, or -1 with the errno of toe_directwrite or toe_directread that ended it, or ECANCELED. What came and was not written is there to be
// received.
//
// # Safety
// `transfer` is a handle that has not been ended; `done` is null or can be written to.
int toe_transfer_end(struct toe_transfer *transfer,
                     size_t *done);

// Makes a TCP socket on the engine, or a UDP socket, which is the kernel's: what it exchanges by a link of the engine's, or with another
// program of this machine, goes past the kernel. `domain`: AF_INET; `type`: SOCK_STREAM or SOCK_DGRAM, with SOCK_NONBLOCK and
// SOCK_CLOEXEC if wanted; `protocol`: 0, IPPROTO_TCP or IPPROTO_UDP. The descriptor is a real one of the kernel (of TCP an anchor of
// the engine's): it can be passed on, copied with toe_fcntl(F_DUPFD) and inherited; its last close ends the connection. A UDP socket
// that a child of fork has, too, hears by the kernel alone from then on; one that is passed on is to be closed here, or both hear a part.
//
// Does not block, but for attaching at first use. Any thread may call it; the same holds for every function here,
// also on the same descriptor at the same time.
//
// Returns the descriptor, or -1 with errno: EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT, EINVAL; EMFILE, ENFILE; the errors of toe_init.
int toe_socket(int domain,
               int type,
               int protocol);

// Remembers the local address (a struct sockaddr_in of `len` bytes) for toe_listen or toe_connect. Whether it can be
// had is found out there. Port 0 lets the engine choose. Does not block. A UDP socket has the name at once, and hears what comes there.
//
// Returns 0, or -1 with errno: EBADF, ENOTSOCK; EINVAL: already connected or listening, or `len` too small;
// EAFNOSUPPORT; EFAULT; of a UDP socket EADDRINUSE, EADDRNOTAVAIL, EACCES, and EINVAL: it has a name.
int toe_bind(int fd,
             const struct sockaddr *addr,
             socklen_t len);

// Listens at the bound address. Up to `backlog` connections wait for toe_accept (4096 at most). Waits for the engine's
// answer only. On a listener it changes the backlog. The port is the kernel's to give: it is taken there, too, as long as
// the socket listens, and whoever comes to it by the kernel's stack finds nobody.
//
// Returns 0, or -1 with errno: EBADF, ENOTSOCK; EINVAL: connected; EADDRINUSE; EADDRNOTAVAIL; EACCES: a port that the
// kernel does not let the program have; ENETDOWN: the engine has ended.
int toe_listen(int fd,
               int backlog);

// Takes a connection that came in (Command `Accept` of the host interface). `addr` may be NULL; otherwise the peer's
// address is written there, up to `*len` bytes, and `*len` set to its length.
//
// Blocks until there is one, unless the listener is non-blocking; SO_RCVTIMEO limits the wait.
//
// Returns the new descriptor (blocking, inherited over exec), or -1 with errno: EAGAIN: none now, or time over;
// EBADF, ENOTSOCK; EINVAL: not listening; EINTR: a signal came; EMFILE, ENFILE; ECONNRESET: the engine has ended.
int toe_accept(int fd,
               struct sockaddr *addr,
               socklen_t *len);

// Like toe_accept. `flags`: SOCK_NONBLOCK and SOCK_CLOEXEC, for the new descriptor. EINVAL: other flags.
int toe_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);

// Connects to `addr` (a struct sockaddr_in of `len` bytes). RFC 9293 section 3.9.1.1.
//
// Blocks until the peer has answered, unless the socket is non-blocking (EINPROGRESS; writability tells the end, SO_ERROR
// the result); SO_SNDTIMEO limits the wait (EINPROGRESS).
//
// Returns 0, or -1 with errno: EALREADY; EISCONN; ECONNREFUSED; ETIMEDOUT; ENETUNREACH: the engine has no route;
// EADDRINUSE, EADDRNOTAVAIL; EINTR: a signal came, the attempt goes on; ENETDOWN: the engine has ended; EBADF,
// ENOTSOCK, EINVAL, EAFNOSUPPORT, EFAULT.
//
// A UDP socket sends there and hears nobody else from then on, at once; an address of AF_UNSPEC undoes it.
int toe_connect(int fd,
                const struct sockaddr *addr,
                socklen_t len);

// Sends `len` bytes. `flags`: MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE, MSG_EOR.
//
// Blocks until all is in the engine's hands, unless the socket or the call is non-blocking: then as much as fits.
// SO_SNDTIMEO limits the wait. The bytes are copied: `buf` can be used again at once.
//
// Returns the bytes sent, or -1 with errno: EAGAIN: nothing fits now; EPIPE: closed or shut for sending (and SIGPIPE,
// without MSG_NOSIGNAL); ECONNRESET, ETIMEDOUT, …: why the connection ended, once; EINTR: a signal came before
// anything was sent; EBADF, ENOTSOCK, EFAULT; EOPNOTSUPP: other flags.
ssize_t toe_send(int fd,
                 const void *buf,
                 size_t len,
                 int flags);

// Like toe_send without flags.
ssize_t toe_write(int fd, const void *buf, size_t len);

// Like toe_send without flags, from `count` buffers in order (1024 at most).
ssize_t toe_writev(int fd, const struct iovec *iov, int count);

// Receives up to `len` bytes. `flags`: MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, MSG_TRUNC (throw away), MSG_NOSIGNAL.
//
// Blocks until something is there (with MSG_WAITALL: until `len` bytes are), unless the socket or the call is
// non-blocking; SO_RCVTIMEO limits the wait.
//
// Returns the bytes received, 0 at the end of the stream, or -1 with errno: EAGAIN: nothing now, or time over;
// ECONNRESET, ETIMEDOUT, …: why the connection ended, once, after all that had arrived; ENOTCONN; EINTR: a signal came
// before anything did; EBADF, ENOTSOCK, EFAULT; EOPNOTSUPP: other flags.
ssize_t toe_recv(int fd,
                 void *buf,
                 size_t len,
                 int flags);

// Like toe_recv without flags. With a length of 0 it returns 0 at once, and no datagram is taken.
ssize_t toe_read(int fd, void *buf, size_t len);

// Like toe_recv without flags, into `count` buffers in order (1024 at most).
ssize_t toe_readv(int fd, const struct iovec *iov, int count);

// Ends one direction or both: SHUT_WR sends FIN after all data, SHUT_RD makes toe_recv return 0 once nothing is left
// (RFC 9293 section 3.9.1.5 and Linux). On a listener SHUT_RD and SHUT_RDWR end it. Does not block.
//
// Returns 0, or -1 with errno: ENOTCONN; EBADF, ENOTSOCK; EINVAL: no such `how`.
int toe_shutdown(int fd,
                 int how);

// Closes a descriptor: a socket, an epoll descriptor, or any other. With a socket's last one the engine ends the
// connection by itself: FIN after all data; RST if received data was not read, or with SO_LINGER and time 0.
//
// Blocks only with SO_LINGER and a time, until all is acknowledged or the time is over.
//
// Returns 0, or -1 with errno EBADF.
int toe_close(int fd);

// The local address. Does not block. Returns 0, or -1 with errno: EBADF, ENOTSOCK, EFAULT.
int toe_getsockname(int fd, struct sockaddr *addr, socklen_t *len);

// The peer's address. Does not block. Returns 0, or -1 with errno: ENOTCONN, EBADF, ENOTSOCK, EFAULT.
int toe_getpeername(int fd, struct sockaddr *addr, socklen_t *len);

// Sets an option, as Linux's setsockopt. With effect: SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO, SO_RCVBUF, SO_SNDBUF (bytes;
// doubled, as in Linux), SO_RCVLOWAT, SO_KEEPALIVE, TCP_NODELAY, TCP_CORK, TCP_KEEPIDLE and TCP_KEEPINTVL (seconds),
// TCP_KEEPCNT, TCP_USER_TIMEOUT (milliseconds, RFC 5482), IP_RECVERR and IPV6_RECVERR (2: retransmissions that reach R1 of RFC
// 9293 section 3.8.3 are told, too, by ETIMEDOUT). A UDP socket has all that the kernel has. Does not block.
//
// Returns 0, or -1 with errno: ENOPROTOOPT: unknown; EINVAL: bad length or value; EDOM: bad time; EBADF, ENOTSOCK,
// EFAULT.
int toe_setsockopt(int fd,
                   int level,
                   int name,
                   const void *value,
                   socklen_t len);

// Reads an option, as Linux's getsockopt; also SO_ERROR (cleared by reading), SO_TYPE, SO_ACCEPTCONN, TCP_MAXSEG and
// TCP_INFO. Does not block.
//
// Returns 0, or -1 with errno: ENOPROTOOPT, EBADF, ENOTSOCK, EFAULT.
int toe_getsockopt(int fd,
                   int level,
                   int name,
                   void *value,
                   socklen_t *len);

// As fcntl, with an integer argument. On a socket: F_GETFL and F_SETFL know O_NONBLOCK; F_DUPFD and F_DUPFD_CLOEXEC make
// another descriptor of the same socket; all else, and every other descriptor, goes to the kernel. Does not block.
//
// Returns what fcntl returns, or -1 with errno: EBADF, EINVAL, EMFILE.
int toe_fcntl(int fd,
              int command,
              long argument);

// As poll, over sockets and other descriptors together. `timeout` in milliseconds, negative: no limit. Blocks until one
// of the `count` entries is ready.
//
// Returns the number of entries with events, 0 when the time is over, or -1 with errno: EINTR: a signal came; EFAULT.
int toe_poll(struct pollfd *fds,
             nfds_t count,
             int timeout);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OPENTOE_TOE_H */
