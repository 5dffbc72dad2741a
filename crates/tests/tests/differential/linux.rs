//! Numbers of Linux's interface (x86-64 and AArch64 have the same) that the calls are made of.

pub const EINTR: i64 = 4;
pub const EAGAIN: i64 = 11;
pub const EINVAL: i64 = 22;
pub const EPIPE: i64 = 32;
pub const ECONNRESET: i64 = 104;
pub const EISCONN: i64 = 106;
pub const EALREADY: i64 = 114;
pub const EINPROGRESS: i64 = 115;

pub const AF_UNIX: i64 = 1;
pub const AF_INET: i64 = 2;
pub const SOCK_STREAM: i64 = 1;
pub const SOCK_DGRAM: i64 = 2;
pub const NONBLOCK: i64 = 0o4000;
pub const CLOEXEC: i64 = 0o2000000;
pub const O_APPEND: i64 = 0o2000;
pub const O_ASYNC: i64 = 0o20000;

pub const F_DUPFD: i64 = 0;
pub const F_GETFD: i64 = 1;
pub const F_SETFD: i64 = 2;
pub const F_GETFL: i64 = 3;
pub const F_SETFL: i64 = 4;
pub const F_DUPFD_CLOEXEC: i64 = 1030;

pub const FIONREAD: i64 = 0x541b;
pub const FIONBIO: i64 = 0x5421;
pub const SIOCOUTQ: i64 = 0x5411;
pub const SIOCATMARK: i64 = 0x8905;

pub const MSG_OOB: i64 = 0x1;
pub const MSG_PEEK: i64 = 0x2;
pub const MSG_TRUNC: i64 = 0x20;
pub const MSG_DONTWAIT: i64 = 0x40;
pub const MSG_EOR: i64 = 0x80;
pub const MSG_WAITALL: i64 = 0x100;
pub const MSG_ERRQUEUE: i64 = 0x2000;
pub const MSG_NOSIGNAL: i64 = 0x4000;
pub const MSG_MORE: i64 = 0x8000;

pub const POLLIN: i64 = 0x1;
pub const POLLPRI: i64 = 0x2;
pub const POLLOUT: i64 = 0x4;
pub const POLLRDNORM: i64 = 0x40;
pub const POLLWRNORM: i64 = 0x100;
pub const POLLERR: i64 = 0x8;
pub const POLLRDHUP: i64 = 0x2000;

pub const EPOLL_CTL_ADD: i64 = 1;
pub const EPOLL_CTL_DEL: i64 = 2;
pub const EPOLL_CTL_MOD: i64 = 3;
pub const EPOLLEXCLUSIVE: i64 = 1 << 28;
pub const EPOLLONESHOT: i64 = 1 << 30;
pub const EPOLLET: i64 = 1 << 31;

pub const SOL_SOCKET: i64 = 1;
pub const SO_REUSEADDR: i64 = 2;
pub const SO_TYPE: i64 = 3;
pub const SO_ERROR: i64 = 4;
pub const SO_BROADCAST: i64 = 6;
pub const SO_KEEPALIVE: i64 = 9;
pub const SO_OOBINLINE: i64 = 10;
pub const SO_PRIORITY: i64 = 12;
pub const SO_LINGER: i64 = 13;
pub const SO_REUSEPORT: i64 = 15;
pub const SO_RCVLOWAT: i64 = 18;
pub const SO_SNDLOWAT: i64 = 19;
pub const SO_RCVTIMEO: i64 = 20;
pub const SO_SNDTIMEO: i64 = 21;
pub const SO_SNDBUF: i64 = 7;
pub const SO_RCVBUF: i64 = 8;
pub const SO_TIMESTAMP: i64 = 29;
pub const SO_SNDBUFFORCE: i64 = 32;
pub const SO_RCVBUFFORCE: i64 = 33;
pub const SO_TIMESTAMPNS: i64 = 35;
pub const SO_TIMESTAMPING: i64 = 37;
pub const SO_ACCEPTCONN: i64 = 30;
pub const SO_PROTOCOL: i64 = 38;
pub const SO_DOMAIN: i64 = 39;
pub const SO_RXQ_OVFL: i64 = 40;
pub const SO_PEEK_OFF: i64 = 42;

pub const IPPROTO_IP: i64 = 0;
pub const IP_TOS: i64 = 1;
pub const IP_TTL: i64 = 2;
pub const IP_MINTTL: i64 = 21;
pub const IP_PKTINFO: i64 = 8;
pub const IP_MTU_DISCOVER: i64 = 10;
pub const IP_RECVERR: i64 = 11;
pub const IP_RECVTTL: i64 = 12;
pub const IP_RECVTOS: i64 = 13;

pub const SOL_UDP: i64 = 17;
pub const UDP_SEGMENT: i64 = 103;
pub const UDP_GRO: i64 = 104;

pub const IPPROTO_TCP: i64 = 6;
pub const TCP_NODELAY: i64 = 1;
pub const TCP_MAXSEG: i64 = 2;
pub const TCP_CORK: i64 = 3;
pub const TCP_KEEPIDLE: i64 = 4;
pub const TCP_KEEPINTVL: i64 = 5;
pub const TCP_KEEPCNT: i64 = 6;
pub const TCP_SYNCNT: i64 = 7;
pub const TCP_LINGER2: i64 = 8;
pub const TCP_DEFER_ACCEPT: i64 = 9;
pub const TCP_INFO: i64 = 11;
pub const TCP_QUICKACK: i64 = 12;
pub const TCP_CONGESTION: i64 = 13;
pub const TCP_USER_TIMEOUT: i64 = 18;

/// A connection's states, as TCP_INFO tells them.
pub const ESTABLISHED: i64 = 1;
pub const CLOSE: i64 = 7;
pub const LISTEN: i64 = 10;
