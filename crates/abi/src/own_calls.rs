//! Programs that make system calls by the machine's own instruction beside the C library's functions (Bun, Rust programs on
//! rustix, liburing): what they do so the switch layer does not see. A program that waits or accepts in that way, on
//! descriptors that it has from the C library, would wait on an engine's socket for ever; so it is recognised by its text, and
//! all of its sockets stay with the kernel.
//!
//! Used by the switch layer, which decides, and by `toe why`, which names the file. `docs/decisions/0027-own-calls.md` says
//! what was measured.

use memchr::memmem;

/// Whether the calls of a file with this path are the C library's or OpenTOE's own.
pub fn is_exempt(path: &[u8]) -> bool {
    const EXEMPT: [&[u8]; 6] = [b"libc.so", b"libc-", b"ld-", b"libpthread", b"libtoe", b"linux-vdso"];
    let name = path.rsplit(|octet| *octet == b'/').next().unwrap_or(path);
    EXEMPT.iter().any(|start| name.starts_with(start)) || path == b"[vdso]"
}

/// Calls that wait for sockets or take connections, and that hardly anybody makes by an instruction for another purpose.
/// A single one tells.
#[cfg(target_arch = "x86_64")]
const TELLING: [u32; 10] = [
    232, // epoll_wait
    233, // epoll_ctl
    270, // pselect6
    271, // ppoll
    281, // epoll_pwait
    288, // accept4
    299, // recvmmsg
    307, // sendmmsg
    426, // io_uring_enter
    441, // epoll_pwait2
];
#[cfg(not(target_arch = "x86_64"))]
const TELLING: [u32; 9] = [
    21,  // epoll_ctl
    22,  // epoll_pwait
    72,  // pselect6
    73,  // ppoll
    242, // accept4
    243, // recvmmsg
    269, // sendmmsg
    426, // io_uring_enter
    441, // epoll_pwait2
];

/// Calls on sockets whose numbers are small, as many constants are: two different ones tell.
#[cfg(target_arch = "x86_64")]
const HINTING: [u32; 9] = [
    7,  // poll
    42, // connect
    43, // accept
    44, // sendto
    45, // recvfrom
    46, // sendmsg
    47, // recvmsg
    49, // bind
    50, // listen
];
#[cfg(not(target_arch = "x86_64"))]
const HINTING: [u32; 8] = [200, 201, 202, 203, 206, 207, 211, 212];

/// Whether code makes calls of its own that wait for sockets or move their octets.
pub fn are_in(text: &[u8]) -> bool {
    let mut hints: u32 = 0;
    for number in numbers_in(text) {
        if TELLING.contains(&number) {
            return true;
        }
        if let Some(hint) = HINTING.iter().position(|known| *known == number) {
            hints |= 1 << hint;
            if hints.count_ones() > 1 {
                return true;
            }
        }
    }
    false
}

/// The numbers that stand before system-call instructions. One that is made elsewhere and handed on is not found: whoever has
/// one function for all calls has it in the C library, as a rule.
#[cfg(target_arch = "x86_64")]
fn numbers_in(text: &[u8]) -> impl Iterator<Item = u32> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    /// Octets before it in which `mov eax, number` is looked for: room for the arguments' registers.
    const BEFORE: usize = 48;
    const MOV_EAX: u8 = 0xb8;
    /// No call has a larger number.
    const NUMBER_MAX: u32 = 1023;
    memmem::find_iter(text, &SYSCALL).filter_map(move |at| {
        let before = text.get(at.saturating_sub(BEFORE)..at)?;
        let moves = before.windows(5).rev().filter(|window| window[0] == MOV_EAX);
        moves
            .map(|window| u32::from_le_bytes([window[1], window[2], window[3], window[4]]))
            .find(|n| *n <= NUMBER_MAX)
    })
}

/// As on x86-64; the number is in register 8.
#[cfg(not(target_arch = "x86_64"))]
fn numbers_in(text: &[u8]) -> impl Iterator<Item = u32> {
    /// `svc #0`.
    const SVC: [u8; 4] = [0x01, 0x00, 0x00, 0xd4];
    const BEFORE: usize = 48;
    /// `mov w8, #number` and `mov x8, #number`, without the number.
    const MOVES: [u32; 2] = [0x5280_0008, 0xd280_0008];
    const NUMBER: u32 = 0xffff << 5;
    memmem::find_iter(text, &SVC).filter_map(move |at| {
        let before = text.get(at.saturating_sub(BEFORE)..at)?;
        let words = before.rchunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
        words.filter(|word| MOVES.contains(&(word & !NUMBER))).map(|word| (word & NUMBER) >> 5).next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_librarys_calls_and_ours_are_known() {
        for path in [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
            "/x/libtoe_switch.so",
            "[vdso]",
        ] {
            assert!(is_exempt(path.as_bytes()), "{path}");
        }
        for path in ["", "/usr/bin/bun", "/usr/lib/liburing.so.2", "/opt/libc/program"] {
            assert!(!is_exempt(path.as_bytes()), "{path}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_call_that_waits_tells_and_others_do_not() {
        let call = |number: u32, between: usize| {
            let mut text = vec![0x90; 64];
            text.push(0xb8);
            text.extend(number.to_le_bytes());
            text.extend(vec![0x90; between]);
            text.extend([0x0f, 0x05]);
            text
        };
        assert!(are_in(&call(233, 0)) && are_in(&call(441, 30)));
        assert!(!are_in(&call(233, 60)), "too far away to belong to it");
        assert!(!are_in(&call(202, 3)), "futex");
        assert!(!are_in(&call(46, 3)), "one small number may be chance");
        assert!(are_in(&[call(46, 3), call(47, 3)].concat()));
        assert!(!are_in(&[call(46, 3), call(46, 3)].concat()));
        assert!(!are_in(&[0x0f, 0x05]) && !are_in(&[]));
    }
}
