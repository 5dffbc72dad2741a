//! The mapping: borders, seals, holes.

use super::Random;
use crate::region::{OutOfRange, Region};
use crate::sync::{Ordering, Words};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::Errno;
use toe_abi::command::FlowInfo;
use toe_abi::region::{PAGE, REGION_MAGIC, RegionHeader, RegionLayout};

const LEN: u64 = 16 * PAGE;

#[test]
fn both_sides_see_the_same_bytes() {
    let (engine, file) = Region::create(LEN).unwrap();
    let host = Region::map(&file, LEN).unwrap();
    engine.write(5000, b"hello").unwrap();
    let mut seen = [0; 5];
    host.read(5000, &mut seen).unwrap();
    assert_eq!(&seen, b"hello");
    host.write_u32(8, 7).unwrap();
    assert_eq!(engine.read_u32(8), Ok(7));
    let info = FlowInfo { mss: 1460, cwnd: 99, ..FlowInfo::default() };
    engine.write_record(4096, &info).unwrap();
    assert_eq!(host.read_record::<FlowInfo>(4096), Ok(info));
}

#[test]
fn an_access_is_inside_or_refused() {
    let (region, _file) = Region::create(LEN).unwrap();
    let offsets = [0, 1, 4, 7, LEN - 9, LEN - 8, LEN - 7, LEN - 1, LEN, LEN + 1, u64::MAX - 7, u64::MAX];
    for offset in offsets {
        for len in [0usize, 1, 4, 8, 9, 4096] {
            let inside = offset <= LEN && len as u64 <= LEN - offset;
            let mut out = vec![0; len];
            assert_eq!(region.read(offset, &mut out).is_ok(), inside, "read {offset} {len}");
            assert_eq!(region.write(offset, &out).is_ok(), inside, "write {offset} {len}");
            assert_eq!(Region::copy_between(&region, offset, &region, 0, len as u32).is_ok(), inside);
            assert_eq!(Region::copy_between(&region, 0, &region, offset, len as u32).is_ok(), inside);
        }
        let word = offset.is_multiple_of(4) && offset <= LEN - 4;
        assert_eq!(region.read_u32(offset).is_ok(), word, "{offset}");
        assert_eq!(region.write_u32(offset, 1).is_ok(), word);
        // The ring ends' accesses cannot fail, so out of range they do nothing.
        region.store_u64(offset, 5, Ordering::Relaxed);
        region.store_u32(offset, 5, Ordering::Relaxed);
        if offset > LEN - 4 {
            assert_eq!(region.load_u64(offset, Ordering::Relaxed), 0);
            assert_eq!(region.load_u32(offset, Ordering::Relaxed), 0);
        }
    }
    assert_eq!(region.read_record::<FlowInfo>(LEN - 63), Err(OutOfRange));
}

#[test]
fn copies_between_regions_agree_with_a_plain_copy() {
    let (a, _file) = Region::create(LEN).unwrap();
    let (b, _file) = Region::create(LEN).unwrap();
    let mut random = Random(1);
    let mut plain = vec![0u8; LEN as usize];
    for byte in &mut plain {
        *byte = random.next() as u8;
    }
    a.write(0, &plain).unwrap();
    let mut other = vec![0u8; LEN as usize];
    for _ in 0..500 {
        let len = random.below(PAGE) as usize;
        let (from, to) = (random.below(LEN - PAGE) as usize, random.below(LEN - PAGE) as usize);
        Region::copy_between(&a, from as u64, &b, to as u64, len as u32).unwrap();
        other[to..to + len].copy_from_slice(&plain[from..from + len]);
        // Within one region, the ranges may overlap.
        Region::copy_between(&a, from as u64, &a, to as u64, len as u32).unwrap();
        plain.copy_within(from..from + len, to);
    }
    let mut seen = vec![0; LEN as usize];
    a.read(0, &mut seen).unwrap();
    assert!(seen == plain);
    b.read(0, &mut seen).unwrap();
    assert!(seen == other);
}

#[test]
fn a_region_cannot_be_resized_or_mapped_with_a_wrong_size() {
    let (_engine, file) = Region::create(LEN).unwrap();
    assert_eq!(rustix::fs::ftruncate(&file, PAGE), Err(Errno::PERM));
    assert_eq!(rustix::fs::ftruncate(&file, LEN * 2), Err(Errno::PERM));
    assert_eq!(Region::map(&file, LEN + PAGE).err(), Some(Errno::INVAL));
    assert_eq!(Region::map(&file, LEN - PAGE).err(), Some(Errno::INVAL));
    assert_eq!(Region::create(0).err(), Some(Errno::INVAL));
}

/// Whoever has the file could punch holes into it, and have a page fault of the engine's wait until that is over.
#[test]
fn what_is_withheld_is_not_touched_until_it_is_settled() {
    let (region, file) = Region::create(LEN).unwrap();
    let other = Region::map(&file, LEN).unwrap();
    let punch = || {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, flags, 0, PAGE)
    };
    region.write(0, b"before").unwrap();
    region.withhold();
    assert_eq!((region.write(0, b"lost"), region.read_u32(0)), (Err(OutOfRange), Err(OutOfRange)));
    region.store_u32(0, 1, Ordering::Release);
    assert_eq!((region.load_u32(0, Ordering::Acquire), punch()), (0, Ok(())));
    region.settle(&file).unwrap();
    assert_eq!(region.read_u32(0), Ok(0));
    other.write(0, b"on").unwrap();
    let mut bytes = [0; 2];
    region.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"on", "what is mapped goes on");
    // Nor by MADV_REMOVE, by writing or by another mapping.
    assert_eq!((punch(), other.fill_hole(0, PAGE)), (Err(Errno::PERM), Err(Errno::PERM)));
    assert_eq!(rustix::io::pwrite(&file, b"x", 0), Err(Errno::PERM));
    assert_eq!(Region::map(&file, LEN).err(), Some(Errno::PERM));
    region.settle(&file).unwrap();
    // SAFETY: needed to see that what is gone stays so. Nobody else is in a method.
    unsafe { region.abandon() };
    region.open();
    assert!(region.is_empty());
}

/// The engine gives pages of it back, and nobody else.
#[test]
fn the_receive_part_is_only_read_by_its_host() {
    let layout = RegionLayout { queue_sets: 1, flows: 16, receive_len: LEN, send_len: LEN };
    let (region, [file, to_read]) = Region::create_for(&layout, 1).unwrap();
    let host = Region::map_for(&layout, [&file, &to_read]).unwrap();
    let at = layout.receive_offset();
    region.write(at, &[7; LEN as usize]).unwrap();
    host.write(layout.send_offset(), &[9]).unwrap();
    let (mut seen, mut sent) = ([0; LEN as usize], [0]);
    host.read(at, &mut seen).unwrap();
    region.read(layout.send_offset(), &mut sent).unwrap();
    assert!(seen == [7; LEN as usize] && sent == [9]);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(rustix::fs::fallocate(&to_read, flags, 0, PAGE), Err(Errno::BADF));
    assert_eq!(host.fill_hole(at, PAGE), Err(Errno::ACCESS));
    let blocks = || rustix::fs::fstat(&to_read).unwrap().st_blocks;
    assert_eq!(blocks(), LEN as i64 / 512);
    region.fill_hole(at, LEN).unwrap();
    assert_eq!(blocks(), 0);
    host.read(at, &mut seen).unwrap();
    assert!(seen == [0; LEN as usize]);
    let uneven = RegionLayout { receive_len: LEN + 1, ..layout };
    assert_eq!(Region::create_for(&uneven, 1).err(), Some(Errno::INVAL));
}

#[test]
fn memory_that_could_shrink_is_refused() {
    let file = rustix::fs::memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, LEN).unwrap();
    assert_eq!(Region::map(&file, LEN).err(), Some(Errno::INVAL));
}

#[test]
fn a_hole_gives_memory_back_and_reads_as_zero() {
    let (region, file) = Region::create(LEN).unwrap();
    region.write(0, &vec![0xff; LEN as usize]).unwrap();
    let blocks = || rustix::fs::fstat(&file).unwrap().st_blocks;
    let before = blocks();
    region.fill_hole(100, 4 * PAGE).unwrap();
    assert_eq!(before - blocks(), 3 * PAGE as i64 / 512, "three whole pages lie in the range");
    let mut bytes = vec![0; LEN as usize];
    region.read(0, &mut bytes).unwrap();
    for (at, byte) in bytes.iter().enumerate() {
        let in_hole = (PAGE as usize..4 * PAGE as usize).contains(&at);
        assert_eq!(*byte, if in_hole { 0 } else { 0xff }, "{at}");
    }
    region.fill_hole(10, 20).unwrap();
    assert_eq!(region.fill_hole(LEN - 1, 2), Err(Errno::INVAL));
    assert_eq!(region.fill_hole(u64::MAX, 2), Err(Errno::INVAL));
}

#[test]
fn a_large_region_takes_no_memory_until_it_is_used() {
    let layout = RegionLayout { queue_sets: 16, flows: 1 << 15, receive_len: 64 << 30, send_len: 64 << 30 };
    let (region, [file, _]) = Region::create_for(&layout, 3).unwrap();
    assert_eq!(region.len(), layout.len());
    assert!(rustix::fs::fstat(&file).unwrap().st_blocks <= 16);
    let header: RegionHeader = region.read_record(0).unwrap();
    assert_eq!((header.magic, header.session), (REGION_MAGIC, 3));
    region.write(layout.len() - 1, &[1]).unwrap();
}
