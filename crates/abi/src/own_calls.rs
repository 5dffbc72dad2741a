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
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
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

/// Which call a system-call instruction makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    Number(u32),
    /// The number comes from somewhere else: an argument, the stack, memory. It may be any.
    Any,
}

/// Whether code makes calls of its own that wait for sockets or move their bytes, or may: where one function makes all calls, as it does in whatever
/// was built without optimisation, nobody can tell.
pub fn are_in(text: &[u8]) -> bool {
    let mut hints: u32 = 0;
    for made in made_in(text) {
        let Made::Number(number) = made else { return true };
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

/// The calls of system-call instructions. Bytes that look like one by chance have no number before them, and nothing that would bring one.
#[cfg(target_arch = "x86_64")]
fn made_in(text: &[u8]) -> impl Iterator<Item = Made> {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    /// Bytes before it in which the number is looked for: room for the arguments' registers.
    const BEFORE: usize = 48;
    const MOV_EAX: u8 = 0xb8;
    /// No call has a larger number.
    const NUMBER_MAX: u32 = 1023;
    memmem::find_iter(text, &SYSCALL).filter_map(move |at| {
        let before = text.get(at.saturating_sub(BEFORE)..at)?;
        if set_up::brings_number(before) {
            return Some(Made::Any);
        }
        let moves = before.windows(5).rev().filter(|window| window[0] == MOV_EAX);
        moves
            .map(|window| u32::from_le_bytes([window[1], window[2], window[3], window[4]]))
            .find(|n| *n <= NUMBER_MAX)
            .map(Made::Number)
    })
}

/// What stands before a system-call instruction: moves into the registers of its number and arguments.
#[cfg(target_arch = "x86_64")]
mod set_up {
    /// What a move does to the register of the number.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Number {
        Unchanged,
        /// It is in the instruction, or in a register that some instruction before has told it.
        Known,
        /// It comes from memory, or from the first argument of a function.
        Brought,
    }

    /// Whether the bytes end in such moves, one after the other, of which the last that is into RAX brings a number that nothing tells. The
    /// longest row of them counts: one that begins within an instruction soon is in step with it, or ends.
    pub fn brings_number(bytes: &[u8]) -> bool {
        let longest = (0..bytes.len()).find_map(|begin| number_of(&bytes[begin..]));
        longest == Some(Number::Brought)
    }

    /// `None`: the bytes are not moves alone.
    fn number_of(mut bytes: &[u8]) -> Option<Number> {
        let mut number = Number::Unchanged;
        while !bytes.is_empty() {
            let (len, does) = move_at(bytes)?;
            bytes = bytes.get(len..)?;
            number = if does == Number::Unchanged { number } else { does };
        }
        Some(number)
    }

    /// The move that the bytes begin with: its length, and what it does.
    fn move_at(bytes: &[u8]) -> Option<(usize, Number)> {
        let rex = *bytes.first()?;
        let has_rex = rex & 0xf0 == 0x40;
        let rex = if has_rex { rex } else { 0 };
        let at = usize::from(has_rex);
        let (is_wide, reg_high, rm_high) = (rex & 8 != 0, rex & 4 != 0, rex & 1 != 0);
        let opcode = *bytes.get(at)?;
        let behind = bytes.get(at + 1..)?;
        let modrm = behind.first().copied().unwrap_or(0);
        let (reg, rm, is_register) = (modrm >> 3 & 7, modrm & 7, modrm >> 6 == 3);
        let (into_reg, into_rm) = (reg == 0 && !reg_high, is_register && rm == 0 && !rm_high);
        let of = |is_rax: bool, number| if is_rax { number } else { Number::Unchanged };
        // RDI, or its half, has a function's first argument.
        let from = |register: u8, is_high: bool| {
            if register == 7 && !is_high { Number::Brought } else { Number::Known }
        };
        match opcode {
            // mov and movsxd into a register, lea.
            0x8b | 0x8d | 0x63 if opcode != 0x63 || is_wide => {
                let brought = if is_register { from(rm, rm_high) } else { Number::Brought };
                Some((at + 1 + operand_len(behind)?, of(into_reg, brought)))
            }
            // mov out of one.
            0x89 => Some((at + 1 + operand_len(behind)?, of(into_rm, from(reg, reg_high)))),
            // cdqe.
            0x98 if is_wide => Some((at + 1, Number::Unchanged)),
            // xor: of a register with itself it is zero.
            0x31 | 0x33 if is_register => Some((at + 2, of(into_rm, Number::Known))),
            // mov of a number.
            0xb8..=0xbf => {
                let len = if is_wide { 8 } else { 4 };
                Some((at + 1 + len, of(opcode == 0xb8 && !rm_high, Number::Known)))
            }
            0xc7 => Some((at + 1 + operand_len(behind)? + 4, of(into_rm, Number::Known))),
            _ => None,
        }
    }

    /// Bytes of ModRM, SIB and displacement.
    fn operand_len(bytes: &[u8]) -> Option<usize> {
        let modrm = *bytes.first()?;
        let (kind, rm) = (modrm >> 6, modrm & 7);
        if kind == 3 {
            return Some(1);
        }
        let has_sib = rm == 4;
        let base = if has_sib { *bytes.get(1)? & 7 } else { rm };
        let displacement = match kind {
            0 if base == 5 => 4,
            0 => 0,
            1 => 1,
            _ => 4,
        };
        Some(1 + usize::from(has_sib) + displacement)
    }
}

/// As on x86-64; the number is in register 8.
#[cfg(not(target_arch = "x86_64"))]
fn made_in(text: &[u8]) -> impl Iterator<Item = Made> {
    /// `svc #0`.
    const SVC: [u8; 4] = [0x01, 0x00, 0x00, 0xd4];
    const BEFORE: usize = 48;
    /// `mov w8, #number` and `mov x8, #number`, without the number.
    const MOVES: [u32; 2] = [0x5280_0008, 0xd280_0008];
    const NUMBER: u32 = 0xffff << 5;
    /// `mov x8, x0` to `x30`, `ldr x8` and `ldur x8` of memory, without the other register and the place.
    const BRINGS: [(u32, u32); 3] =
        [(0xffe0_ffff, 0xaa00_03e8), (0xffc0_001f, 0xf940_0008), (0xffe0_0c1f, 0xf840_0008)];
    memmem::find_iter(text, &SVC).filter_map(move |at| {
        let before = text.get(at.saturating_sub(BEFORE)..at)?;
        let words = before.rchunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
        // The last one before it counts.
        words
            .filter_map(|word| match word {
                _ if MOVES.contains(&(word & !NUMBER)) => Some(Made::Number((word & NUMBER) >> 5)),
                _ if BRINGS.iter().any(|(mask, what)| word & mask == *what) => Some(Made::Any),
                _ => None,
            })
            .next()
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

    /// What compilers make without optimisation: `mov rax, [rsp+8]` and its like, the arguments, the instruction.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_number_that_nobody_can_tell_may_be_any() {
        let call = |set_up: &[&[u8]]| [&[0x90; 64][..], &set_up.concat(), &[0x0f, 0x05]].concat();
        let (rax_of_rsp, rax_of_rbp): (&[u8], &[u8]) =
            (&[0x48, 0x8b, 0x44, 0x24, 8], &[0x48, 0x8b, 0x45, 0xe8]);
        let (rax_of_rdi, eax_of_edi): (&[u8], &[u8]) = (&[0x48, 0x89, 0xf8], &[0x89, 0xf8]);
        let rdi_of_rbp: &[u8] = &[0x48, 0x8b, 0x7d, 0xe0];
        let r10_of_stack: &[u8] = &[0x4c, 0x8b, 0x94, 0x24, 0, 1, 0, 0];
        let (rdi_of_rsi, r8_of_r9): (&[u8], &[u8]) = (&[0x48, 0x89, 0xf7], &[0x4d, 0x89, 0xc8]);
        for set_up in [
            &[rax_of_rsp][..],
            &[rax_of_rbp, rdi_of_rbp, r10_of_stack],
            &[&[0x8b, 0x45, 0xfc], &[0x48, 0x98], rdi_of_rbp],
            &[rax_of_rdi, rdi_of_rsi, r8_of_r9],
            &[eax_of_edi, rdi_of_rsi],
        ] {
            assert!(are_in(&call(set_up)), "{set_up:02x?}");
        }
        let (futex, futex_in_r8): (&[u8], &[u8]) = (&[0xb8, 202, 0, 0, 0], &[0x41, 0xb8, 202, 0, 0, 0]);
        let eax_of_r8: &[u8] = &[0x44, 0x89, 0xc0];
        // By chance, told afterwards, or told to the register that it comes from.
        for set_up in [
            &[rdi_of_rbp, r10_of_stack][..],
            &[rax_of_rsp, futex, rdi_of_rbp],
            &[futex_in_r8, rdi_of_rsi, eax_of_r8],
            &[futex, &[0x49, 0x89, 0xd8]],
            &[rax_of_rsp, &[0xc3]],
            &[&[0x31, 0xc0], rdi_of_rsi],
        ] {
            assert!(!are_in(&call(set_up)), "{set_up:02x?}");
        }
    }
}
