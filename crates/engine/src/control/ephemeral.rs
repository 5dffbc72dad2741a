//! Where to look for a free port number, for connections and listeners that name none: a short row of places among
//! those that there are.
//!
//! First come places one after the other from where the last search ended ([`super::port_choice`], RFC 6056 section 3.3.4),
//! which as a rule are free at once. Where many are in use they lie in long rows, and to go along one costs as much as a
//! program likes; so from there on the places are drawn (section 3.3.5, with all there are for its N). With nine of ten in
//! use one row in a thousand finds none; its program asks again, and the next row goes on behind it.

/// Places one after the other, and drawn ones.
pub const IN_ORDER: u32 = 64;
const DRAWN: u32 = 64;

/// The row that begins at `first`, as numbers below `count`; `hash` is that of the destination.
pub fn places(hash: u64, first: u32, count: u32) -> impl Iterator<Item = u32> {
    let in_order = (0..IN_ORDER.min(count)).map(move |step| first.wrapping_add(step) % count);
    let drawn = if count > IN_ORDER { DRAWN } else { 0 };
    let mut state = hash.wrapping_add(first.into());
    in_order.chain((0..drawn).map(move |_| (draw(&mut state) % u64::from(count)) as u32))
}

/// SplitMix64; what nobody else knows of it is the hash.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u32 = 28_232;

    #[test]
    fn a_row_is_short_whatever_is_in_use_and_begins_where_rfc_6056_says() {
        let row: Vec<u32> = places(9, 1_000_005, COUNT).collect();
        assert_eq!(row.len(), 128);
        assert_eq!(row[..2], [1_000_005 % COUNT, 1_000_006 % COUNT]);
        assert!(row.iter().all(|place| *place < COUNT));
    }

    #[test]
    fn behind_a_long_row_of_used_places_a_free_one_is_found_all_the_same() {
        // Nine of ten are in use, all in a row.
        let free = |place: &u32| *place >= COUNT / 10 * 9;
        let found = (0..10_000)
            .filter(|n| places(u64::from(*n) << 20, *n * 7919, COUNT).any(|place| free(&place)))
            .count();
        assert!(found > 9_970, "{found} of 10000");
    }

    #[test]
    fn of_few_places_all_are_looked_at_and_none_twice() {
        for count in [1, 5, 64] {
            let mut row: Vec<u32> = places(77, 1, count).collect();
            row.sort_unstable();
            assert!(row.iter().copied().eq(0..count));
        }
        assert_eq!(places(77, 1, 0).count(), 0);
    }
}
