//! Arrays of plain data that connections have a varying number of: what was sent and is on its way, what came out of order.
//! A record holds an [`Array`], an index and no pointer; the bytes lie here. Idle connections have none.
//!
//! Arrays have a power of two of places and double when they are full. Each size has a list of free ones; memory is
//! taken from the end of one bounded table, so that nothing a peer sends makes it grow beyond that.

use core::num::NonZero;

/// Elements of one connection, in a pool. The record owns it: it must be given back with [`Pool::clear`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Array {
    /// Where its places begin, above [`SIZE_BITS`] that tell how many it has: 0 none, else one more than their logarithm.
    base_and_size: u32,
    /// The first element in use.
    first: u16,
    len: u16,
}

/// [`SIZES`] and 0 are fewer than 2 to the power of these.
const SIZE_BITS: u32 = 4;
/// A place that an [`Array`] can begin at lies before this.
const BASE_LIMIT: usize = 1 << (u32::BITS - SIZE_BITS);
const _: () = assert!(size_of::<Array>() <= 8 && SIZES < 1 << SIZE_BITS);

impl Array {
    fn new(base: u32, places: u16) -> Array {
        Array { base_and_size: base << SIZE_BITS | (size_of_places(places) as u32 + 1), first: 0, len: 0 }
    }

    const fn base(&self) -> u32 {
        self.base_and_size >> SIZE_BITS
    }

    const fn places(&self) -> u16 {
        match self.base_and_size & ((1 << SIZE_BITS) - 1) {
            0 => 0,
            size => 1 << (size - 1),
        }
    }

    pub const fn len(&self) -> usize {
        self.len as usize
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// There are no places left, in this array or at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPlace;

/// Places of the largest one: a connection that would need more makes do with these.
pub const PLACES_MAX: u16 = 4096;
const SIZES: usize = PLACES_MAX.trailing_zeros() as usize + 1;

/// The memory of all arrays of one kind, the smallest of which have `SMALLEST` places.
#[derive(Debug)]
pub struct Pool<T, const SMALLEST: u16 = 4> {
    table: Vec<T>,
    /// Places that the table may have.
    capacity: usize,
    /// Places that only smallest arrays may take: each connection can have one, whatever the others do.
    reserve: usize,
    free: [Vec<u32>; SIZES],
    used: usize,
}

impl<T: Copy + Default, const SMALLEST: u16> Pool<T, SMALLEST> {
    /// Enough for `connections` connections to have a smallest array each, and for some to have large ones.
    pub fn new(flows: usize) -> Self {
        Self::bounded(flows * usize::from(SMALLEST), (flows * 16).max(4 * usize::from(PLACES_MAX)))
    }

    /// The same where no connection has more than a smallest array.
    pub fn of_smallest(flows: usize) -> Self {
        Self::bounded(flows * usize::from(SMALLEST), 0)
    }

    fn bounded(reserve: usize, beyond: usize) -> Self {
        let capacity = reserve + beyond;
        Pool { table: Vec::with_capacity(capacity), capacity, reserve, free: Default::default(), used: 0 }
    }

    pub fn get(&self, array: &Array) -> &[T] {
        let first = array.base() as usize + usize::from(array.first);
        &self.table[first..first + array.len()]
    }

    pub fn get_mut(&mut self, array: &Array) -> &mut [T] {
        let first = array.base() as usize + usize::from(array.first);
        &mut self.table[first..first + array.len()]
    }

    /// Whether [`Pool::insert`] has room for `n` elements more.
    pub fn has_room(&mut self, array: &mut Array, n: u16) -> bool {
        while array.places() - array.len < n {
            if self.grow(array).is_err() {
                return false;
            }
        }
        true
    }

    /// An array of none yet that has so many places: a size that arrays have.
    pub fn with_places(&mut self, places: u16) -> Result<Array, NoPlace> {
        Ok(Array::new(self.take(places)?, places))
    }

    /// Moves the elements of `from` that begin at `at` behind those of `to`, which has the places.
    pub fn move_tail(&mut self, from: &mut Array, at: usize, to: &mut Array) {
        let n = from.len - at as u16;
        debug_assert!(n <= to.places() - to.len);
        if to.first + to.len + n > to.places() {
            self.move_to_front(to);
        }
        let source = from.base() as usize + usize::from(from.first);
        let target = to.base() as usize + usize::from(to.first + to.len);
        self.table.copy_within(source + at..source + from.len(), target);
        to.len += n;
        from.len = at as u16;
        if from.is_empty() {
            self.clear(from);
        }
    }

    /// Puts an element in before the one at `at`, which may be the end.
    pub fn insert(&mut self, array: &mut Array, at: usize, element: T) -> Result<(), NoPlace> {
        if array.len == array.places() {
            self.grow(array)?;
        }
        if array.first + array.len == array.places() {
            self.move_to_front(array);
        }
        let base = array.base() as usize + usize::from(array.first);
        let end = base + array.len();
        self.table.copy_within(base + at..end, base + at + 1);
        self.table[base + at] = element;
        array.len += 1;
        Ok(())
    }

    /// Removes `n` elements from `at` on.
    pub fn remove(&mut self, array: &mut Array, at: usize, n: usize) {
        if n == 0 {
            return;
        }
        if at == 0 {
            array.first += n as u16;
        } else {
            let base = array.base() as usize + usize::from(array.first);
            self.table.copy_within(base + at + n..base + array.len(), base + at);
        }
        array.len -= n as u16;
        if array.is_empty() {
            self.clear(array);
        }
    }

    /// Removes all elements and gives the places back.
    pub fn clear(&mut self, array: &mut Array) {
        if array.places() > 0 {
            self.used -= usize::from(array.places());
            self.free[size_of_places(array.places())].push(array.base());
        }
        *array = Array::default();
    }

    /// Places that this one has.
    pub fn places_of(array: &Array) -> usize {
        usize::from(array.places())
    }

    /// Places that arrays have.
    pub fn used(&self) -> usize {
        self.used
    }

    fn move_to_front(&mut self, array: &mut Array) {
        let base = array.base() as usize;
        let first = base + usize::from(array.first);
        self.table.copy_within(first..first + array.len(), base);
        array.first = 0;
    }

    fn grow(&mut self, array: &mut Array) -> Result<(), NoPlace> {
        let places = if array.places() == 0 { SMALLEST } else { array.places() * 2 };
        if places > PLACES_MAX {
            return Err(NoPlace);
        }
        let base = self.take(places)?;
        let from = array.base() as usize + usize::from(array.first);
        self.table.copy_within(from..from + array.len(), base as usize);
        let len = array.len;
        self.clear(array);
        *array = Array { len, ..Array::new(base, places) };
        Ok(())
    }

    fn take(&mut self, places: u16) -> Result<u32, NoPlace> {
        let base = match self.free[size_of_places(places)].pop() {
            Some(base) => base,
            None => {
                let base = self.table.len();
                let limit = if places == SMALLEST { self.capacity } else { self.capacity - self.reserve };
                if base + usize::from(places) > limit.min(BASE_LIMIT) {
                    return Err(NoPlace);
                }
                self.table.resize(base + usize::from(places), T::default());
                base as u32
            }
        };
        self.used += usize::from(places);
        Ok(base)
    }
}

/// The place of a connection that has one or none in a pool. The record owns it: it must be given back with [`Pool::vacate`].
/// It begins at any multiple of two, as records have several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(2))]
pub struct PoolSlot {
    /// One more than where the place lies.
    at: Option<NonZero<u32>>,
}

const _: () = assert!(size_of::<PoolSlot>() <= 4);

impl PoolSlot {
    pub const fn is_empty(&self) -> bool {
        { self.at }.is_none()
    }

    /// How many it is.
    pub fn len(&self) -> usize {
        usize::from({ self.at }.is_some())
    }

    fn index(&self) -> Option<usize> {
        { self.at }.map(|at| at.get() as usize - 1)
    }
}

/// Of parts of a record that most connections have none of, or not for long.
impl<T: Copy + Default> Pool<T, 1> {
    /// What lies there: the default until somebody has asked to change it.
    pub fn one(&self, slot: &PoolSlot) -> T {
        self.taken(slot).copied().unwrap_or_default()
    }

    /// The same, if there is one.
    pub fn taken(&self, slot: &PoolSlot) -> Option<&T> {
        slot.index().map(|at| &self.table[at])
    }

    /// The same, to be changed.
    pub fn taken_mut(&mut self, slot: &PoolSlot) -> Option<&mut T> {
        slot.index().map(|at| &mut self.table[at])
    }

    /// What is made if there is none; `None` is for more slots than there are connections.
    pub fn one_mut(&mut self, slot: &mut PoolSlot) -> Option<&mut T> {
        if slot.is_empty() {
            let base = self.take(1).ok()?;
            self.table[base as usize] = T::default();
            slot.at = NonZero::new(base + 1);
        }
        self.taken_mut(slot)
    }

    /// Gives the place back, if it has one.
    pub fn vacate(&mut self, slot: &mut PoolSlot) {
        if let Some(at) = slot.index() {
            self.used -= 1;
            self.free[0].push(at as u32);
        }
        *slot = PoolSlot::default();
    }
}

const fn size_of_places(places: u16) -> usize {
    places.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_begins_anew_and_there_is_one_for_each_connection() {
        let mut pool: Pool<u32, 1> = Pool::of_smallest(2);
        let mut slots = [PoolSlot::default(); 3];
        assert_eq!((pool.one(&slots[0]), pool.taken_mut(&slots[0])), (0, None));
        for (n, slot) in slots[..2].iter_mut().enumerate() {
            *pool.one_mut(slot).expect("one each") = n as u32 + 7;
        }
        assert_eq!(pool.one_mut(&mut slots[2]), None);
        assert!(slots[2].is_empty(), "there is no third");
        assert_eq!((pool.one(&slots[0]), pool.one(&slots[1]), pool.used()), (7, 8, 2));
        pool.vacate(&mut slots[0]);
        pool.vacate(&mut slots[2]);
        assert_eq!((slots[0].len(), pool.used()), (0, 1));
        assert_eq!(pool.one_mut(&mut slots[2]).copied(), Some(0), "not what another had");
    }

    #[test]
    fn an_array_is_a_vector_whatever_is_done_to_it() {
        let mut pool: Pool<u32> = Pool::new(4);
        let mut arrays = [Array::default(); 3];
        let mut models: [Vec<u32>; 3] = Default::default();
        let mut seed = 7u32;
        let mut next = move |n: usize| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as usize % n
        };
        for round in 0..20_000u32 {
            let which = next(3);
            let (array, model) = (&mut arrays[which], &mut models[which]);
            if next(5) < 3 {
                let at = next(model.len() + 1);
                pool.insert(array, at, round).expect("room");
                model.insert(at, round);
            } else if !model.is_empty() {
                let at = if next(2) == 0 { 0 } else { next(model.len()) };
                let n = next(model.len() - at + 1);
                pool.remove(array, at, n);
                model.drain(at..at + n);
            }
            assert_eq!(pool.get(array), model.as_slice());
        }
        for array in &mut arrays {
            pool.clear(array);
        }
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn the_greedy_leave_each_flow_a_smallest_array() {
        const FLOWS: usize = 8;
        let mut pool: Pool<u32> = Pool::new(FLOWS);
        let mut greedy = [Array::default(); 8];
        for array in &mut greedy {
            while pool.insert(array, 0, 1).is_ok() {}
        }
        assert_eq!(greedy[0].len(), usize::from(PLACES_MAX), "one may have the most");
        assert!(greedy[7].len() < usize::from(PLACES_MAX), "not all of them");
        let mut modest = [Array::default(); FLOWS - 1];
        for array in &mut modest {
            pool.insert(array, 0, 1).expect("kept for it");
        }
    }
}
