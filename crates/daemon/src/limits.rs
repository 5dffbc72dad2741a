//! Limits of the system under which no engine can work: told before anything is opened, as what meets them later only says "out of
//! memory" or "too many open files". Called by `main`.

use rustix::process::{Resource, Rlimit, getrlimit};

/// Descriptors of an engine with one link and one program, with some to spare.
const DESCRIPTORS_MIN: u64 = 64;
/// Address space of an engine: tables for all flows that there may be and one session's memory, most of it never touched.
const ADDRESS_SPACE_MIN: u64 = 2 << 30;

/// What is too small, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooSmall {
    #[error(
        "only {0} descriptors may be open here, and an engine needs at least {DESCRIPTORS_MIN}: raise the limit (ulimit -n, \
         LimitNOFILE)"
    )]
    Descriptors(u64),
    #[error(
        "only {} MiB of address space may be used here, and an engine needs at least {} MiB, most of it never touched: raise the \
         limit (ulimit -v, LimitAS)",
        .0 >> 20, ADDRESS_SPACE_MIN >> 20
    )]
    AddressSpace(u64),
}

/// Whether an engine can work within the limits of this process.
pub fn check() -> Result<(), TooSmall> {
    judge(getrlimit(Resource::Nofile), getrlimit(Resource::As))
}

/// Of descriptors the engine raises its limit itself, as far as it may.
fn judge(descriptors: Rlimit, address_space: Rlimit) -> Result<(), TooSmall> {
    match (descriptors.maximum, address_space.current) {
        (Some(most), _) if most < DESCRIPTORS_MIN => Err(TooSmall::Descriptors(most)),
        (_, Some(most)) if most < ADDRESS_SPACE_MIN => Err(TooSmall::AddressSpace(most)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_small_is_told_with_what_to_do() {
        let limit = |most| Rlimit { current: most, maximum: most };
        assert_eq!(judge(limit(None), limit(None)), Ok(()));
        assert_eq!(judge(limit(Some(DESCRIPTORS_MIN)), limit(Some(ADDRESS_SPACE_MIN))), Ok(()));
        let message = judge(limit(Some(16)), limit(None)).expect_err("too few").to_string();
        assert!(message.contains("only 16 descriptors") && message.contains("ulimit -n"), "{message}");
        let message = judge(limit(None), limit(Some(100 << 20))).expect_err("too little").to_string();
        assert!(message.contains("only 100 MiB") && message.contains("ulimit -v"), "{message}");
    }
}
