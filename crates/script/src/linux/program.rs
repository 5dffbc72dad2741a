//! The program above Linux's TCP: plain non-blocking sockets.

use crate::packet::{FAR_ADDR, STACK_ADDR};
use crate::script::{Call, ConnName, Header, InfoName, SettingName, SocketOption, StateName};
use crate::stack::{LISTEN_PORT, Outcome, StackError, far_port};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType, sockopt,
};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::Duration;
use toe_abi::errno::Errno;

/// MSG_FASTOPEN, which rustix does not name.
pub const MSG_FASTOPEN: u32 = 0x2000_0000;

/// Whatever the machine's own choice is.
const CONGESTION: &str = "cubic";

#[derive(Debug)]
pub(super) struct Program {
    congestion: String,
    listener: Option<OwnedFd>,
    sockets: [Option<OwnedFd>; ConnName::MAX as usize],
    inherited: Vec<(SocketOption, u32)>,
}

type Result<T> = core::result::Result<T, StackError>;

fn failed(doing: &str) -> impl Fn(rustix::io::Errno) -> StackError + '_ {
    move |error| StackError::new(doing, error)
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error() as u16)
}

fn outcome(result: rustix::io::Result<()>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(rustix::io::Errno::AGAIN) => Outcome::Nothing,
        Err(error) => Outcome::Error(errno(error)),
    }
}

impl Program {
    pub(super) fn new(header: &Header) -> Program {
        let chosen = header.setup.iter().find(|setting| setting.name == SettingName::Congestion);
        Program {
            congestion: chosen.map_or_else(|| CONGESTION.to_owned(), |setting| setting.value.clone()),
            listener: None,
            sockets: Default::default(),
            inherited: Vec::new(),
        }
    }

    pub(super) fn call(&mut self, conn: ConnName, call: &Call, bytes: &[u8]) -> Result<Outcome> {
        let at = usize::from(conn.0);
        Ok(match call {
            Call::Listen { backlog } => self.listen(*backlog)?,
            Call::CloseListener => {
                self.listener = None;
                Outcome::Done
            }
            Call::Connect { from, fast } => self.connect(conn, *from, fast.map(|_| bytes))?,
            Call::Connected(_) => self.connected(at)?,
            Call::Accept(_) => self.accept(conn)?,
            Call::Send { more, urgent, end_of_record, .. } => {
                let more = if *more { SendFlags::MORE } else { SendFlags::empty() };
                let urgent = if *urgent { SendFlags::OOB } else { SendFlags::empty() };
                let end_of_record = if *end_of_record { SendFlags::EOR } else { SendFlags::empty() };
                self.send(at, bytes, more | urgent | end_of_record | SendFlags::NOSIGNAL)?
            }
            Call::Read { len, .. } => self.read(at, *len as usize)?,
            Call::Shutdown { read, .. } => {
                let how = if *read { Shutdown::Read } else { Shutdown::Write };
                outcome(rustix::net::shutdown(self.socket(at)?, how))
            }
            Call::Close => self.close(at)?,
            Call::Abort => {
                sockopt::set_socket_linger(self.socket(at)?, Some(Duration::ZERO))
                    .map_err(failed("setting SO_LINGER"))?;
                self.close(at)?
            }
            Call::Set(option, value) => {
                match &self.sockets[at] {
                    Some(socket) => set(socket, *option, *value)?,
                    None => self.inherited.push((*option, *value)),
                }
                Outcome::Done
            }
            Call::ErrorIs(_) => {
                let error = sockopt::socket_error(self.socket(at)?).map_err(failed("asking for SO_ERROR"))?;
                Outcome::Error(error.map_or_else(errno, |()| Errno::OK))
            }
            Call::AtMark(_) => Outcome::Number(i64::from(is_at_mark(self.socket(at)?)?)),
            Call::State(_) => Outcome::State(state(conn)?),
            Call::Info(name, _) => Outcome::Number(info(conn, *name)?),
        })
    }

    fn socket(&self, at: usize) -> Result<&OwnedFd> {
        let none = || StackError("the program has no such connection: connect or accept first".to_owned());
        self.sockets[at].as_ref().ok_or_else(none)
    }

    fn new_socket(&self) -> Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
            .map_err(failed("making a socket"))?;
        sockopt::set_socket_reuseaddr(&socket, true).map_err(failed("setting SO_REUSEADDR"))?;
        // Urgent bytes stay in the stream, where their place is checked.
        sockopt::set_socket_oobinline(&socket, true).map_err(failed("setting SO_OOBINLINE"))?;
        sockopt::set_tcp_congestion(&socket, &self.congestion).map_err(failed("setting TCP_CONGESTION"))?;
        for (option, value) in &self.inherited {
            set(&socket, *option, *value)?;
        }
        Ok(socket)
    }

    fn listen(&mut self, backlog: u32) -> Result<Outcome> {
        let socket = self.new_socket()?;
        rustix::net::bind(&socket, &SocketAddrV4::new(STACK_ADDR, LISTEN_PORT)).map_err(failed("binding"))?;
        let result = rustix::net::listen(&socket, backlog as i32);
        self.listener = Some(socket);
        Ok(outcome(result))
    }

    fn connect(&mut self, conn: ConnName, from: u16, fast: Option<&[u8]>) -> Result<Outcome> {
        let socket = self.new_socket()?;
        if from != 0 {
            rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, from))
                .map_err(failed("binding"))?;
        }
        let to = SocketAddrV4::new(FAR_ADDR, far_port(conn));
        let result = match fast {
            None => rustix::net::connect(&socket, &to).map(|()| 0),
            Some(bytes) => {
                let flags = SendFlags::from_bits_retain(MSG_FASTOPEN) | SendFlags::NOSIGNAL;
                rustix::net::sendto(&socket, bytes, flags, &to)
            }
        };
        self.sockets[usize::from(conn.0)] = Some(socket);
        Ok(match result {
            Ok(taken) if fast.is_some() => Outcome::Number(taken as i64),
            Err(rustix::io::Errno::INPROGRESS) if fast.is_some() => Outcome::Number(0),
            Ok(_) | Err(rustix::io::Errno::INPROGRESS) => Outcome::Done,
            Err(error) => Outcome::Error(errno(error)),
        })
    }

    fn connected(&mut self, at: usize) -> Result<Outcome> {
        let socket = self.socket(at)?;
        let error = sockopt::socket_error(socket).map_err(failed("asking for SO_ERROR"))?;
        Ok(match error {
            Err(error) => Outcome::Error(errno(error)),
            Ok(()) if rustix::net::getpeername(socket).is_ok() => Outcome::Done,
            Ok(()) => Outcome::Nothing,
        })
    }

    fn accept(&mut self, conn: ConnName) -> Result<Outcome> {
        let listener = self.listener.as_ref().ok_or_else(|| StackError("nobody listens".to_owned()))?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        Ok(match rustix::net::accept_with(listener, flags) {
            Ok(socket) => {
                let far = rustix::net::getpeername(&socket).ok().flatten().and_then(port_of);
                // Who has been reset already cannot say who it was.
                if far.is_some_and(|port| port != far_port(conn)) {
                    return Err(StackError(format!("accepted from {far:?}, not {}", far_port(conn))));
                }
                self.sockets[usize::from(conn.0)] = Some(socket);
                Outcome::Done
            }
            Err(rustix::io::Errno::AGAIN) => Outcome::Nothing,
            Err(error) => Outcome::Error(errno(error)),
        })
    }

    fn send(&mut self, at: usize, bytes: &[u8], flags: SendFlags) -> Result<Outcome> {
        Ok(match rustix::net::send(self.socket(at)?, bytes, flags) {
            Ok(sent) if sent == bytes.len() => Outcome::Done,
            Ok(sent) => return Err(StackError(format!("only {sent} bytes found room: send less"))),
            Err(error) => outcome(Err(error)),
        })
    }

    fn read(&mut self, at: usize, len: usize) -> Result<Outcome> {
        let mut bytes = vec![0; len];
        let mut got = 0;
        while got < len {
            match rustix::net::recv(self.socket(at)?, &mut bytes[got..], RecvFlags::empty()) {
                Ok((0, _)) if got == 0 => return Ok(Outcome::EndOfFile),
                Ok((0, _)) => break,
                Ok((n, _)) => got += n,
                Err(rustix::io::Errno::AGAIN) if got == 0 => return Ok(Outcome::Nothing),
                Err(error) if got == 0 => return Ok(Outcome::Error(errno(error))),
                Err(_) => break,
            }
        }
        bytes.truncate(got);
        Ok(Outcome::Bytes(bytes))
    }

    fn close(&mut self, at: usize) -> Result<Outcome> {
        self.socket(at)?;
        self.sockets[at] = None;
        Ok(Outcome::Done)
    }
}

fn port_of(addr: SocketAddrAny) -> Option<u16> {
    SocketAddrV4::try_from(addr).ok().map(|addr| addr.port())
}

fn set(socket: &OwnedFd, option: SocketOption, value: u32) -> Result<()> {
    let seconds = Duration::from_secs(u64::from(value));
    match option {
        SocketOption::NoDelay => sockopt::set_tcp_nodelay(socket, value != 0),
        SocketOption::Cork => sockopt::set_tcp_cork(socket, value != 0),
        SocketOption::KeepAlive => sockopt::set_socket_keepalive(socket, value != 0),
        SocketOption::KeepIdle => sockopt::set_tcp_keepidle(socket, seconds),
        SocketOption::KeepInterval => sockopt::set_tcp_keepintvl(socket, seconds),
        SocketOption::KeepCount => sockopt::set_tcp_keepcnt(socket, value),
        SocketOption::UserTimeoutMs => sockopt::set_tcp_user_timeout(socket, value),
        SocketOption::ReceiveBuffer => sockopt::set_socket_recv_buffer_size(socket, value as usize),
        SocketOption::TimeToLive => sockopt::set_ip_ttl(socket, value),
        SocketOption::ReceiveErrors => set_recverr(socket, value != 0),
        SocketOption::DeferAccept => return set_by_python(socket, TCP_DEFER_ACCEPT, value),
        SocketOption::NotSentLowWater => return set_by_python(socket, TCP_NOTSENT_LOWAT, value),
    }
    .map_err(failed("setting an option"))
}

/// SIOCATMARK, which nothing without unsafe offers: a process that has the socket as its standard input asks.
fn is_at_mark(socket: &OwnedFd) -> Result<bool> {
    const ASK: &str = "import fcntl, struct; print(struct.unpack('i', fcntl.ioctl(0, 0x8905, bytes(4)))[0])";
    let trouble = |error| StackError::new("asking for SIOCATMARK by python3", error);
    let socket = socket.try_clone().map_err(trouble)?;
    let output =
        std::process::Command::new("python3").args(["-c", ASK]).stdin(socket).output().map_err(trouble)?;
    match output.stdout.trim_ascii() {
        b"1" => Ok(true),
        b"0" => Ok(false),
        _ => Err(StackError(format!("SIOCATMARK: {}", String::from_utf8_lossy(&output.stderr)))),
    }
}

/// IP_RECVERR, which rustix does not name.
fn set_recverr(socket: &OwnedFd, on: bool) -> rustix::io::Result<()> {
    nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::Ipv4RecvErr, &on)
        .map_err(|error| rustix::io::Errno::from_raw_os_error(error as i32))
}

const TCP_DEFER_ACCEPT: u32 = 9;
const TCP_NOTSENT_LOWAT: u32 = 25;

/// An option of TCP's that nothing without unsafe offers: a process that has the socket as its standard input sets it.
fn set_by_python(socket: &OwnedFd, option: u32, value: u32) -> Result<()> {
    const SET: &str =
        "import socket, sys; socket.socket(fileno=0).setsockopt(6, int(sys.argv[1]), int(sys.argv[2]))";
    let trouble = |error| StackError::new("setting an option by python3", error);
    let socket = socket.try_clone().map_err(trouble)?;
    let mut command = std::process::Command::new("python3");
    command.args(["-c", SET, &option.to_string(), &value.to_string()]).stdin(socket);
    let status = command.status().map_err(trouble)?;
    if status.success() { Ok(()) } else { Err(StackError(format!("option {option}: {status}"))) }
}

/// The state of a connection, which the program may not have any more.
fn state(conn: ConnName) -> Result<StateName> {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp")
        .map_err(|error| StackError::new("reading /proc/thread-self/net/tcp", error))?;
    let far = format!(":{:04X}", far_port(conn));
    // sl local_address rem_address st …
    let found = table.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace().skip(2);
        words.next()?.ends_with(&far).then(|| words.next()).flatten()
    });
    Ok(match found {
        Some("01") => StateName::Established,
        Some("02") => StateName::SynSent,
        Some("03" | "0C") => StateName::SynReceived,
        Some("04") => StateName::FinWait1,
        Some("05") => StateName::FinWait2,
        Some("06") => StateName::TimeWait,
        Some("08") => StateName::CloseWait,
        Some("09") => StateName::LastAck,
        Some("0B") => StateName::Closing,
        _ => StateName::Closed,
    })
}

/// A figure of `ss -i`.
fn info(conn: ConnName, name: InfoName) -> Result<i64> {
    let output = std::process::Command::new("ss")
        .args(["-tinH", "dport", "=", &format!(":{}", far_port(conn))])
        .output()
        .map_err(|error| StackError::new("running ss", error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let field =
        |key: &str| text.split_whitespace().find_map(|word| word.strip_prefix(key)).map(str::to_owned);
    let in_us = |ms: String| ms.parse::<f64>().ok().map(|ms| (ms * 1000.0) as i64);
    let number = |value: String| value.parse().ok();
    let value = match name {
        // `ss` does not show it.
        InfoName::CaState => None,
        InfoName::Cwnd => field("cwnd:").and_then(number),
        InfoName::Ssthresh => field("ssthresh:").map_or(Some(i64::MAX), number),
        InfoName::Mss => field("mss:").and_then(number),
        InfoName::Rto => field("rto:").and_then(in_us),
        InfoName::Srtt => {
            field("rtt:").and_then(|rtt| in_us(rtt.split('/').next().unwrap_or_default().to_owned()))
        }
        InfoName::Retransmits => field("retrans:")
            .map_or(Some(0), |all| number(all.rsplit('/').next().unwrap_or_default().to_owned())),
    };
    value.ok_or_else(|| StackError(format!("ss tells no {name:?}: {text}")))
}
