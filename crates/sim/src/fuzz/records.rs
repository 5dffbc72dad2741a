//! TLS records: what a network and a peer without the key can do to a stream of them, and parameters as a program may give them. What is opened
//! was sealed, in that order, and nothing that was changed ever is.

use super::Bytes;
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use toe::socket::slices::Takes;
use toe::socket::slices::{Bytes as Received, Gather, Scatter, Target};
use toe::tls::incoming::{Given, Incoming};
use toe::tls::keys::{HEADER, Keys};
use toe::tls::outgoing::Outgoing;
use toe::tls::parameters::Parameters;
use toe_abi::errno::Errno;

const SUITES: [(u16, u16, usize); 6] = [
    (0x0303, 51, 16),
    (0x0303, 52, 32),
    (0x0303, 54, 32),
    (0x0304, 51, 16),
    (0x0304, 52, 32),
    (0x0304, 54, 32),
];
/// A budget for records.
const ROOM: usize = 1 << 20;
const RECORDS_MAX: usize = 64;

/// Buffers that take records of every type.
struct Any<'a, 'b>(Scatter<'a, 'b>);

impl Target for Any<'_, '_> {
    fn left(&self) -> usize {
        self.0.left()
    }

    fn take(&mut self, bytes: Received<'_>, max: usize) -> Result<usize, Errno> {
        self.0.take(bytes, max)
    }

    fn takes(&mut self, _: u8) -> Takes {
        Takes::Yes
    }
}

/// See the module.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let how = bytes.u8();
    if how == u8::MAX {
        return parameters(bytes.0);
    }
    let suite = SUITES[usize::from(how) % SUITES.len()];
    let sequence = if how & 0x80 != 0 { u64::MAX - 2 } else { 0 };
    let (Some(mut outgoing), Some(mut incoming)) =
        (keys(suite, sequence, data).map(Outgoing::new), keys(suite, sequence, data).map(Incoming::new))
    else {
        unreachable!("a suite that is known")
    };
    let mut expected = VecDeque::new();
    for _ in 0..RECORDS_MAX {
        if bytes.is_empty() || step(&mut outgoing, &mut incoming, &mut expected, &mut bytes).is_err() {
            return;
        }
    }
}

/// One record is sealed, and comes as it is, changed, cut or not at all. An error: nothing of what follows is opened.
fn step(
    outgoing: &mut Outgoing,
    incoming: &mut Incoming,
    expected: &mut VecDeque<u8>,
    bytes: &mut Bytes<'_>,
) -> Result<(), Errno> {
    // Type 0 does not come back: in TLS 1.3 it is padding.
    let (what, kind, len) = (bytes.u8(), bytes.u8().max(1), usize::from(bytes.u16()));
    if what & 7 == 7 {
        // Not of whoever has the key.
        let raw = bytes.take(len.min(600)).to_vec();
        let result = arrive(incoming, raw);
        assert!(result != Ok(true), "opened what nobody sealed");
        return result.map(|_| ());
    }
    let plain: Vec<u8> = (0..len % 20_000).map(|at| at as u8 ^ what).collect();
    let slices = [IoSlice::new(&plain)];
    let taken = outgoing.fill(&mut Gather::new(&slices), kind, ROOM, what & 8 != 0)?;
    expected.extend(&plain[..taken]);
    let sealed = outgoing.waiting().to_vec();
    outgoing.taken(sealed.len());
    let mut rest = &sealed[..];
    while let Some(header) = rest.first_chunk::<HEADER>() {
        let (record, behind) =
            rest.split_at(HEADER + usize::from(u16::from_be_bytes([header[3], header[4]])));
        rest = behind;
        let mut came = record.to_vec();
        let (place, change) = (usize::from(bytes.u16()) % came.len(), bytes.u8());
        match what & 7 {
            0 => came[place] ^= change,
            1 => came.truncate(place.max(HEADER)),
            _ => {}
        }
        let is_changed = came != record;
        let is_opened = arrive(incoming, came)?;
        assert!(!(is_opened && is_changed), "a record that was changed is opened");
        if is_opened {
            let got = given(incoming)?;
            assert!(got.len() <= expected.len(), "more bytes than were sealed");
            assert!(expected.drain(..got.len()).eq(got), "other bytes than were sealed");
        }
    }
    Ok(())
}

/// Whether a record was opened.
fn arrive(incoming: &mut Incoming, record: Vec<u8>) -> Result<bool, Errno> {
    incoming.refusal().map_or(Ok(()), Err)?;
    let Some(header) = record.first_chunk::<HEADER>() else { return Ok(false) };
    incoming.take_header(*header)?;
    if record.len() < incoming.needed() {
        // The rest never comes.
        return Err(Errno::ECONNRESET);
    }
    incoming.take_record(record[..incoming.needed()].to_vec())?;
    Ok(incoming.opened() > 0)
}

fn given(incoming: &mut Incoming) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; 1 << 15];
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let mut target = Any(Scatter::new(&mut slices));
    let got = match incoming.give(&mut target, false)? {
        Given::More(got) | Given::Last(got) => got,
        Given::Nothing => 0,
    };
    bytes.truncate(got);
    Ok(bytes)
}

/// Other keys for other bytes: what is sealed in one run, where libFuzzer sees it compared, is nobody's in the next.
fn keys((version, cipher, key_len): (u16, u16, usize), sequence: u64, data: &[u8]) -> Option<Keys> {
    let sum = data
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let mut info = [version.to_ne_bytes(), cipher.to_ne_bytes()].concat();
    info.extend((0..12 + key_len).map(|at| sum.to_le_bytes()[at % 8] ^ at as u8));
    info.extend(sequence.to_be_bytes());
    Parameters::read(&info).and_then(Keys::new).ok()
}

/// As setsockopt gives them: read as they would be written.
fn parameters(bytes: &[u8]) {
    if let Ok(read) = Parameters::read(bytes) {
        let mut out = [0; toe::tls::parameters::LEN_MAX];
        let len = read.write(&mut out);
        assert_eq!(&out[..len], bytes, "another structure than was given");
        assert!(Keys::new(read).is_ok());
    }
}
