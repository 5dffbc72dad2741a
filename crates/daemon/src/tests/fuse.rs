//! A file that this process serves, and whose last close waits until it is let go: the kernel asks whoever serves a file
//! before it is closed (FUSE_FLUSH), and waits for the answer whatever happens.

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};

// From linux/fuse.h.
const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const HEADER_LEN: usize = 40;
const ENOSYS: i32 = 38;
const REGULAR: u32 = 0o100_666;

/// The file, and how to let go of it.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) file: Option<OwnedFd>,
    /// Somebody waits in its close.
    pub(crate) flushing: Receiver<()>,
    /// Dropping it lets everybody go.
    pub(crate) let_go: Option<Sender<()>>,
    _mount: OwnedFd,
}

/// `None`: this machine has no FUSE, or this user may not mount.
pub(crate) fn serve() -> Option<Served> {
    let device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
    let context = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    let fd = device.as_raw_fd().to_string();
    for (key, value) in [("fd", fd.as_str()), ("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")] {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value).ok()?;
    }
    rustix::mount::fsconfig_create(context.as_fd()).ok()?;
    // Mounted nowhere, so nothing is left behind.
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).ok()?;
    let ((flushes, flushing), (let_go, going)) = (channel(), channel());
    std::thread::spawn(move || answer_all(device, &flushes, &going));
    let file = rustix::fs::openat(&mount, "f", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    Some(Served { file: Some(file.expect("it serves")), flushing, let_go: Some(let_go), _mount: mount })
}

/// Until the file system is gone, or somebody waits and is let go.
fn answer_all(mut device: File, flushes: &Sender<()>, going: &Receiver<()>) {
    let mut packet = vec![0; 1 << 20];
    while let Ok(len) = device.read(&mut packet) {
        let word = |at: usize| u32::from_ne_bytes(*packet[at..].first_chunk().expect("a header"));
        let (kind, unique) = (word(4), u64::from_ne_bytes(*packet[8..].first_chunk().expect("a header")));
        assert!(len >= HEADER_LEN);
        let reply = match kind {
            INIT => Ok(words(&[7, 31, 0, 0, 0, 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            // Node 2 of generation 0, which is good for an hour, and so are its attributes.
            LOOKUP => Ok([words(&[2, 0, 0, 0, 3600, 0, 3600, 0, 0, 0]), attributes(2, REGULAR)].concat()),
            GETATTR => Ok([words(&[3600, 0, 0, 0]), attributes(1, 0o040_777)].concat()),
            OPEN => Ok(words(&[0, 0, 0, 0])),
            RELEASE => Ok(Vec::new()),
            FLUSH => {
                let _ = flushes.send(());
                // Ends with an error, when the test lets go.
                let _ = going.recv();
                // Closing the device lets go of everybody, whatever they wait for.
                return;
            }
            _ => Err(ENOSYS),
        };
        let (error, body) = reply.map_or_else(|errno| (-errno, Vec::new()), |body| (0, body));
        let header = [(16 + body.len() as u32).to_ne_bytes(), error.to_ne_bytes()].concat();
        let _ = device.write(&[header, unique.to_ne_bytes().to_vec(), body].concat());
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// `struct fuse_attr`: number, size and blocks (64 bits each), three times, their nanoseconds, mode, links, owners, device,
/// block size, flags.
fn attributes(node: u32, mode: u32) -> Vec<u8> {
    words(&[node, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0])
}
