//! Rows of transfers between a file and a connection: what they are, and how `toe-load` is told. Made by `plan`, run by `clients`.
//!
//! The program that has the file is the one on the measured stack; over a link its peer is a kernel.

use crate::options::Link;
use crate::row::Direction;
use crate::sample::Stack;
use std::fmt;
use std::time::Duration;

/// A transfer of a file, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transfer {
    pub(crate) shape: Shape,
    pub(crate) direction: Direction,
    pub(crate) method: Method,
}

/// How much in what parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// 1 GiB, 64 KiB a call.
    Large,
    /// A cell of the directwrite paper: so many megabytes in packets of so many bytes, which are those of a call (its `count`):
    /// the paper makes one packet of each.
    Paper { megabytes: u32, packet: u32 },
}

/// How OpenTOE moves the bytes. Linux does what it has for the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// read and send, recv and write.
    ReadWrite,
    /// sendfile.
    Sendfile,
    /// The paper's Method I: directwrite, directread, a part a call.
    Part,
    /// The paper's Method II: all in one call.
    Whole,
    /// The same beside the program.
    Beside,
}

/// The paper's runs of a cell. An unshaped one takes milliseconds, and a round of it makes as many; over a slow wire a round is one transfer, and
/// as many are made as there are rounds.
pub(crate) const RUNS: u32 = 50;
pub(crate) const SIZES_MB: [u32; 3] = [2, 5, 10];
pub(crate) const PACKETS: [u32; 3] = [128, 512, 1024];

/// The rows of a link.
pub(crate) fn all(link: Link) -> Vec<Transfer> {
    use Method::{Beside, Part, ReadWrite, Sendfile, Whole};
    let mut transfers = Vec::new();
    let mut add = |shape, direction, methods: &[Method]| {
        transfers.extend(methods.iter().map(|&method| Transfer { shape, direction, method }));
    };
    if matches!(link, Link::Local | Link::Veth) {
        add(Shape::Large, Direction::Send, &[Whole, ReadWrite, Sendfile, Part, Beside]);
        add(Shape::Large, Direction::Receive, &[Whole, ReadWrite, Part, Beside]);
    }
    if link != Link::Tap {
        for direction in [Direction::Send, Direction::Receive] {
            for megabytes in SIZES_MB {
                for packet in PACKETS {
                    add(Shape::Paper { megabytes, packet }, direction, &[ReadWrite, Part, Whole]);
                }
            }
        }
    }
    transfers
}

impl Transfer {
    /// How long the wire takes for it, with its headers.
    pub(crate) fn time_at(self, rate_kbit: u32) -> Duration {
        Duration::from_secs_f64(f64::from(self.bytes()) * 8.0 / f64::from(rate_kbit) * 1.1e-3)
    }

    pub(crate) fn mib(self) -> f64 {
        f64::from(self.bytes()) / 1_048_576.0
    }

    /// Bytes of the file.
    fn bytes(self) -> u32 {
        match self.shape {
            Shape::Large => 1 << 30,
            Shape::Paper { megabytes, .. } => megabytes * 1_000_000,
        }
    }

    /// What Linux is compared by. What runs beside the program is to be no slower than the kernel's own way to do without the program.
    fn on(self, stack: Stack) -> Method {
        match (stack, self.method, self.direction) {
            (Stack::Toe, method, _) => method,
            (Stack::Linux, Method::Sendfile | Method::Beside, Direction::Send) => Method::Sendfile,
            (Stack::Linux, ..) => Method::ReadWrite,
        }
    }

    /// It is by calls that only OpenTOE's library has.
    pub(crate) fn is_native(self, stack: Stack) -> bool {
        !matches!(self.on(stack), Method::ReadWrite | Method::Sendfile)
    }

    /// toe-load's words for it.
    pub(crate) fn words(self, stack: Stack) -> String {
        let direction = match self.direction {
            Direction::Send => "send",
            Direction::Receive => "receive",
        };
        let parts = match self.shape {
            Shape::Large => String::new(),
            Shape::Paper { packet, .. } => format!(" --chunk {packet}"),
        };
        let method = self.on(stack);
        format!("transfer --method {method} --direction {direction} --bytes {}{parts}", self.bytes())
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::ReadWrite => "rw",
            Method::Sendfile => "sendfile",
            Method::Part => "part",
            Method::Whole => "whole",
            Method::Beside => "beside",
        })
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            Shape::Large => f.write_str("1GiB")?,
            Shape::Paper { megabytes, packet } => write!(f, "paper-{megabytes}MB-{packet}B")?,
        }
        let direction = match self.direction {
            Direction::Send => "send",
            Direction::Receive => "receive",
        };
        write!(f, "-{direction}-{}", self.method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_does_what_it_has() {
        let of = |method, direction| Transfer { shape: Shape::Large, direction, method };
        let words = |transfer: Transfer, stack| transfer.words(stack).split(' ').nth(2).map(str::to_owned);
        for (method, direction, linux, toe) in [
            (Method::Whole, Direction::Send, "rw", "whole"),
            (Method::Beside, Direction::Send, "sendfile", "beside"),
            (Method::Beside, Direction::Receive, "rw", "beside"),
            (Method::Sendfile, Direction::Send, "sendfile", "sendfile"),
        ] {
            let transfer = of(method, direction);
            assert_eq!(words(transfer, Stack::Linux).as_deref(), Some(linux));
            assert_eq!(words(transfer, Stack::Toe).as_deref(), Some(toe));
            assert!(!transfer.is_native(Stack::Linux));
        }
    }
}
