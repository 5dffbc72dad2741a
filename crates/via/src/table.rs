//! The channels of C programs: numbers for them, so that one that is closed is known for what it is, also when its number is used again.

use crate::channel::Channel;
use crate::error::Error;
use std::sync::{Arc, PoisonError, RwLock};

/// Channels that a process can have.
const CHANNELS_MAX: usize = 1 << 12;
const INDEX_BITS: u32 = 12;
const GENERATIONS: u32 = 1 << 18;

#[derive(Debug)]
struct Slot {
    generation: u32,
    channel: Option<Arc<Channel>>,
}

static TABLE: RwLock<Vec<Slot>> = RwLock::new(Vec::new());

fn split(handle: i32) -> Option<(usize, u32)> {
    let handle = u32::try_from(handle).ok()?;
    Some(((handle as usize) & (CHANNELS_MAX - 1), handle >> INDEX_BITS))
}

/// A number for the channel.
pub(crate) fn add(channel: Channel) -> Result<i32, Error> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let free = table.iter().position(|slot| slot.channel.is_none());
    let index = free.unwrap_or(table.len());
    if index == CHANNELS_MAX {
        return Err(Error::NoRoom);
    }
    if free.is_none() {
        table.push(Slot { generation: 0, channel: None });
    }
    let slot = &mut table[index];
    // 0 is no channel's number: a record that is all zeros is none.
    slot.generation = slot.generation % (GENERATIONS - 1) + 1;
    slot.channel = Some(Arc::new(channel));
    Ok((slot.generation << INDEX_BITS) as i32 | index as i32)
}

/// The channel that has the number.
#[inline]
pub(crate) fn get(handle: i32) -> Result<Arc<Channel>, Error> {
    let (index, generation) = split(handle).ok_or(Error::NoChannel)?;
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let slot = table.get(index).filter(|slot| slot.generation == generation);
    slot.and_then(|slot| slot.channel.clone()).ok_or(Error::NoChannel)
}

/// Takes the number back.
pub(crate) fn remove(handle: i32) -> Result<Arc<Channel>, Error> {
    let (index, generation) = split(handle).ok_or(Error::NoChannel)?;
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let slot = table.get_mut(index).filter(|slot| slot.generation == generation);
    slot.and_then(|slot| slot.channel.take()).ok_or(Error::NoChannel)
}
