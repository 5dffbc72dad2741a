//! UDP in scripts: what the far end sends, what the program hears and sends, and what must come of it. A room of its own beside connections: its
//! statements ([`parse`]), its packets ([`packet`]), and the steps as the runner takes them. Stacks that have datagrams are [`DatagramStack`]s.

pub mod packet;
pub(crate) mod parse;

use crate::stack::{LISTEN_PORT, StackError};
use packet::{FAR_PORT, Sent};

/// Whether a checksum is there, and right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    #[default]
    Right,
    /// Zero: left out.
    None,
    Wrong,
}

/// A datagram of the far end's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injected {
    pub v6: bool,
    /// Bytes of text.
    pub len: u32,
    /// The stack's port.
    pub to: u16,
    pub checksum: Checksum,
    /// What the UDP header says that its length is, in the place of what it is.
    pub header_len: Option<u16>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatagramAct {
    /// The program's socket, at [`LISTEN_PORT`] of all addresses.
    Bind,
    Inject(Injected),
    /// What the program has heard: so many bytes of the far end's; `None`: nothing.
    Receive(Option<u32>),
    /// The program sends so many bytes to the far end.
    Reply(u32),
    /// The stack sends these, with that TTL if it is said.
    Expect {
        len: u32,
        ttl: Option<u8>,
    },
    /// The stack says that nobody is at the port, and quotes what was sent there last.
    ExpectUnreachable,
}

/// A stack with a program that has a UDP socket.
pub trait DatagramStack {
    fn bind(&mut self) -> Result<(), StackError>;

    /// A packet of the far end's arrives.
    fn packet_arrives(&mut self, packet: &[u8], v6: bool) -> Result<(), StackError>;

    /// What the program has heard, and not yet been asked for.
    fn heard(&mut self) -> Option<Vec<u8>>;

    /// The program sends to the far end.
    fn reply(&mut self, bytes: &[u8]) -> Result<(), StackError>;

    /// What the stack has sent that is no segment.
    fn packet_sent(&mut self) -> Option<Sent>;
}

/// What ends a script.
pub(crate) enum Ended {
    Wrong(String),
    Trouble(StackError),
}

impl From<StackError> for Ended {
    fn from(error: StackError) -> Ended {
        Ended::Trouble(error)
    }
}

/// What the steps before have left.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// What was injected last.
    injected: Vec<u8>,
}

impl Datagrams {
    pub fn step(&mut self, act: &DatagramAct, stack: &mut dyn DatagramStack) -> Result<(), Ended> {
        if !matches!(act, DatagramAct::Expect { .. } | DatagramAct::ExpectUnreachable) {
            nothing_more(stack)?;
        }
        match act {
            DatagramAct::Bind => stack.bind()?,
            DatagramAct::Inject(injected) => {
                self.injected = packet::injected(injected);
                stack.packet_arrives(&self.injected, injected.v6)?;
            }
            DatagramAct::Receive(wanted) => {
                let wanted = wanted.map(packet::text);
                let heard = stack.heard();
                if heard != wanted {
                    let words = |text: Option<&Vec<u8>>| {
                        text.map_or("nothing".to_owned(), |text| format!("{} bytes", text.len()))
                    };
                    let (heard, wanted) = (words(heard.as_ref()), words(wanted.as_ref()));
                    return Err(Ended::Wrong(format!("the program heard {heard} instead of {wanted}")));
                }
            }
            DatagramAct::Reply(len) => stack.reply(&packet::text(*len))?,
            DatagramAct::Expect { len, ttl } => {
                let sent = stack.packet_sent().ok_or_else(sent_nothing)?;
                packet::is_reply(&sent, *len, *ttl).map_err(Ended::Wrong)?;
            }
            DatagramAct::ExpectUnreachable => {
                let sent = stack.packet_sent().ok_or_else(sent_nothing)?;
                packet::is_unreachable(&sent, &self.injected).map_err(Ended::Wrong)?;
            }
        }
        Ok(())
    }
}

fn sent_nothing() -> Ended {
    Ended::Wrong("the stack sent nothing".to_owned())
}

/// Nothing was sent that no line expects, and nothing was heard that no line asks for.
pub(crate) fn nothing_more(stack: &mut dyn DatagramStack) -> Result<(), Ended> {
    match stack.packet_sent() {
        None => Ok(()),
        Some(sent) => {
            Err(Ended::Wrong(format!("the stack sent what no line expects: {}", packet::describe(&sent))))
        }
    }
}

/// The two ports: the stack's and the far end's.
pub const PORTS: (u16, u16) = (LISTEN_PORT, FAR_PORT);
