//! A file as the source of a stream's bytes.
//!
//! What the page cache has is read straight into the stream's memory. The rest is read into a buffer first, without any lock, and a
//! file that cannot say what is at hand goes that way altogether. What comes next is [`Outward`]'s to say; here it is done.

use super::cut;
use super::kind::is_regular;
use super::memory::Memory;
use super::pinned::PinnedFile;
use super::unbuffered;
use crate::errno::from_os;
use crate::session::Session;
use crate::socket::slices::{Room, Source};
use rustix::fd::BorrowedFd;
use rustix::fs::OFlags;
use rustix::io::{Errno as Os, ReadWriteFlags};
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicBool, Ordering};
use toe_abi::errno::Errno;
use toe_transfer::{Looked, ONE_PIECE, Outward};

/// Bytes read ahead at a time.
pub const READAHEAD: usize = 128 << 10;
/// Most bytes that are read at once, each time by a system call.
const PIECE_MAX: u32 = 1 << 20;

#[derive(Debug)]
pub struct FileSource<'a> {
    file: &'a PinnedFile<'a>,
    pub call: Outward,
    /// Once set, nothing more is read.
    cancelled: Option<&'a AtomicBool>,
    /// It lies in memory, where reads need no word that nothing is waited for. `None`: not asked yet.
    memory: Option<Memory>,
    /// The last of these are those that the call has ahead.
    readahead: Vec<u8>,
}

impl<'a> FileSource<'a> {
    /// What the call is to send, of this file. It reads nothing more once `cancelled` is set.
    pub fn new(file: &'a PinnedFile<'a>, call: Outward, cancelled: Option<&'a AtomicBool>) -> FileSource<'a> {
        FileSource { file, call, cancelled, memory: None, readahead: Vec::new() }
    }

    /// Asks what the file has.
    pub fn look(&mut self) {
        self.memory = None;
        self.call.looked(look(self.file.fd()));
    }

    /// What Linux would have said before it asked the connection: 0 or an error where there is nothing to read at `position`.
    pub fn ask(&mut self, position: u64) {
        let mut byte = [0];
        let first = match rustix::io::pread(self.file.fd(), &mut byte, position) {
            Ok(0) => Some(Ok(0)),
            Err(error) if error != Os::INVAL => Some(Err(from_os(error))),
            _ => None,
        };
        self.call.asked(first);
    }

    /// Reads what comes next, and waits for it. How many bytes there were.
    fn fill_readahead(&mut self) -> Result<usize, Os> {
        let (position, want) = (self.call.position(), self.call.wanted_readahead());
        let outcome = if self.call.by_blocks() {
            let at = unbuffered::read(self.file.fd(), position, want, &mut self.readahead);
            at.map(|at| self.readahead.len() - at)
        } else {
            self.readahead.resize(want, 0);
            let got = rustix::io::pread(self.file.fd(), &mut self.readahead, position);
            got.map(|got| cut::of_the_file(self.file.fd(), position, got, |at| self.readahead[at]))
        };
        match outcome {
            Ok(_) if !self.file.is_same() => Err(Os::BADF),
            Ok(got) => {
                if !self.call.by_blocks() {
                    self.readahead.truncate(got);
                }
                Ok(got)
            }
            Err(error) => Err(error),
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.is_some_and(|cancelled| cancelled.load(Ordering::Acquire))
    }

    /// Puts bytes that were read ahead.
    fn put_readahead(&mut self, room: Room<'_>, bytes: usize) -> Result<usize, Errno> {
        let from = self.readahead.len() - self.call.readahead();
        let readahead = &self.readahead[from..from + bytes];
        match room {
            Room::Shared(region, offset) => region.write(offset, readahead).map_err(|_| Errno::EIO)?,
            Room::Own(room) => room[..bytes].copy_from_slice(readahead),
        }
        self.call.put_readahead(bytes);
        Ok(bytes)
    }

    /// Reads what is at hand straight into the room.
    fn read_at_hand(&mut self, mut room: Room<'_>, max: usize) -> Result<usize, Os> {
        let (file, position) = (self.file.fd(), self.call.position());
        if self.memory.is_none() {
            let outcome = read_into(&mut room, max, file, position, false);
            if outcome != Err(Os::OPNOTSUPP) || !super::memory::is_in_memory(file) {
                return outcome;
            }
        }
        let memory = self.memory.get_or_insert_default();
        if !memory.has(file, position, max, self.call.left_in_all()) {
            return Err(Os::AGAIN);
        }
        read_into(&mut room, max, file, position, true)
    }
}

fn look(file: BorrowedFd<'_>) -> Result<Looked, Errno> {
    let stat = rustix::fs::fstat(file).map_err(from_os)?;
    let flags = rustix::fs::fcntl_getfl(file).map_err(from_os)?;
    if flags & OFlags::RWMODE == OFlags::WRONLY || flags.contains(OFlags::PATH) {
        return Err(Errno::EBADF);
    }
    Ok(Looked {
        len: is_regular(&stat).then_some(stat.st_size as u64),
        by_blocks: unbuffered::has_mark(flags),
    })
}

/// Up to `max` bytes of the file; EAGAIN where they would have to be waited for, EOPNOTSUPP where the file cannot tell, unless it `may_wait`.
fn read_into(
    room: &mut Room<'_>,
    max: usize,
    file: BorrowedFd<'_>,
    position: u64,
    may_wait: bool,
) -> Result<usize, Os> {
    match room {
        Room::Shared(region, offset) => {
            let got = region.read_file(*offset, max, file, position, may_wait)?;
            let bytes = region.lend(*offset, got).map_err(|_| Os::FAULT)?;
            Ok(cut::of_the_file(file, position, got, |at| bytes[at].load(Ordering::Relaxed)))
        }
        Room::Own(room) => {
            let how = if may_wait { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT };
            let most = max.min(room.len());
            let got = rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut room[..most])], position, how)?;
            Ok(cut::of_the_file(file, position, got, |at| room[at]))
        }
    }
}

impl Source for FileSource<'_> {
    fn left(&self) -> usize {
        self.call.left()
    }

    fn check_next(&self, len: usize) -> Result<bool, Errno> {
        Ok(self.call.readahead() >= len)
    }

    fn put(&mut self, room: Room<'_>, max: usize) -> Result<usize, Errno> {
        let readahead = self.call.readahead().min(max);
        if readahead > 0 {
            return self.put_readahead(room, readahead);
        }
        // Some file systems wait although they are told not to.
        if self.is_cancelled() {
            self.call.cancel();
            return Ok(0);
        }
        let outcome = match self.read_at_hand(room, max.min(self.call.left_in_all())) {
            Ok(1..) if !self.file.is_same() => Err(Os::BADF),
            outcome => outcome,
        };
        Ok(self.call.read_at_hand(outcome.map_err(from_os)))
    }

    fn take_back(&mut self, len: usize) {
        self.call.take_back(len);
    }

    fn is_done(&self) -> bool {
        self.call.is_done()
    }

    fn prefers_room(&self) -> bool {
        true
    }

    fn about_to_wait(&mut self, engine: Option<&'static Session>) {
        if self.call.readahead() < self.call.left_in_all() {
            self.file.keep(engine);
        }
    }

    /// A larger one costs fewer system calls, and nobody waits for it who still has as much to do.
    fn piece(&self, on_their_way: u32) -> u32 {
        on_their_way.clamp(ONE_PIECE as u32, PIECE_MAX)
    }

    fn waits(&self) -> bool {
        self.call.waits()
    }

    fn refill(&mut self) {
        if !self.waits() {
            return;
        }
        if self.is_cancelled() {
            self.call.cancel();
            return;
        }
        let mut outcome = self.fill_readahead();
        if outcome == Err(Os::INVAL) && !self.call.by_blocks() && unbuffered::is_unbuffered(self.file.fd()) {
            self.call.goes_by_blocks();
            outcome = self.fill_readahead();
        }
        self.call.on_readahead(outcome.map_err(from_os));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::io::Write as _;
    use toe_ring::Region;
    use toe_transfer::step::Outward as Step;

    fn source_of<'a>(file: &'a PinnedFile<'a>, position: u64, length: usize) -> FileSource<'a> {
        FileSource::new(file, Outward::new(position, length, READAHEAD, false, false), None)
    }

    fn file_of(len: usize) -> std::fs::File {
        let memory =
            rustix::fs::memfd_create("source-test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        let mut file = std::fs::File::from(memory);
        file.write_all(&(0..len).map(|n| (n % 251) as u8).collect::<Vec<_>>()).expect("room");
        file
    }

    /// All that the source gives, `max` bytes at a time, by way of a region; and what the call comes to.
    fn drain(source: &mut FileSource<'_>, max: usize) -> (Vec<u8>, Result<usize, Errno>) {
        let (region, _file) = Region::create(1 << 20).expect("memory");
        let mut all = Vec::new();
        loop {
            match source.call.step() {
                Step::Look { .. } => source.look(),
                Step::Readahead { .. } => source.refill(),
                Step::Send => {
                    let before = all.len();
                    while !source.is_done() {
                        source.refill();
                        while source.left() > 0 {
                            let most = max.min(source.left());
                            let put = source.put(Room::Shared(&region, 64), most).expect("in range");
                            let mut bytes = vec![0; put];
                            region.read(64, &mut bytes).expect("in range");
                            all.extend(bytes);
                        }
                    }
                    source.call.went(Ok(all.len() - before));
                }
                Step::LetGo | Step::TellNext(_) => {}
                Step::Ask { position } => source.ask(position),
                Step::End(outcome) => return (all, outcome),
            }
        }
    }

    #[test]
    fn a_file_is_put_from_its_position_to_its_end_or_as_far_as_is_wanted() {
        let file = file_of(300_000);
        let pinned = PinnedFile::of(file.as_fd());
        for (position, length, expected) in [(5, usize::MAX, 299_995), (0, 70_000, 70_000), (299_999, 9, 1)] {
            let (all, outcome) = drain(&mut source_of(&pinned, position, length), 65_536);
            assert_eq!((all.len(), outcome), (expected, Ok(expected)));
            assert!(all.iter().enumerate().all(|(n, &byte)| byte == ((n + position as usize) % 251) as u8));
        }
    }

    #[test]
    fn a_file_that_is_cut_short_meanwhile_gives_what_it_had() {
        let file = file_of(100_000);
        let pinned = PinnedFile::of(file.as_fd());
        let mut source = source_of(&pinned, 0, usize::MAX);
        source.look();
        file.set_len(40_000).expect("shorter");
        assert_eq!(drain(&mut source, 65_536).1, Ok(40_000));
    }

    /// A socket without an owner queue has no session to keep a copy in: what is read of another file at the number is thrown away.
    #[test]
    fn of_another_file_at_the_number_nothing_is_put() {
        let (file, other) = (file_of(300_000), file_of(300_000));
        let number = crate::sys::dup_anywhere(&file).expect("room");
        let pinned = PinnedFile::of(crate::sys::borrow(number.raw()));
        let mut source = source_of(&pinned, 0, usize::MAX);
        source.look();
        let (region, _file) = Region::create(1 << 20).expect("memory");
        assert_eq!(source.put(Room::Shared(&region, 0), 1000), Ok(1000));
        source.about_to_wait(None);
        assert_eq!(source.put(Room::Shared(&region, 0), 1000), Ok(1000));
        crate::sys::dup_onto(&other, number.raw(), true).expect("it is open");
        assert_eq!(source.put(Room::Shared(&region, 0), 1000), Ok(0));
        assert!(source.is_done());
        source.call.went(Ok(0));
        assert_eq!(source.call.step(), Step::End(Err(Errno::EBADF)));
    }

    /// Of bytes that were not at hand, and of those that were and follow them.
    #[test]
    fn what_is_taken_back_comes_again() {
        let file = file_of(3 * READAHEAD);
        let pinned = PinnedFile::of(file.as_fd());
        let (region, _file) = Region::create(1 << 20).expect("memory");
        let mut source = source_of(&pinned, 0, usize::MAX);
        source.look();
        source.call.read_at_hand(Err(Errno::EAGAIN));
        source.refill();
        for (position, readahead) in [(0, READAHEAD), (READAHEAD, 0), (2 * READAHEAD, 0)] {
            assert_eq!(source.call.readahead(), readahead);
            for _ in 0..2 {
                assert_eq!(source.put(Room::Shared(&region, 0), READAHEAD), Ok(READAHEAD));
                let mut bytes = vec![0; READAHEAD];
                region.read(0, &mut bytes).expect("in range");
                assert!((position..).zip(&bytes).all(|(n, &byte)| byte == (n % 251) as u8), "{position}");
                source.take_back(READAHEAD);
            }
            assert_eq!(source.put(Room::Shared(&region, 0), READAHEAD), Ok(READAHEAD));
        }
        assert!(source.is_done());
    }

    #[test]
    fn the_disk_is_not_waited_for_again_once_that_is_cancelled() {
        let file = file_of(3 * READAHEAD);
        let pinned = PinnedFile::of(file.as_fd());
        let cancelled = AtomicBool::new(false);
        let call = Outward::new(0, usize::MAX, READAHEAD, false, false);
        let mut source = FileSource::new(&pinned, call, Some(&cancelled));
        source.look();
        let not_at_hand = Err(Errno::EAGAIN);
        source.call.read_at_hand(not_at_hand);
        source.refill();
        cancelled.store(true, Ordering::Release);
        let (region, _file) = Region::create(1 << 20).expect("memory");
        assert_eq!(source.put(Room::Shared(&region, 0), READAHEAD), Ok(READAHEAD), "what was read goes out");
        assert_eq!(source.put(Room::Shared(&region, 0), READAHEAD), Ok(0), "a read may wait all the same");
        source.call.read_at_hand(not_at_hand);
        source.refill();
        assert!(source.is_done() && source.left() == 0);
        source.call.went(Ok(READAHEAD));
        assert_eq!(source.call.step(), Step::LetGo);
        assert_eq!(source.call.step(), Step::End(Ok(READAHEAD)));
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
            let pinned = PinnedFile::of(fd);
            assert_eq!(drain(&mut source_of(&pinned, 0, 10), 10), (Vec::new(), Err(Errno(errno as u16))));
        }
    }
}
