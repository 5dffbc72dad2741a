//! What numbers of C programs stand for: so that what is closed is known for what it is, also when its number is used again.

use std::sync::{Arc, PoisonError, RwLock};

/// Things of a kind that a process can have.
const THINGS_MAX: usize = 1 << 12;
const INDEX_BITS: u32 = 12;
const GENERATIONS: u32 = 1 << 18;

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    thing: Option<Arc<T>>,
}

/// All things of a kind.
#[derive(Debug)]
pub(crate) struct Table<T>(RwLock<Vec<Slot<T>>>);

fn split(handle: i32) -> Option<(usize, u32)> {
    let handle = u32::try_from(handle).ok()?;
    Some(((handle as usize) & (THINGS_MAX - 1), handle >> INDEX_BITS))
}

impl<T> Table<T> {
    pub const fn new() -> Table<T> {
        Table(RwLock::new(Vec::new()))
    }

    /// A number for a thing. `None`: there are as many as there may be.
    pub fn add(&self, thing: Arc<T>) -> Option<i32> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let free = table.iter().position(|slot| slot.thing.is_none());
        let index = free.unwrap_or(table.len());
        if index == THINGS_MAX {
            return None;
        }
        if free.is_none() {
            table.push(Slot { generation: 0, thing: None });
        }
        let slot = &mut table[index];
        // 0 is no thing's number: a record that is all zeros is none.
        slot.generation = slot.generation % (GENERATIONS - 1) + 1;
        slot.thing = Some(thing);
        Some((slot.generation << INDEX_BITS) as i32 | index as i32)
    }

    /// The thing that has the number.
    #[inline]
    pub fn get(&self, handle: i32) -> Option<Arc<T>> {
        let (index, generation) = split(handle)?;
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.get(index).filter(|slot| slot.generation == generation)?.thing.clone()
    }

    /// Takes the number back.
    pub fn remove(&self, handle: i32) -> Option<Arc<T>> {
        let (index, generation) = split(handle)?;
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.get_mut(index).filter(|slot| slot.generation == generation)?.thing.take()
    }
}
