//! Protection tags and registered memory of an interface. Owned by [`super::nic`]; asked for every part that goes into or out of the
//! program's memory.

use super::types::VipReturn;

/// What a process may register, at most.
pub const REGIONS_MAX: usize = 1 << 12;
pub const PTAGS_MAX: usize = 1 << 10;
const INDEX_BITS: u32 = 12;

/// Who touches memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A descriptor of this process's.
    Local,
    RemoteWrite,
    RemoteRead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAttributes {
    pub ptag: u32,
    pub may_write: bool,
    pub may_read: bool,
}

#[derive(Clone, Copy, Debug)]
struct Registered {
    start: u64,
    len: u64,
    attributes: MemoryAttributes,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    registered: Option<Registered>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Registry {
    /// By number, less one: how many registered regions and virtual interfaces have the tag. `None`: it is no tag now.
    ptags: Vec<Option<u32>>,
    regions: Vec<Slot>,
}

impl Registry {
    pub fn create_ptag(&mut self) -> Result<u32, VipReturn> {
        let free = self.ptags.iter().position(Option::is_none).unwrap_or(self.ptags.len());
        if free == PTAGS_MAX {
            return Err(VipReturn::ErrorResource);
        }
        if free == self.ptags.len() {
            self.ptags.push(None);
        }
        self.ptags[free] = Some(0);
        Ok(free as u32 + 1)
    }

    /// Not while something has the tag.
    pub fn destroy_ptag(&mut self, ptag: u32) -> Result<(), VipReturn> {
        match *self.users(ptag)? {
            0 => self.ptags[ptag as usize - 1] = None,
            _ => return Err(VipReturn::ErrorResource),
        }
        Ok(())
    }

    fn users(&mut self, ptag: u32) -> Result<&mut u32, VipReturn> {
        let index = (ptag as usize).checked_sub(1).ok_or(VipReturn::InvalidPtag)?;
        self.ptags.get_mut(index).and_then(Option::as_mut).ok_or(VipReturn::InvalidPtag)
    }

    /// A region or virtual interface has the tag from now on.
    pub fn hold(&mut self, ptag: u32) -> Result<(), VipReturn> {
        *self.users(ptag)? += 1;
        Ok(())
    }

    pub fn let_go(&mut self, ptag: u32) {
        if let Ok(users) = self.users(ptag) {
            *users = users.saturating_sub(1);
        }
    }

    /// The memory handle.
    pub fn register(&mut self, start: u64, len: u64, attributes: MemoryAttributes) -> Result<u32, VipReturn> {
        if len == 0 || start == 0 || start.checked_add(len).is_none() {
            return Err(VipReturn::InvalidParameter);
        }
        let free =
            self.regions.iter().position(|slot| slot.registered.is_none()).unwrap_or(self.regions.len());
        if free == REGIONS_MAX {
            return Err(VipReturn::ErrorResource);
        }
        self.hold(attributes.ptag)?;
        if free == self.regions.len() {
            self.regions.push(Slot::default());
        }
        let slot = &mut self.regions[free];
        // 0 is no region's handle, and one that was given back not that of the next.
        slot.generation = slot.generation % ((1 << (32 - INDEX_BITS)) - 1) + 1;
        slot.registered = Some(Registered { start, len, attributes });
        Ok(slot.generation << INDEX_BITS | free as u32)
    }

    fn slot(&self, handle: u32) -> Option<&Slot> {
        let slot = self.regions.get((handle & ((1 << INDEX_BITS) - 1)) as usize)?;
        (slot.generation == handle >> INDEX_BITS).then_some(slot)
    }

    pub fn deregister(&mut self, start: u64, handle: u32) -> Result<(), VipReturn> {
        let registered = self.slot(handle).and_then(|slot| slot.registered);
        let found = registered.filter(|region| region.start == start).ok_or(VipReturn::InvalidParameter)?;
        self.regions[(handle & ((1 << INDEX_BITS) - 1)) as usize].registered = None;
        self.let_go(found.attributes.ptag);
        Ok(())
    }

    /// Whether a virtual interface with that tag may touch all of the bytes.
    pub fn allows(&self, handle: u32, ptag: u32, (start, len): (u64, u64), access: Access) -> bool {
        let Some(region) = self.slot(handle).and_then(|slot| slot.registered) else { return false };
        let may = match access {
            Access::Local => true,
            Access::RemoteWrite => region.attributes.may_write,
            Access::RemoteRead => region.attributes.may_read,
        };
        let Some(offset) = start.checked_sub(region.start) else { return false };
        may && region.attributes.ptag == ptag && offset <= region.len && len <= region.len - offset
    }

    pub fn attributes(&self, start: u64, handle: u32) -> Result<MemoryAttributes, VipReturn> {
        let registered = self.slot(handle).and_then(|slot| slot.registered);
        let found = registered.filter(|region| start.wrapping_sub(region.start) < region.len);
        Ok(found.ok_or(VipReturn::InvalidParameter)?.attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_registered_with_the_tag_may_be_touched() {
        let mut registry = Registry::default();
        let [own, other] = [(); 2].map(|()| registry.create_ptag().expect("a tag"));
        let attributes = MemoryAttributes { ptag: own, may_write: true, may_read: false };
        let handle = registry.register(1000, 100, attributes).expect("registered");
        for (place, is_allowed) in [
            ((1000, 100), true),
            ((1099, 1), true),
            ((1100, 0), true),
            ((999, 1), false),
            ((1000, 101), false),
            ((1100, 1), false),
            ((u64::MAX, 2), false),
            ((1001, u64::MAX), false),
        ] {
            assert_eq!(registry.allows(handle, own, place, Access::Local), is_allowed, "{place:?}");
            assert_eq!(registry.allows(handle, own, place, Access::RemoteWrite), is_allowed, "{place:?}");
            assert!(!registry.allows(handle, own, place, Access::RemoteRead));
            assert!(!registry.allows(handle, other, place, Access::Local), "another tag");
            assert!(!registry.allows(handle ^ 1 << 12, own, place, Access::Local), "another handle");
        }
        assert_eq!(registry.destroy_ptag(own), Err(VipReturn::ErrorResource), "it is in use");
        assert_eq!(registry.deregister(1001, handle), Err(VipReturn::InvalidParameter));
        assert_eq!(registry.deregister(1000, handle), Ok(()));
        assert!(!registry.allows(handle, own, (1000, 1), Access::Local), "given back");
        let again = registry.register(1000, 100, attributes).expect("registered");
        assert_ne!(again, handle);
        assert_eq!(registry.deregister(1000, handle), Err(VipReturn::InvalidParameter), "that of before");
        assert_eq!(registry.deregister(1000, again), Ok(()));
        assert_eq!(registry.destroy_ptag(own), Ok(()));
        assert_eq!(registry.destroy_ptag(own), Err(VipReturn::InvalidPtag));
        assert_eq!(registry.register(1000, 100, attributes), Err(VipReturn::InvalidPtag));
        assert_eq!(
            registry.register(0, 100, MemoryAttributes { ptag: other, ..attributes }).err(),
            Some(VipReturn::InvalidParameter)
        );
        for _ in 1..PTAGS_MAX {
            assert!(registry.create_ptag().is_ok());
        }
        assert_eq!(registry.create_ptag(), Err(VipReturn::ErrorResource));
    }
}
