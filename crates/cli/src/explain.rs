//! What `toe run --explain` prints when the program has ended: how many of its sockets went where, and why.

use crate::Failure;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use toe_abi::why::{Reason, Stack, TALLY_LEN, tally_place};

/// The counts that the program's processes write.
#[derive(Debug)]
pub struct Tally {
    memory: File,
}

impl Tally {
    pub fn new() -> Result<Tally, Failure> {
        let failed =
            |error: std::io::Error| Failure::new(format!("cannot make memory for --explain: {error}"));
        let memory =
            rustix::fs::memfd_create("toe-explain", MemfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let memory = File::from(memory);
        memory.set_len(TALLY_LEN as u64).map_err(failed)?;
        Ok(Tally { memory })
    }

    /// Where other processes of this user find it while this one lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.memory.as_raw_fd())
    }

    /// The table for people.
    pub fn report(&self) -> Result<String, Failure> {
        let mut octets = [0; TALLY_LEN];
        self.memory
            .read_exact_at(&mut octets, 0)
            .map_err(|error| Failure::new(format!("cannot read what --explain counted: {error}")))?;
        let count = |stack, reason| {
            let at = tally_place(stack, reason) * 8;
            octets.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
        };
        Ok(table(count))
    }
}

fn table(count: impl Fn(Stack, Reason) -> u64) -> String {
    let mut text = String::new();
    for stack in [Stack::Engine, Stack::Kernel, Stack::None] {
        let mut lines: Vec<(u64, Reason)> = Reason::ALL.iter().map(|&r| (count(stack, r), r)).collect();
        lines.retain(|(n, _)| *n > 0);
        lines.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
        let what = match stack {
            Stack::Engine => "on the engine",
            Stack::Kernel => "on the kernel's stack",
            Stack::None => "not for an engine",
        };
        let sum: u64 = lines.iter().map(|(n, _)| n).sum();
        if sum == 0 && stack == Stack::None {
            continue;
        }
        text += &format!("{sum:>9} {what}\n");
        for (n, reason) in lines {
            text += &format!("{n:>19} {}\n", reason.text());
            if !reason.remedy().is_empty() {
                text += &format!("{:>19} to change that: {}\n", "", reason.remedy());
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_told_with_its_remedy() {
        let text = table(|stack, reason| match (stack, reason) {
            (Stack::Engine, Reason::Accepted) => 12,
            (Stack::Kernel, Reason::Ipv6) => 3,
            _ => 0,
        });
        assert!(text.starts_with("       12 on the engine\n"), "{text}");
        assert!(text.contains("        3 on the kernel's stack\n"), "{text}");
        assert!(text.contains(Reason::Ipv6.remedy()), "{text}");
        assert!(!text.contains("not for an engine"), "{text}");
    }

    #[test]
    fn a_new_tally_is_empty() {
        let tally = Tally::new().expect("memory");
        assert_eq!(
            tally.report().expect("a table"),
            "        0 on the engine\n        0 on the kernel's stack\n"
        );
    }
}
