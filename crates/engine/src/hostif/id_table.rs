//! By what a session names what it has: flows, listeners, kernel sockets shown.

use toe_base::FlowId;

/// What is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot<T> {
    Free,
    /// The session may say what is to be in it.
    Promised,
    Used(T),
}

impl<T: Copy> Slot<T> {
    fn value(self) -> Option<T> {
        if let Slot::Used(value) = self { Some(value) } else { None }
    }
}

/// Slots under generation-checked ids: what a session calls its flows or listeners.
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<(u16, Slot<T>)>,
    free: Vec<u32>,
    used: u32,
    pub max: u32,
}

impl<T: Copy> Slots<T> {
    pub fn new(max: u32) -> Slots<T> {
        Slots { slots: Vec::new(), free: Vec::new(), used: 0, max }
    }

    pub fn insert(&mut self, value: T) -> Option<FlowId> {
        let id = self.promise()?;
        self.fulfil(id, value).then_some(id)
    }

    /// An id that nothing has yet.
    pub fn promise(&mut self) -> Option<FlowId> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if (self.slots.len() as u32) < self.max => {
                self.slots.push((0, Slot::Free));
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let entry = &mut self.slots[slot as usize];
        entry.1 = Slot::Promised;
        Some(FlowId::new(slot, entry.0))
    }

    pub fn is_promised(&self, id: FlowId) -> bool {
        self.at(id).is_some_and(|slot| matches!(slot, Slot::Promised))
    }

    /// Gives a promised id to `value`; `false`: it was not promised.
    pub fn fulfil(&mut self, id: FlowId, value: T) -> bool {
        let is_promised = self.is_promised(id);
        if is_promised {
            self.slots[id.slot()].1 = Slot::Used(value);
            self.used += 1;
        }
        is_promised
    }

    /// Takes a promise back: its id means nothing any more.
    pub fn withdraw(&mut self, id: FlowId) {
        if self.is_promised(id) {
            self.empty(id);
            self.free.push(id.slot() as u32);
        }
    }

    fn at(&self, id: FlowId) -> Option<Slot<T>> {
        let (generation, slot) = self.slots.get(id.slot())?;
        (*generation == id.generation()).then_some(*slot)
    }

    pub fn get(&self, id: FlowId) -> Option<T> {
        self.at(id)?.value()
    }

    pub fn remove(&mut self, id: FlowId) -> Option<T> {
        let value = self.take(id)?;
        self.free.push(id.slot() as u32);
        Some(value)
    }

    /// As [`Slots::remove`], but nobody else has the slot before [`Slots::reuse`].
    pub fn retire(&mut self, id: FlowId) -> Option<u32> {
        self.take(id).map(|_| id.slot() as u32)
    }

    /// A retired slot is free.
    pub fn reuse(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Its id means nothing any more.
    fn take(&mut self, id: FlowId) -> Option<T> {
        let value = self.get(id)?;
        self.empty(id);
        self.used -= 1;
        Some(value)
    }

    fn empty(&mut self, id: FlowId) {
        let entry = &mut self.slots[id.slot()];
        *entry = ((entry.0 + 1) & 0xfff, Slot::Free);
    }

    /// The first value in a place from `from` on, and the place behind it.
    pub fn next_from(&self, from: usize) -> Option<(usize, T)> {
        let mut slots = self.slots.iter().enumerate().skip(from);
        slots.find_map(|(at, (_, slot))| Some((at + 1, slot.value()?)))
    }

    /// Whether there can be no other one, as it is.
    pub fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() as u32 >= self.max
    }

    pub fn len(&self) -> u32 {
        self.used
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Takes all of them out.
    pub fn drain(&mut self) -> Vec<(FlowId, T)> {
        let ids = self.slots.iter().enumerate().filter(|(_, (_, slot))| slot.value().is_some());
        let ids: Vec<_> = ids.map(|(slot, (generation, _))| FlowId::new(slot as u32, *generation)).collect();
        ids.into_iter().filter_map(|id| Some((id, self.remove(id)?))).collect()
    }

    pub fn values(&self) -> impl Iterator<Item = T> + '_ {
        self.slots.iter().filter_map(|(_, slot)| slot.value())
    }
}
