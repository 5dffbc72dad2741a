//! `toe capture`: packets as an engine sees them, in pcapng.
//!
//! The engine sends records over a stream ([`toe_abi::capture`]); here they become blocks ([`crate::pcapng`]). What has
//! come is written out before this waits for more, so that a reader behind a pipe sees packets as they come.

use crate::Failure;
use crate::client::{Client, ClientError};
use crate::pcapng::Writer;
use rustix::fs::{MemfdFlags, SealFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use toe_abi::attach::{Reply, ReportKind, Request};
use toe_abi::capture::{Filter, LOCAL_INTERFACE, Record, RecordKind, SNAPLEN_MAX};
use toe_abi::report::{PortReport, StatusReport};
use zerocopy::FromBytes;

/// Bytes taken from the stream at once.
const CHUNK: usize = 256 << 10;

/// Capture packets as an engine sees them, in pcapng
///
/// Those of its ports, and what goes between two of its programs and never touches an interface: there each segment is
/// shown as the frame that it would be. A comment on each packet says which process sent or got it, and, where the engine
/// dropped it, the counter of 'toe status' under which.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
FILTER is in the language of tcpdump, a part of it:
  host A  net A/N  port N  portrange N-M      each with 'src' or 'dst' before it, too
  tcp  udp  icmp  icmp6  arp  ip  ip6         tcp port 80 is short for tcp and port 80
  pid N                                       process N has an end of the connection
  dropped                                     the engine dropped it
  and  or  not  ( )                           'and' and 'or' bind alike, from the left

EXAMPLES:
  toe capture | tcpdump -r - -n
  toe capture --port local -w web.pcapng tcp port 80
  toe capture 'pid 4711 and not port 22' | wireshark -k -i -
  toe capture -s 128 -c 1000 dropped -w drops.pcapng

Connections whose bytes go past the engine, from one program's memory to the other's, come back to it for good when a
capture wants them. Only the engine's own user, and root, may capture.")]
pub struct Args {
    /// What to capture; everything when left out
    #[arg(value_name = "FILTER", trailing_var_arg = false)]
    filter: Vec<String>,
    /// Write to this file, not to the standard output
    #[arg(short, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Stop after so many packets
    #[arg(short, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Bytes of each packet at most
    #[arg(short, value_name = "SNAPLEN", default_value_t = SNAPLEN_MAX,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(SNAPLEN_MAX)))]
    snaplen: u32,
    /// Name of the engine ('default' unless given)
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only this port: 'local', or a name of 'toe status' with or without its driver
    #[arg(long, value_name = "IF")]
    port: Option<String>,
}

pub fn capture(args: &Args) -> Result<u8, Failure> {
    let text = args.filter.join(" ");
    Filter::parse(&text).map_err(|error| {
        Failure::with_status(format!("the filter '{text}': {error}; see 'toe capture --help'"), 2)
    })?;
    let client = Client::find(args.name.as_deref())?;
    let status: StatusReport = client.report(ReportKind::Status)?;
    let interface = args.port.as_deref().map(|port| find_interface(&status.ports, port)).transpose()?;
    let out = open_output(args)?;
    let stream = start(&client, args.snaplen, interface, &text)?;
    let mut writer = Writer::new(out, &status, args.snaplen, &text).map_err(|error| cannot_write(&error))?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::new(format!("signals cannot be caught: {error}")))?;
    let closer = signals.handle();
    let taken = std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in signals.forever() {
                // An engine that is gone has ended the stream as well.
                let _ = client.ask(Request::EndCapture);
            }
        });
        let taken = take_packets(stream, &mut writer, args.count);
        closer.close();
        taken
    })?;
    let taken = Taken { packets: writer.packets(), ..taken };
    eprintln!("toe: {taken}");
    Ok(0)
}

/// What came of a capture.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    packets: u64,
    lost: u64,
    /// The engine said that nothing follows, or enough came.
    is_whole: bool,
}

impl std::fmt::Display for Taken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} captured, {} dropped by the buffer", self.packets, self.lost)?;
        if self.is_whole { Ok(()) } else { write!(f, "; the engine has ended") }
    }
}

fn find_interface(ports: &[PortReport], name: &str) -> Result<u16, Failure> {
    if name == "local" {
        return Ok(LOCAL_INTERFACE);
    }
    let is_it = |port: &&PortReport| {
        let interface = port.name.split_once(':').map_or("", |(_, rest)| rest);
        port.name == name || interface.split('?').next() == Some(name)
    };
    let port = ports.iter().find(is_it).ok_or_else(|| {
        let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
        Failure::with_status(format!("the engine has no port '{name}'; it has: local {}", names.join(" ")), 2)
    })?;
    Ok(LOCAL_INTERFACE + 1 + u16::from(port.id))
}

fn open_output(args: &Args) -> Result<Box<dyn Write>, Failure> {
    use std::io::IsTerminal;
    match &args.write {
        Some(path) if path.as_os_str() != "-" => {
            let file = File::create(path)
                .map_err(|error| Failure::new(format!("{} cannot be written: {error}", path.display())))?;
            Ok(Box::new(file))
        }
        _ if std::io::stdout().is_terminal() => Err(Failure::with_status(
            "packets are binary and would spoil the terminal; give a file (-w FILE) or a reader: toe capture … | tcpdump \
             -r - -n",
            2,
        )),
        _ => Ok(Box::new(std::io::stdout())),
    }
}

/// Has the engine begin; gives the stream of packets.
fn start(client: &Client, snaplen: u32, interface: Option<u16>, text: &str) -> Result<File, Failure> {
    let memory = (!text.is_empty())
        .then(|| text_memory(text))
        .transpose()
        .map_err(|error| Failure::new(format!("no memory for the filter: {error}")))?;
    let request = Request::Capture { snaplen, interface, filter_len: text.len() as u32 };
    match client.ask_with(request, memory.as_ref().map(AsFd::as_fd))? {
        (Reply::Capture, Some(stream)) => Ok(File::from(stream)),
        _ => Err(ClientError::Nonsense("no stream of packets".to_owned()).into()),
    }
}

/// Memory that holds `text` and cannot change.
fn text_memory(text: &str) -> std::io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("toe-filter", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(memory);
    file.write_all(text.as_bytes())?;
    rustix::fs::fcntl_add_seals(
        &file,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;
    Ok(file.into())
}

/// Writes what comes until it ends, there is enough, or nobody reads.
fn take_packets(
    mut stream: impl Read,
    writer: &mut Writer<Box<dyn Write>>,
    count: Option<u64>,
) -> Result<Taken, Failure> {
    let nonsense = |what: &str| Failure::from(ClientError::Nonsense(what.to_owned()));
    let mut taken = Taken::default();
    let mut buffer = Vec::with_capacity(CHUNK);
    loop {
        let mut at = 0;
        while let Some((record, bytes)) =
            next_record(&buffer[at..]).map_err(|_| nonsense("a broken record"))?
        {
            at += size_of::<Record>() + bytes.len();
            taken.lost = record.lost;
            if record.kind() == Ok(RecordKind::End) {
                taken.is_whole = true;
                break;
            }
            match writer.packet(&record, bytes) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => taken.is_whole = true,
                Err(error) => return Err(cannot_write(&error)),
            }
            taken.is_whole |= count.is_some_and(|count| writer.packets() >= count);
            if taken.is_whole {
                break;
            }
        }
        match writer.flush() {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => taken.is_whole = true,
            Err(error) => return Err(cannot_write(&error)),
            Ok(()) => {}
        }
        if taken.is_whole {
            return Ok(taken);
        }
        buffer.drain(..at);
        let have = buffer.len();
        buffer.resize(have + CHUNK, 0);
        let got = match stream.read(&mut buffer[have..]) {
            Ok(got) => got,
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                buffer.truncate(have);
                continue;
            }
            Err(error) => return Err(nonsense(&error.to_string())),
        };
        buffer.truncate(have + got);
        if got == 0 {
            return Ok(taken);
        }
    }
}

/// The first record, if it is there as a whole, with its bytes.
fn next_record(buffer: &[u8]) -> Result<Option<(Record, &[u8])>, toe_abi::capture::BadRecord> {
    let Ok((record, rest)) = Record::read_from_prefix(buffer) else { return Ok(None) };
    record.kind()?;
    Ok(rest.get(..record.captured_len as usize).map(|bytes| (record, bytes)))
}

fn cannot_write(error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot write the capture: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(id: u8, name: &str) -> PortReport {
        PortReport { id, name: name.to_owned(), ..PortReport::default() }
    }

    #[test]
    fn a_port_is_found_with_and_without_its_driver() {
        let ports = [port(0, "packet:veth0?drop=1%"), port(1, "tap:toe1")];
        for (name, number) in
            [("local", 0), ("veth0", 1), ("packet:veth0?drop=1%", 1), ("toe1", 2), ("tap:toe1", 2)]
        {
            assert_eq!(find_interface(&ports, name).ok(), Some(number), "{name}");
        }
        let error = find_interface(&ports, "eth0").expect_err("none of that name").to_string();
        assert!(error.contains("local packet:veth0") && error.contains("tap:toe1"), "{error}");
    }
}
