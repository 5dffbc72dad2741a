//! Which frames are the engine's, as the program in the kernel reads it out of its maps.
//!
//! [`Book`] keeps what was asked for and says what stands in the maps; [`XdpSteering`] writes it there. An entry is
//! written before the port's word says that there are such entries, and goes after the word has changed.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};

use aya::Ebpf;
use aya::maps::{Array, HashMap as KernelHashMap, MapData, MapError};

use crate::port::Steering;

// What the engine has of a port; `bpf/steer.bpf.c` has the same numbers.
const RESERVED: u32 = 1;
const LISTENS_ANY: u32 = 2;
const LISTENS_SOME: u32 = 4;
const FLOWS: u32 = 8;

/// What the engine has of one port number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PortUse {
    reserved: bool,
    any: bool,
    listeners: u32,
    flows: u32,
}

impl PortUse {
    fn word(self) -> u32 {
        let bit = |is: bool, bit: u32| if is { bit } else { 0 };
        bit(self.reserved, RESERVED)
            | bit(self.any, LISTENS_ANY)
            | bit(self.listeners > 0, LISTENS_SOME)
            | bit(self.flows > 0, FLOWS)
    }
}

type Flow = (SocketAddrV4, SocketAddrV4);

/// What was asked for.
#[derive(Debug, Default)]
struct Book {
    ports: HashMap<u16, PortUse>,
    listeners: HashSet<SocketAddrV4>,
    flows: HashSet<Flow>,
}

impl Book {
    /// Changes what is known of a port; returns the port's word.
    fn change(&mut self, port: u16, change: impl FnOnce(&mut PortUse)) -> u32 {
        let entry = self.ports.entry(port).or_default();
        change(entry);
        let word = entry.word();
        if word == 0 {
            self.ports.remove(&port);
        }
        word
    }

    /// `None`: it was so already.
    fn reserve(&mut self, port: u16, on: bool) -> Option<u32> {
        let is = self.ports.get(&port).is_some_and(|known| known.reserved);
        (is != on).then(|| self.change(port, |known| known.reserved = on))
    }

    fn listen(&mut self, local: SocketAddrV4, on: bool) -> Option<u32> {
        let changed = if on { self.listeners.insert(local) } else { self.listeners.remove(&local) };
        let is_any = local.ip().is_unspecified();
        changed.then(|| {
            self.change(local.port(), |known| match (is_any, on) {
                (true, _) => known.any = on,
                (false, true) => known.listeners += 1,
                (false, false) => known.listeners -= 1,
            })
        })
    }

    fn flow(&mut self, flow: Flow, on: bool) -> Option<u32> {
        let changed = if on { self.flows.insert(flow) } else { self.flows.remove(&flow) };
        changed
            .then(|| self.change(flow.0.port(), |known| if on { known.flows += 1 } else { known.flows -= 1 }))
    }
}

/// The program's maps.
pub(super) struct KernelMaps {
    ports: Array<MapData, u32>,
    addresses: KernelHashMap<MapData, [u8; 4], u8>,
    listeners: KernelHashMap<MapData, [u8; 8], u8>,
    flows: KernelHashMap<MapData, [u8; 12], u8>,
}

impl fmt::Debug for KernelMaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KernelMaps")
    }
}

impl KernelMaps {
    pub(super) fn take(bpf: &mut Ebpf) -> Result<KernelMaps, MapError> {
        let mut take = |name: &str| bpf.take_map(name).ok_or(MapError::ElementNotFound);
        Ok(KernelMaps {
            ports: Array::try_from(take("ports")?)?,
            addresses: KernelHashMap::try_from(take("addresses")?)?,
            listeners: KernelHashMap::try_from(take("listeners")?)?,
            flows: KernelHashMap::try_from(take("flows")?)?,
        })
    }
}

/// Writes the maps.
#[derive(Debug)]
pub(super) struct XdpSteering {
    maps: KernelMaps,
    book: Book,
}

impl XdpSteering {
    pub(super) fn new(maps: KernelMaps) -> XdpSteering {
        XdpSteering { maps, book: Book::default() }
    }

    fn write_port(&mut self, port: u16, word: Option<u32>) -> io::Result<()> {
        match word {
            Some(word) => self.maps.ports.set(u32::from(port), word, 0).map_err(io::Error::other),
            None => Ok(()),
        }
    }
}

/// An entry that is not there needs no removing.
fn removed(result: Result<(), MapError>) -> io::Result<()> {
    match result {
        Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Bytes as the program sees them in a frame.
fn endpoint(local: SocketAddrV4) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&local.ip().octets());
    key[4..6].copy_from_slice(&local.port().to_be_bytes());
    key
}

fn flow_key((local, remote): Flow) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&local.ip().octets());
    key[4..8].copy_from_slice(&remote.ip().octets());
    key[8..10].copy_from_slice(&local.port().to_be_bytes());
    key[10..].copy_from_slice(&remote.port().to_be_bytes());
    key
}

impl Steering for XdpSteering {
    fn address(&mut self, addr: Ipv4Addr, on: bool) -> io::Result<()> {
        if on {
            self.maps.addresses.insert(addr.octets(), 1, 0).map_err(io::Error::other)
        } else {
            removed(self.maps.addresses.remove(&addr.octets()))
        }
    }

    fn reserve(&mut self, port: u16, on: bool) -> io::Result<()> {
        let word = self.book.reserve(port, on);
        self.write_port(port, word)
    }

    fn listen(&mut self, local: SocketAddrV4, on: bool) -> io::Result<()> {
        let key = endpoint(local);
        if on {
            self.maps.listeners.insert(key, 1, 0).map_err(io::Error::other)?;
        }
        let word = self.book.listen(local, on);
        self.write_port(local.port(), word)?;
        if on { Ok(()) } else { removed(self.maps.listeners.remove(&key)) }
    }

    fn flow(&mut self, local: SocketAddrV4, remote: SocketAddrV4, on: bool) -> io::Result<()> {
        let flow = (local, remote);
        if on {
            self.maps.flows.insert(flow_key(flow), 1, 0).map_err(io::Error::other)?;
        }
        let word = self.book.flow(flow, on);
        self.write_port(local.port(), word)?;
        if on { Ok(()) } else { removed(self.maps.flows.remove(&flow_key(flow))) }
    }

    fn entries(&self) -> usize {
        let reserved = self.book.ports.values().filter(|known| known.reserved).count();
        reserved + self.book.listeners.len() + self.book.flows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(d: u8, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, d), port)
    }

    #[test]
    fn a_port_is_the_kernels_again_when_its_last_use_ends() {
        let mut book = Book::default();
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 80);
        assert_eq!(book.listen(any, true), Some(LISTENS_ANY));
        assert_eq!(book.listen(any, true), None, "once");
        assert_eq!(book.flow((at(2, 80), at(1, 4000)), true), Some(LISTENS_ANY | FLOWS));
        assert_eq!(book.flow((at(2, 80), at(1, 4001)), true), Some(LISTENS_ANY | FLOWS));
        assert_eq!(book.listen(any, false), Some(FLOWS));
        assert_eq!(book.flow((at(2, 80), at(1, 4000)), false), Some(FLOWS));
        assert_eq!(book.flow((at(2, 80), at(1, 4000)), false), None, "gone already");
        assert_eq!(book.flow((at(2, 80), at(1, 4001)), false), Some(0));
        assert!(book.ports.is_empty());
    }

    #[test]
    fn listeners_at_two_addresses_and_a_reserved_port() {
        let mut book = Book::default();
        assert_eq!(book.listen(at(2, 80), true), Some(LISTENS_SOME));
        assert_eq!(book.listen(at(3, 80), true), Some(LISTENS_SOME));
        assert_eq!(book.listen(at(2, 80), false), Some(LISTENS_SOME));
        assert_eq!(book.listen(at(3, 80), false), Some(0));
        assert_eq!(book.reserve(40_000, true), Some(RESERVED));
        assert_eq!(book.reserve(40_000, true), None);
        assert_eq!(book.reserve(40_000, false), Some(0));
    }

    #[test]
    fn keys_are_as_in_the_frame() {
        assert_eq!(endpoint(at(2, 0x1234)), [10, 0, 0, 2, 0x12, 0x34, 0, 0]);
        assert_eq!(
            flow_key((at(2, 0x1234), at(9, 0x5678))),
            [10, 0, 0, 2, 10, 0, 0, 9, 0x12, 0x34, 0x56, 0x78]
        );
    }
}
