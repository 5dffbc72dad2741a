//! Arguments that are refused of calls which the table lets through: what they would reach is nothing that an engine works with. Clones of the
//! process in namespaces of their own would have every capability there.

use nix::libc;
use seccompiler::SeccompCmpArgLen::Dword;
use seccompiler::SeccompCmpOp::{MaskedEq, Ne};
use seccompiler::{BackendError, SeccompCondition, SeccompRule};
use std::collections::BTreeMap;

/// Bits of clone's flags: namespaces, and what makes a process or a way into one of what should be a thread.
const CLONE_BITS: [libc::c_int; 9] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_PTRACE,
    libc::CLONE_PARENT,
];
/// Links, port numbers that the kernel keeps, netlink, interrupts.
const FAMILIES: [libc::c_int; 6] =
    [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_XDP];
/// linux/prctl.h
const PR_GET_AUXV: libc::c_int = 0x4155_5856;
/// A thread's name and how exactly it is woken, a filter's beginning, the C library's names of memory, and what the kernel told the process in
/// the beginning.
const PRCTLS: [libc::c_int; 5] =
    [libc::PR_SET_NAME, libc::PR_SET_TIMERSLACK, libc::PR_SET_NO_NEW_PRIVS, libc::PR_SET_VMA, PR_GET_AUXV];
/// Of links; the last two are the standard library's, of its own descriptors.
const IOCTLS: [libc::Ioctl; 12] = [
    libc::TUNSETIFF,
    libc::TUNSETVNETHDRSZ,
    libc::TUNSETOFFLOAD,
    libc::TUNSETTXFILTER,
    libc::SIOCGIFINDEX,
    libc::SIOCGIFMTU,
    libc::SIOCGIFHWADDR,
    libc::SIOCGIFFLAGS,
    libc::SIOCSIFFLAGS,
    libc::SIOCGIFADDR,
    libc::FIONBIO,
    libc::FIOCLEX,
];
/// Files are made and emptied before.
const OPEN_BITS: [libc::c_int; 2] = [libc::O_CREAT, libc::O_TRUNC];

/// What is refused, by call.
pub(super) fn refused() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let values = |of: &[libc::c_int]| of.iter().map(|value| *value as u32).collect::<Vec<_>>();
    Ok([
        (libc::SYS_clone, any_bit(0, &values(&CLONE_BITS))?),
        (libc::SYS_socket, none_of(0, &values(&FAMILIES))?),
        (libc::SYS_socketpair, none_of(0, &[libc::AF_UNIX as u32])?),
        (libc::SYS_prctl, none_of(0, &values(&PRCTLS))?),
        (libc::SYS_ioctl, none_of(1, &IOCTLS.map(|request| request as u32))?),
        (libc::SYS_openat, any_bit(2, &values(&OPEN_BITS))?),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, any_bit(1, &values(&OPEN_BITS))?),
    ]
    .into())
}

/// Where one of these bits is set.
fn any_bit(argument: u8, bits: &[u32]) -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |bit: &u32| {
        let bit = u64::from(*bit);
        SeccompRule::new(vec![SeccompCondition::new(argument, Dword, MaskedEq(bit), bit)?])
    };
    bits.iter().map(rule).collect()
}

/// Where it is another value than these.
fn none_of(argument: u8, values: &[u32]) -> Result<Vec<SeccompRule>, BackendError> {
    let is_other = |value: &u32| SeccompCondition::new(argument, Dword, Ne, u64::from(*value));
    Ok(vec![SeccompRule::new(values.iter().map(is_other).collect::<Result<_, _>>()?)?])
}
