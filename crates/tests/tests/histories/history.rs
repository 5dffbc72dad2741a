//! What processes have written down of their calls, as `crates/tests/programs/histories.c` lays it out.

/// Processes that write, each its own log.
pub const PROCESSES: usize = 4;
/// Connections at a time; what a connection is called is this times a generation, plus its place.
pub const SLOTS: u32 = 8;
/// Places whose connections stay, nearly.
pub const LONG_SLOTS: u32 = 4;
/// The page of marks in front of the logs.
const MARKS_LEN: usize = 4096;
const EVENT_LEN: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    Connect,
    Accept,
    Send,
    Recv,
    Poll,
    Epoll,
    Unread,
    State,
    Shutdown,
    Close,
}

impl Call {
    const ALL: [Call; 10] = [
        Call::Connect,
        Call::Accept,
        Call::Send,
        Call::Recv,
        Call::Poll,
        Call::Epoll,
        Call::Unread,
        Call::State,
        Call::Shutdown,
        Call::Close,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
    /// A listener: `connection` is which.
    Listener,
}

/// A call, when it was made and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds of CLOCK_MONOTONIC before and after the call.
    pub begin: u64,
    pub end: u64,
    pub call: Call,
    pub side: Side,
    pub connection: u32,
    /// What was returned, or the error's number, negative; of a poll the events, of TCP_INFO the state.
    pub result: i64,
}

/// The listener that a connection goes to: as `server_of` and `listener_of` of the program have it.
pub fn listener_of(connection: u32) -> u32 {
    let slot = connection % SLOTS;
    let processes = PROCESSES as u32;
    processes * u32::from(slot >= SLOTS - 2) + (slot + 1 + slot / processes) % processes
}

fn event(bytes: &[u8]) -> Event {
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let side = [Side::Client, Side::Server, Side::Listener][usize::from(bytes[25])];
    Event {
        begin: long(0),
        end: long(8),
        connection: word(16),
        result: i64::from(word(20).cast_signed()),
        call: Call::ALL[usize::from(bytes[24])],
        side,
    }
}

/// The processes' logs in the file that they have written.
pub fn read(file: &[u8]) -> Vec<Vec<Event>> {
    let logs = &file[MARKS_LEN..];
    let log = |log: &[u8]| {
        let count = u64::from_le_bytes(log[..8].try_into().expect("eight bytes")) as usize;
        log[8..].chunks_exact(EVENT_LEN).take(count).map(event).collect()
    };
    logs.chunks_exact(logs.len() / PROCESSES).map(log).collect()
}
