//! A file as the source of a stream's octets.
//!
//! What the page cache has is read straight into the stream's memory. The rest is read into a buffer first, without any lock, and a
//! file that cannot say what is at hand goes that way altogether.

use super::kept::KeptFile;
use super::memory::Memory;
use super::unbuffered;
use crate::errno::from_os;
use crate::socket::Socket;
use crate::socket::slices::{Room, Source};
use rustix::fd::BorrowedFd;
use rustix::fs::{FileType, OFlags};
use rustix::io::{Errno as Os, ReadWriteFlags};
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicBool, Ordering};
use toe_abi::errno::Errno;

/// Octets read ahead at a time.
const AHEAD: usize = 128 << 10;
/// So few octets cost less to copy once more than it costs to ask what kind of file it is.
const FEW: usize = 16 << 10;
/// So few octets are read at once where there is room for them: what kind of file it is shows then.
const ONE_PIECE: usize = 256 << 10;
/// Most octets that are read at once, each time by a system call.
const PIECE_MAX: u32 = 1 << 20;
/// Most octets that are asked for at a time.
const MOST: usize = 1 << 30;

/// Why nothing is read straight from the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It has no more.
    End,
    /// The disk has to be waited for.
    Waits,
    /// Whoever wanted the octets has cancelled that.
    Cancelled,
    Failed(Errno),
}

/// Whether so many octets are more than are read at once, which may be some that there is room for.
pub fn is_long(length: usize, has_room: bool) -> bool {
    length > if has_room { ONE_PIECE } else { FEW }
}

#[derive(Debug)]
pub struct FileSource<'a> {
    file: &'a KeptFile<'a>,
    /// Of the next octet that is to be put.
    position: u64,
    /// Octets that are wanted from there on.
    left: usize,
    /// How many there are is known: the last one is, too.
    is_sized: bool,
    stopped: Option<Stop>,
    /// Once set, nothing more is read.
    cancelled: Option<&'a AtomicBool>,
    /// O_DIRECT: read by whole blocks.
    is_unbuffered: bool,
    /// It lies in memory, where reads need no word that nothing is waited for. `None`: not asked yet.
    memory: Option<Memory>,
    ahead: Vec<u8>,
    /// The next octet is this one of those read ahead.
    at: usize,
}

impl<'a> FileSource<'a> {
    /// Up to `length` octets from `position` on, of what the file has now. `has_room`: some of them can be put at once.
    pub fn new(
        file: &'a KeptFile<'a>,
        position: u64,
        length: usize,
        has_room: bool,
    ) -> Result<FileSource<'a>, Errno> {
        if !is_long(length, has_room) {
            return Ok(FileSource {
                file,
                position,
                left: length,
                is_sized: false,
                stopped: (length <= FEW).then_some(Stop::Waits),
                cancelled: None,
                is_unbuffered: false,
                memory: None,
                ahead: Vec::new(),
                at: 0,
            });
        }
        let stat = rustix::fs::fstat(file.fd()).map_err(from_os)?;
        let flags = rustix::fs::fcntl_getfl(file.fd()).map_err(from_os)?;
        if flags & OFlags::RWMODE == OFlags::WRONLY || flags.contains(OFlags::PATH) {
            return Err(Errno::EBADF);
        }
        let there = usize::try_from((stat.st_size as u64).saturating_sub(position)).unwrap_or(usize::MAX);
        // Files of the kernel's say 0, whatever they have; and past the end only the read says what is wrong with a file.
        let is_sized = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && there > 0;
        let left = if is_sized { length.min(there) } else { length };
        let is_unbuffered = unbuffered::has_mark(flags);
        let stopped = (!is_sized || is_unbuffered).then_some(Stop::Waits);
        Ok(FileSource {
            file,
            position,
            left,
            is_sized,
            stopped,
            cancelled: None,
            is_unbuffered,
            memory: None,
            ahead: Vec::new(),
            at: 0,
        })
    }

    /// It reads nothing more once `cancelled` is set.
    pub fn unless(self, cancelled: Option<&'a AtomicBool>) -> FileSource<'a> {
        FileSource { cancelled, ..self }
    }

    /// What the file said, if it ended the transfer.
    pub fn error(&self) -> Option<Errno> {
        match self.stopped {
            Some(Stop::Failed(errno)) => Some(errno),
            _ => None,
        }
    }

    /// What Linux would have said before it asked the connection: 0 or an error where there is nothing to read.
    pub fn comes_first(&self) -> Option<Result<usize, Errno>> {
        let mut octet = [0];
        match rustix::io::pread(self.file.fd(), &mut octet, self.position) {
            Ok(0) => Some(Ok(0)),
            Err(error) if error != Os::INVAL => Some(Err(from_os(error))),
            _ => None,
        }
    }

    /// All that was wanted is on its way, of what there was at the start.
    pub fn has_sent_all(&self) -> bool {
        self.left == 0 && self.is_sized
    }

    /// It has ended before all that was wanted: what went before was said to have more behind it.
    pub fn is_cut_short(&self) -> bool {
        self.is_done() && self.left > 0
    }

    /// Reads what comes next, and waits for it. How many octets there were.
    fn read_ahead(&mut self) -> Result<usize, Os> {
        let want = AHEAD.min(self.left);
        let outcome = if self.is_unbuffered {
            unbuffered::read(self.file.fd(), self.position, want, &mut self.ahead)
        } else {
            self.ahead.resize(want, 0);
            let got = rustix::io::pread(self.file.fd(), &mut self.ahead, self.position);
            got.map(|got| {
                self.ahead.truncate(got);
                0
            })
        };
        match outcome {
            Ok(_) if !self.file.is_same() => {
                (self.ahead, self.at) = (Vec::new(), 0);
                Err(Os::BADF)
            }
            Ok(at) => {
                self.at = at;
                Ok(self.ahead())
            }
            Err(error) => {
                (self.ahead, self.at) = (Vec::new(), 0);
                Err(error)
            }
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.is_some_and(|cancelled| cancelled.load(Ordering::Acquire))
    }

    fn ahead(&self) -> usize {
        self.ahead.len() - self.at
    }

    fn advance(&mut self, octets: usize) {
        self.position += octets as u64;
        self.left -= octets;
    }
}

/// Up to `max` octets of the file; EAGAIN where they would have to be waited for, EOPNOTSUPP where the file cannot tell, unless it `may_wait`.
fn read_into(
    room: &mut Room<'_>,
    max: usize,
    file: BorrowedFd<'_>,
    position: u64,
    may_wait: bool,
) -> Result<usize, Os> {
    match room {
        Room::Shared(region, offset) => region.read_file(*offset, max, file, position, may_wait),
        Room::Own(room) => {
            let how = if may_wait { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT };
            let most = max.min(room.len());
            rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut room[..most])], position, how)
        }
    }
}

impl Source for FileSource<'_> {
    fn left(&self) -> usize {
        match self.stopped {
            None => self.left.min(MOST),
            Some(_) => self.ahead(),
        }
    }

    fn check_next(&self, len: usize) -> Result<bool, Errno> {
        Ok(self.ahead() >= len)
    }

    fn put(&mut self, mut room: Room<'_>, max: usize) -> Result<usize, Errno> {
        let ahead = self.ahead().min(max);
        if ahead > 0 {
            let octets = &self.ahead[self.at..self.at + ahead];
            match room {
                Room::Shared(region, offset) => region.write(offset, octets).map_err(|_| Errno::EIO)?,
                Room::Own(room) => room[..ahead].copy_from_slice(octets),
            }
            self.at += ahead;
            self.advance(ahead);
            return Ok(ahead);
        }
        // Some file systems wait although they are told not to.
        if self.is_cancelled() {
            self.stopped = Some(Stop::Cancelled);
            return Ok(0);
        }
        let max = max.min(self.left);
        let outcome = match self
            .memory
            .as_mut()
            .map(|memory| memory.has(self.file.fd(), self.position, max, self.left))
        {
            None => read_into(&mut room, max, self.file.fd(), self.position, false),
            Some(true) => read_into(&mut room, max, self.file.fd(), self.position, true),
            Some(false) => Err(Os::AGAIN),
        };
        match outcome {
            Ok(0) => self.stopped = Some(Stop::End),
            Ok(_) if !self.file.is_same() => self.stopped = Some(Stop::Failed(Errno::EBADF)),
            Ok(got) => {
                self.advance(got);
                return Ok(got);
            }
            Err(Os::OPNOTSUPP) if self.memory.is_none() && super::memory::is_in_memory(self.file.fd()) => {
                self.memory = Some(Memory::default());
                return self.put(room, max);
            }
            Err(Os::AGAIN | Os::OPNOTSUPP | Os::INTR) => self.stopped = Some(Stop::Waits),
            // It may be one that is read by whole blocks.
            Err(Os::INVAL) if !self.is_sized => self.stopped = Some(Stop::Waits),
            Err(error) => self.stopped = Some(Stop::Failed(from_os(error))),
        }
        Ok(0)
    }

    fn take_back(&mut self, len: usize) {
        self.position -= len as u64;
        self.left += len;
        self.at = self.at.saturating_sub(len);
    }

    fn is_done(&self) -> bool {
        let ended = matches!(self.stopped, Some(Stop::End | Stop::Cancelled | Stop::Failed(_)));
        self.ahead() == 0 && (self.left == 0 || ended)
    }

    fn prefers_room(&self) -> bool {
        true
    }

    fn about_to_wait(&mut self, socket: &Socket) {
        if self.ahead() < self.left {
            self.file.keep(socket);
        }
    }

    /// A larger one costs fewer system calls, and nobody waits for it who still has as much to do.
    fn piece(&self, on_their_way: u32) -> u32 {
        on_their_way.clamp(ONE_PIECE as u32, PIECE_MAX)
    }

    fn waits(&self) -> bool {
        self.stopped == Some(Stop::Waits) && self.ahead() == 0 && self.left > 0
    }

    fn refill(&mut self) {
        if !self.waits() {
            return;
        }
        if self.is_cancelled() {
            self.stopped = Some(Stop::Cancelled);
            return;
        }
        let mut outcome = self.read_ahead();
        if outcome == Err(Os::INVAL) && !self.is_unbuffered && unbuffered::is_unbuffered(self.file.fd()) {
            self.is_unbuffered = true;
            outcome = self.read_ahead();
        }
        match outcome {
            Ok(0) => self.stopped = Some(Stop::End),
            // What follows may be at hand by now.
            Ok(_) if self.is_sized && !self.is_unbuffered => self.stopped = None,
            Ok(_) | Err(Os::INTR) => {}
            Err(error) => self.stopped = Some(Stop::Failed(from_os(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::io::Write as _;
    use toe_ring::Region;

    fn file_of(len: usize) -> std::fs::File {
        let memory =
            rustix::fs::memfd_create("source-test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        let mut file = std::fs::File::from(memory);
        file.write_all(&(0..len).map(|n| (n % 251) as u8).collect::<Vec<_>>()).expect("room");
        file
    }

    /// All that the source gives, `max` octets at a time, by way of a region.
    fn drain(source: &mut FileSource<'_>, max: usize) -> Vec<u8> {
        let (region, _file) = Region::create(1 << 20).expect("memory");
        let mut all = Vec::new();
        while !source.is_done() {
            source.refill();
            while source.left() > 0 {
                let put = source.put(Room::Shared(&region, 64), max.min(source.left())).expect("in range");
                let mut octets = vec![0; put];
                region.read(64, &mut octets).expect("in range");
                all.extend(octets);
            }
        }
        all
    }

    #[test]
    fn a_file_is_put_from_its_position_to_its_end_or_as_far_as_is_wanted() {
        let file = file_of(300_000);
        let kept = KeptFile::of(file.as_fd());
        for (position, length, expected) in [(5, usize::MAX, 299_995), (0, 70_000, 70_000), (299_999, 9, 1)] {
            let mut source = FileSource::new(&kept, position, length, false).expect("a file");
            let all = drain(&mut source, 65_536);
            assert_eq!(all.len(), expected);
            assert!(all.iter().enumerate().all(|(n, &octet)| octet == ((n + position as usize) % 251) as u8));
            // Of few octets it is not asked how many there are.
            assert_eq!((source.error(), source.has_sent_all()), (None, length > FEW));
        }
    }

    #[test]
    fn a_file_that_is_cut_short_meanwhile_gives_what_it_had() {
        let file = file_of(100_000);
        let kept = KeptFile::of(file.as_fd());
        let mut source = FileSource::new(&kept, 0, usize::MAX, false).expect("a file");
        file.set_len(40_000).expect("shorter");
        assert_eq!(drain(&mut source, 65_536).len(), 40_000);
        assert!(!source.has_sent_all() && source.is_cut_short());
    }

    /// A socket without a home has no session to keep a copy in: what is read of another file at the number is thrown away.
    #[test]
    fn of_another_file_at_the_number_nothing_is_put() {
        let (file, other) = (file_of(300_000), file_of(300_000));
        let number = crate::sys::dup_anywhere(&file).expect("room");
        let kept = KeptFile::of(crate::sys::borrow(number.raw()));
        let mut source = FileSource::new(&kept, 0, usize::MAX, false).expect("a file");
        let (region, _file) = Region::create(1 << 20).expect("memory");
        assert_eq!(source.put(Room::Shared(&region, 0), 1000), Ok(1000));
        let socket = Socket::allocate();
        source.about_to_wait(socket);
        assert_eq!(source.put(Room::Shared(&region, 0), 1000), Ok(1000));
        crate::sys::dup_onto(&other, number.raw(), true).expect("it is open");
        assert_eq!(source.put(Room::Shared(&region, 0), 1000), Ok(0));
        assert!(source.is_done() && source.error() == Some(Errno::EBADF));
        socket.abandon();
    }

    #[test]
    fn what_is_taken_back_comes_again() {
        let file = file_of(10);
        let kept = KeptFile::of(file.as_fd());
        let (region, _file) = Region::create(4096).expect("memory");
        let mut source = FileSource::new(&kept, 0, 10, false).expect("a file");
        source.stopped = Some(Stop::Waits);
        source.refill();
        assert_eq!(source.put(Room::Shared(&region, 0), 6), Ok(6));
        source.take_back(6);
        assert_eq!(drain(&mut source, 100), (0..10).collect::<Vec<u8>>());
    }

    #[test]
    fn the_disk_is_not_waited_for_again_once_that_is_cancelled() {
        let file = file_of(3 * AHEAD);
        let kept = KeptFile::of(file.as_fd());
        let cancelled = AtomicBool::new(false);
        let source = FileSource::new(&kept, 0, usize::MAX, false).expect("a file");
        let mut source = source.unless(Some(&cancelled));
        // As if nothing were at hand.
        source.stopped = Some(Stop::Waits);
        source.refill();
        cancelled.store(true, Ordering::Release);
        let (region, _file) = Region::create(1 << 20).expect("memory");
        assert_eq!(source.put(Room::Shared(&region, 0), AHEAD), Ok(AHEAD), "what was read goes out");
        source.stopped = None;
        assert_eq!(source.put(Room::Shared(&region, 0), AHEAD), Ok(0), "a read may wait all the same");
        source.stopped = Some(Stop::Waits);
        source.refill();
        assert!(source.is_done() && !source.has_sent_all());
        assert_eq!((source.left(), source.error()), (0, None));
    }

    #[test]
    fn what_is_no_file_is_told_by_its_error() {
        let (read_end, _write_end) = rustix::pipe::pipe().expect("a pipe");
        for (fd, errno) in [
            (read_end.as_fd(), libc::ESPIPE),
            (
                rustix::fs::open("/", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())
                    .expect("/")
                    .as_fd(),
                libc::EISDIR,
            ),
        ] {
            let kept = KeptFile::of(fd);
            let mut source = FileSource::new(&kept, 0, 10, false).expect("something");
            assert!(drain(&mut source, 10).is_empty());
            assert_eq!(source.error(), Some(Errno(errno as u16)));
        }
    }
}
