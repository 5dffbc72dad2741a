//! The engine's records as pcapng blocks (draft-ietf-opsawg-pcapng): one section, an interface for `local` and for each
//! port, an enhanced packet block for each packet. Used by `toe capture`.

use crate::presented::Presented;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness, PcapError};
use std::borrow::Cow;
use std::io::{BufWriter, Write};
use std::time::Duration;
use toe_abi::capture::{Direction, Program, Record};
use toe_abi::report::StatusReport;

/// if_tsresol: nanoseconds.
const NANOSECONDS: u8 = 9;
/// epb_flags, bits 0 and 1.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Writes a capture.
pub struct Writer<W: Write> {
    blocks: PcapNgWriter<BufWriter<W>>,
    interfaces: u32,
    packets: u64,
    /// What the engine had lost when the last packet was written.
    lost: u64,
}

impl<W: Write> Writer<W> {
    /// Writes what stands before the first packet.
    pub fn new(out: W, engine: &StatusReport, snaplen: u32, filter: &str) -> std::io::Result<Writer<W>> {
        let version = Cow::Owned(format!("toe {}", env!("CARGO_PKG_VERSION")));
        let mut options = vec![SectionHeaderOption::UserApplication(version)];
        options.push(SectionHeaderOption::Comment(Cow::Owned(comment_of_section(engine, filter))));
        let section =
            SectionHeaderBlock { endianness: Endianness::native(), options, ..SectionHeaderBlock::default() };
        let out = BufWriter::with_capacity(256 << 10, out);
        let mut blocks = PcapNgWriter::with_section_header(out, section).map_err(io_error)?;
        let local = ("local", "between programs of this engine".to_owned());
        let ports = engine.ports.iter().map(|port| {
            let what = format!("engine '{}', MTU {}, {}", engine.name, port.mtu, port.addrs.join(" "));
            (port.name.as_str(), what)
        });
        let mut interfaces = 0;
        for (name, description) in std::iter::once(local).chain(ports) {
            let options = vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                InterfaceDescriptionOption::IfDescription(Cow::Owned(description)),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ];
            let block = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen, options };
            blocks.write_pcapng_block(block).map_err(io_error)?;
            interfaces += 1;
        }
        Ok(Writer { blocks, interfaces, packets: 0, lost: 0 })
    }

    pub fn packet(&mut self, record: &Record, bytes: &[u8]) -> std::io::Result<()> {
        let interface_id = u32::from(record.interface);
        let direction = record.direction().ok().filter(|_| interface_id < self.interfaces);
        let Some(direction) = direction else {
            return Err(std::io::Error::other(
                "the engine named an interface or direction that there is not",
            ));
        };
        let mut options = Vec::new();
        match direction {
            Direction::Local => {}
            Direction::In => options.push(EnhancedPacketOption::Flags(INBOUND)),
            Direction::Out => options.push(EnhancedPacketOption::Flags(OUTBOUND)),
        }
        if record.lost > self.lost {
            options.push(EnhancedPacketOption::DropCount(record.lost - self.lost));
            self.lost = record.lost;
        }
        let comments =
            [comment_of_processes(record, direction), record.reason().map(|why| format!("dropped: {why}"))];
        options.extend(
            comments.into_iter().flatten().map(|text| EnhancedPacketOption::Comment(Cow::Owned(text))),
        );
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::from_nanos(record.at_ns),
            original_len: record.original_len,
            data: Cow::Borrowed(bytes),
            options,
        };
        self.blocks.write_pcapng_block(block).map_err(io_error)?;
        self.packets += 1;
        Ok(())
    }

    pub fn packets(&self) -> u64 {
        self.packets
    }

    pub fn flush(&mut self) -> std::io::Result<()> {
        self.blocks.get_mut().flush()
    }
}

fn comment_of_section(engine: &StatusReport, filter: &str) -> String {
    let filter = if filter.is_empty() { "no filter".to_owned() } else { format!("filter '{filter}'") };
    format!("engine '{}' (pid {}), {filter}", engine.name, engine.pid)
}

/// Which programs a packet is of: `curl (pid 12, fd 5)`, between two of them with an arrow. One that listens is one of
/// those that may yet accept the connection.
fn comment_of_processes(record: &Record, direction: Direction) -> Option<String> {
    let name = |program: &Program| match program {
        nobody if nobody.is_nobody() => "nobody".to_owned(),
        program => {
            let listens = if program.listens == 0 { "" } else { ", listening" };
            format!("{} (pid {}, fd {}{listens})", Presented(&program.name()), program.pid, program.fd)
        }
    };
    let (sender, receiver) = (&record.sender, &record.receiver);
    match direction {
        _ if sender.is_nobody() && receiver.is_nobody() => None,
        Direction::Local => Some(format!("{} → {}", name(sender), name(receiver))),
        Direction::In => Some(format!("to {}", name(receiver))),
        Direction::Out => Some(format!("from {}", name(sender))),
    }
}

fn io_error(error: PcapError) -> std::io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => std::io::Error::other(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};
    use toe_abi::capture::{RecordKind, text_field};
    use toe_abi::report::PortReport;

    fn record() -> Record {
        Record {
            captured_len: 4,
            original_len: 60,
            at_ns: 1_700_000_000_123_456_789,
            interface: 1,
            direction: Direction::In as u8,
            kind: RecordKind::Packet as u8,
            receiver: Program::new(12, 5, "na\x1bme"),
            reason: text_field("drop_no_flow"),
            ..Record::end(2)
        }
    }

    fn written(records: &[Record]) -> Vec<u8> {
        let engine = StatusReport {
            name: "web".to_owned(),
            ports: vec![PortReport { name: "tap:toe1".to_owned(), mtu: 1500, ..PortReport::default() }],
            ..StatusReport::default()
        };
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, &engine, 4096, "tcp").expect("memory takes all");
        for record in records {
            writer.packet(record, &[1, 2, 3, 4]).expect("a good record");
        }
        writer.flush().expect("memory takes all");
        drop(writer);
        out
    }

    #[test]
    fn a_packet_keeps_its_time_interface_and_comments() {
        let local = Record {
            interface: 0,
            direction: Direction::Local as u8,
            sender: Program::new(7, 3, "a"),
            reason: [0; 36],
            ..record()
        };
        let bytes = written(&[record(), local]);
        let mut reader = PcapNgReader::new(bytes.as_slice()).expect("a section");
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block() {
            blocks.push(block.expect("well formed").into_owned());
        }
        let names: Vec<_> = blocks
            .iter()
            .filter_map(|block| match block {
                Block::InterfaceDescription(block) => block.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfName(name) => Some(name.to_string()),
                    _ => None,
                }),
                _ => None,
            })
            .collect();
        assert_eq!(names, ["local", "tap:toe1"]);
        let packets: Vec<_> = blocks
            .iter()
            .filter_map(|block| match block {
                Block::EnhancedPacket(packet) => Some(packet),
                _ => None,
            })
            .collect();
        let [first, second] = packets[..] else { panic!("two packets: {packets:?}") };
        assert_eq!(first.timestamp, Duration::from_nanos(1_700_000_000_123_456_789));
        assert_eq!((first.interface_id, first.original_len, &*first.data), (1, 60, &[1, 2, 3, 4][..]));
        let comment = |text: &str| EnhancedPacketOption::Comment(Cow::Owned(text.to_owned()));
        assert_eq!(
            first.options,
            [
                EnhancedPacketOption::Flags(INBOUND),
                EnhancedPacketOption::DropCount(2),
                comment("to na\\u{1b}me (pid 12, fd 5)"),
                comment("dropped: drop_no_flow"),
            ]
        );
        assert_eq!(second.options, [comment("a (pid 7, fd 3) → na\\u{1b}me (pid 12, fd 5)")]);
    }

    #[test]
    fn an_interface_that_there_is_not_is_an_error() {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out, &StatusReport::default(), 64, "").expect("memory takes all");
        assert!(writer.packet(&record(), &[1, 2, 3, 4]).is_err());
        assert_eq!(writer.packets(), 0);
    }
}
