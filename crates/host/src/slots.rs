//! Numbered slots for what comes and goes, with names that stay good while the lock is not held.
//!
//! A slot is used again as soon as it is free. So a number that was read under a lock and is used under the next one may mean
//! another thing by then. A [`SlotId`] says which use of the slot is meant: of one that is over nothing is found.
//!
//! Used by [`crate::queue`] for streams and listeners, and by [`crate::epoll`] for registrations.

/// One use of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId {
    slot: u32,
    uses: u32,
}

impl SlotId {
    /// As one word, for an atomic.
    pub fn to_bits(self) -> u64 {
        u64::from(self.uses) << 32 | u64::from(self.slot)
    }

    pub fn from_bits(bits: u64) -> SlotId {
        SlotId { slot: bits as u32, uses: (bits >> 32) as u32 }
    }
}

#[derive(Debug)]
struct Slot<T> {
    /// How often it was freed.
    uses: u32,
    value: Option<T>,
}

/// The slots.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub fn insert(&mut self, value: T) -> SlotId {
        if let Some(slot) = self.free.pop()
            && let Some(found) = self.slots.get_mut(slot as usize)
        {
            found.value = Some(value);
            return SlotId { slot, uses: found.uses };
        }
        self.slots.push(Slot { uses: 0, value: Some(value) });
        SlotId { slot: (self.slots.len() - 1) as u32, uses: 0 }
    }

    pub fn get(&self, slot_id: SlotId) -> Option<&T> {
        self.slots.get(slot_id.slot as usize).filter(|slot| slot.uses == slot_id.uses)?.value.as_ref()
    }

    pub fn get_mut(&mut self, slot_id: SlotId) -> Option<&mut T> {
        self.slots.get_mut(slot_id.slot as usize).filter(|slot| slot.uses == slot_id.uses)?.value.as_mut()
    }

    pub fn remove(&mut self, slot_id: SlotId) -> Option<T> {
        let slot = self.slots.get_mut(slot_id.slot as usize).filter(|slot| slot.uses == slot_id.uses)?;
        let value = slot.value.take()?;
        slot.uses = slot.uses.wrapping_add(1);
        self.free.push(slot_id.slot);
        Some(value)
    }

    /// Frees all slots: what was told of them before means nothing any more.
    pub fn clear(&mut self) {
        let slot_ids: Vec<SlotId> = self.iter().map(|(slot_id, _)| slot_id).collect();
        slot_ids.into_iter().for_each(|slot_id| drop(self.remove(slot_id)));
    }

    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &T)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| {
            slot.value.as_ref().map(|value| (SlotId { slot: at as u32, uses: slot.uses }, value))
        })
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.value.as_mut())
    }

    /// How many slots there are, in use or not.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a thread was about to accept has gone back for a child to take, and another connection has its slot: it must
    /// not be given to two.
    #[test]
    fn a_place_means_one_use_of_a_slot() {
        let mut slots = Slots::default();
        let first = slots.insert("first");
        assert_eq!(slots.remove(first), Some("first"));
        let second = slots.insert("second");
        assert_eq!((first.slot, first == second), (second.slot, false));
        assert!(slots.get(first).is_none() && slots.remove(first).is_none());
        assert!(slots.get_mut(first).is_none());
        assert_eq!(slots.get(SlotId::from_bits(second.to_bits())), Some(&"second"));
        slots.clear();
        assert_eq!((slots.get(second), slots.values().count(), slots.capacity()), (None, 0, 1));
    }
}
