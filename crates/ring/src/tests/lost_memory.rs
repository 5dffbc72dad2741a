//! Pages that cannot be had. A file that is cut short under its mapping raises SIGBUS just as one does for whose pages the
//! system has no memory; each test faults in a process of its own.

use crate::lost_memory::{REPLACING, any_event, install};
use crate::region::{OutOfRange, Region};
use core::sync::atomic::Ordering;
use rustix::fd::OwnedFd;
use rustix::fs::MemfdFlags;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use toe_abi::region::PAGE;

const PAGES: u64 = 300;
const LEFT: u64 = 4;
const CHILD: &str = "TOE_RING_FAULTS";

/// Runs the test called `name` in another process, where it faults.
fn in_child(name: &str) -> ExitStatus {
    let test = format!("tests::lost_memory::{name}");
    let program = std::env::current_exe().expect("this program");
    let run =
        Command::new(program).args(["--exact", &test]).env(CHILD, "1").output().expect("another process");
    if !run.status.success() && run.status.signal().is_none() {
        panic!("{}", String::from_utf8_lossy(&run.stdout));
    }
    run.status
}

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

fn file() -> OwnedFd {
    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).expect("memory");
    rustix::fs::ftruncate(&file, PAGES * PAGE).expect("memory");
    file
}

fn cut_short(file: &OwnedFd) {
    rustix::fs::ftruncate(file, LEFT * PAGE).expect("shorter");
}

#[test]
fn what_the_system_has_no_page_for_is_lost_and_nothing_else() {
    if !is_child() {
        assert!(in_child("what_the_system_has_no_page_for_is_lost_and_nothing_else").success());
        return;
    }
    install().expect("a handler");
    let file = file();
    let region = Region::map_watched(&file, PAGES * PAGE).expect("a mapping");
    let (other, _) = Region::create(PAGES * PAGE).expect("memory");
    region.write(0, &[7; 3 * PAGE as usize]).expect("inside");
    cut_short(&file);
    assert!(!any_event() && !region.is_lost());
    let long = vec![9; 200 * PAGE as usize];
    assert_eq!(region.write(2 * PAGE, &long), Err(OutOfRange), "a part was written, then it was lost");
    assert!(region.is_lost() && any_event() && !any_event());
    assert_eq!(region.write(0, &[1]), Err(OutOfRange), "nothing more is written, wherever");
    assert_eq!(region.write_u32(8, 1), Err(OutOfRange));
    assert_eq!(Region::copy_between(&other, 0, &region, 0, 1), Err(OutOfRange));
    assert_eq!(region.mark(8, 5), Ok(()), "but why it ends");
    assert_eq!(region.read_u32(8), Ok(5));
    // More pages than there are spare ones, read as hostile hosts may have them read.
    let mut page = vec![1; PAGE as usize];
    for round in 0..2 {
        for at in (LEFT + 16)..PAGES {
            region.read(at * PAGE, &mut page).expect("inside");
            assert!(page.iter().all(|byte| *byte == 0), "round {round}, page {at}");
        }
    }
    region.read(PAGE, &mut page).expect("inside");
    assert!(page.iter().all(|byte| *byte == 7), "what was there is there");
    other.write(0, &long).expect("inside");
    assert!(!other.is_lost());
    Region::copy_between(&region, 0, &other, 0, (PAGES * PAGE) as u32).expect("inside");
    drop(region);
    // Where it was something else may be, and is not lost.
    let again: Vec<_> = (0..4).map(|_| Region::create(PAGES * PAGE).expect("memory").0).collect();
    for region in &again {
        region.write(0, &vec![3; (PAGES * PAGE) as usize]).expect("inside");
        assert!(!region.is_lost());
    }
}

#[test]
fn a_first_page_that_is_lost_says_nothing_more() {
    if !is_child() {
        assert!(in_child("a_first_page_that_is_lost_says_nothing_more").success());
        return;
    }
    install().expect("a handler");
    let file = file();
    let region = Region::map_watched(&file, PAGES * PAGE).expect("a mapping");
    rustix::fs::ftruncate(&file, 0).expect("shorter");
    assert_eq!(region.read_u32(8), Ok(0));
    assert!(region.is_lost());
    assert_eq!(region.mark(8, 5), Err(OutOfRange));
}

#[test]
fn without_the_handler_it_ends_the_process() {
    if !is_child() {
        let status = in_child("without_the_handler_it_ends_the_process");
        assert_eq!(status.signal(), Some(libc::SIGBUS));
        return;
    }
    let file = file();
    let region = Region::map_watched(&file, PAGES * PAGE).expect("a mapping");
    cut_short(&file);
    let _ = region.write(LEFT * PAGE, &[1]);
}

#[test]
fn a_fault_elsewhere_ends_the_process_as_ever() {
    if !is_child() {
        let status = in_child("a_fault_elsewhere_ends_the_process_as_ever");
        assert_eq!(status.signal(), Some(libc::SIGBUS));
        return;
    }
    install().expect("a handler");
    let file = file();
    let region = Region::map_unwatched(&file, PAGES * PAGE).expect("a mapping");
    cut_short(&file);
    let _ = region.write(LEFT * PAGE, &[1]);
}

#[test]
fn a_reserved_region_is_memory_like_any() {
    let region = Region::reserve(64 * PAGE).expect("memory");
    region.write(PAGE - 2, b"hello").expect("inside");
    let mut seen = [0; 5];
    region.read(PAGE - 2, &mut seen).expect("inside");
    assert_eq!(&seen, b"hello");
    region.fill_hole(0, 64 * PAGE).expect("pages are given back");
    region.read(PAGE - 2, &mut seen).expect("inside");
    assert_eq!(seen, [0; 5]);
    // Twice what an address space holds: refused as a value.
    assert!(Region::reserve(1 << 50).is_err());
}

/// Bytes of spare pages that stand somewhere.
fn spare_bytes() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a list");
    let spares = maps.lines().filter(|line| line.contains("memfd:toe-spare"));
    let len = |line: &str| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        Some(u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(start, 16).ok()?)
    };
    spares.filter_map(len).sum()
}

#[test]
fn a_copy_within_lost_memory_reaches_fewer_pages_than_there_are_spare_ones() {
    if !is_child() {
        assert!(
            in_child("a_copy_within_lost_memory_reaches_fewer_pages_than_there_are_spare_ones").success()
        );
        return;
    }
    install().expect("a handler");
    for (from, to) in [(LEFT + 3, LEFT + 2), (LEFT + 2, LEFT + 3)] {
        let file = file();
        let region = Region::map_watched(&file, PAGES * PAGE).expect("a mapping");
        cut_short(&file);
        let len = 150 * PAGE as u32;
        Region::copy_between(&region, from * PAGE + 5, &region, to * PAGE, len).expect("inside");
        assert!(region.is_lost());
        let pages = spare_bytes() / PAGE;
        assert!((1..40).contains(&pages), "{pages} pages of one step, read and written");
    }
}

/// Else the handler puts a page where something else is by then.
#[test]
fn a_region_is_not_unmapped_while_a_handler_may_take_a_page_from_it() {
    if !is_child() {
        assert!(in_child("a_region_is_not_unmapped_while_a_handler_may_take_a_page_from_it").success());
        return;
    }
    let region = Region::map_watched(file(), PAGES * PAGE).expect("a mapping");
    REPLACING.fetch_add(1, Ordering::SeqCst);
    let unmapping = std::thread::spawn(move || drop(region));
    for _ in 0..10_000 {
        std::thread::yield_now();
        assert!(!unmapping.is_finished());
    }
    REPLACING.fetch_sub(1, Ordering::SeqCst);
    unmapping.join().expect("unmapped");
}
