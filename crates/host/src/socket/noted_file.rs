//! Which file a socket's anchor is, once the socket is shared with a process that may send it back.

use std::sync::atomic::{AtomicU64, Ordering};

/// By device and inode; inode 0: nothing is noted.
#[derive(Debug, Default)]
pub struct NotedFile {
    device: AtomicU64,
    inode: AtomicU64,
}

impl NotedFile {
    pub fn note(&self, (device, inode): (u64, u64)) {
        self.device.store(device, Ordering::Relaxed);
        self.inode.store(inode, Ordering::Relaxed);
    }

    pub fn get(&self) -> Option<(u64, u64)> {
        let (device, inode) = (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed));
        (inode != 0).then_some((device, inode))
    }

    pub fn forget(&self) {
        self.inode.store(0, Ordering::Relaxed);
    }
}
