//! Memory that peers may touch, by the keys that the program chose. Owned by a domain; asked for each fragment that goes into or out of it.

use crate::parts::Part;
use std::collections::HashMap;

/// A part of a region, as a peer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub key: u32,
    pub offset: u64,
    pub len: u32,
}

impl Remote {
    /// The bytes from `from` on.
    pub fn within(self, from: u64, len: u64) -> Remote {
        Remote { key: self.key, offset: self.offset + from, len: len as u32 }
    }
}

/// What a peer does to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Write,
    Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub start: u64,
    pub len: u64,
    pub may_write: bool,
    pub may_read: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Regions(HashMap<u32, Region>);

impl Regions {
    /// `false`: the key is in use, or the memory cannot be.
    pub fn add(&mut self, key: u32, region: Region) -> bool {
        if region.start.checked_add(region.len).is_none() || self.0.contains_key(&key) {
            return false;
        }
        self.0.insert(key, region);
        true
    }

    pub fn remove(&mut self, key: u32) -> bool {
        self.0.remove(&key).is_some()
    }

    /// Where a peer's word leads, if it may go there.
    pub fn find(&self, remote: Remote, access: Access) -> Option<Part> {
        let region = self.0.get(&remote.key)?;
        let may = match access {
            Access::Write => region.may_write,
            Access::Read => region.may_read,
        };
        let fits = remote.offset <= region.len && u64::from(remote.len) <= region.len - remote.offset;
        let address = region.start + remote.offset.min(region.len);
        (may && fits).then_some(Part { address, handle: remote.key, len: remote.len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_key_stands_for_is_found() {
        let mut regions = Regions::default();
        let region = Region { start: 1000, len: 100, may_write: true, may_read: false };
        assert!(regions.add(7, region));
        assert!(!regions.add(7, region), "the key is in use");
        assert!(!regions.add(8, Region { start: u64::MAX, len: 2, ..region }), "past the end of memory");
        for ((offset, len), is_found) in [
            ((0, 100), true),
            ((99, 1), true),
            ((100, 0), true),
            ((0, 101), false),
            ((100, 1), false),
            ((101, 0), false),
            ((u64::MAX, 1), false),
        ] {
            let remote = Remote { key: 7, offset, len };
            let found = regions.find(remote, Access::Write);
            assert_eq!(found.is_some(), is_found, "{remote:?}");
            assert!(found.is_none_or(|part| part.address == 1000 + offset && part.len == len));
            assert_eq!(regions.find(remote, Access::Read), None, "not to be read");
            assert_eq!(regions.find(Remote { key: 8, ..remote }, Access::Write), None, "another key");
        }
        assert!(regions.remove(7) && !regions.remove(7));
        assert_eq!(regions.find(Remote { key: 7, offset: 0, len: 1 }, Access::Write), None, "given back");
    }
}
