//! What `toe run --explain` tells when the program has ended: how many of its sockets went where, and why.

use crate::{Failure, why};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::FdFlags;
use serde::Serialize;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use toe_abi::why::{Reason, Stack, TALLY_LEN, tally_index};

/// The counts that the program's processes write.
#[derive(Debug)]
pub struct Tally {
    memory: File,
}

impl Tally {
    pub fn new() -> Result<Tally, Failure> {
        let failed =
            |error: std::io::Error| Failure::new(format!("cannot make memory for --explain: {error}"));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("toe-explain", flags).map_err(|e| failed(e.into()))?;
        let memory = File::from(memory);
        memory.set_len(TALLY_LEN as u64).map_err(failed)?;
        // Whoever counts in it may be another user than who made it.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memory, seals).map_err(|e| failed(e.into()))?;
        Ok(Tally { memory })
    }

    /// The program that is about to be started has its descriptor, too: a process that has changed its user may not open that of
    /// this one's.
    pub fn let_inherit(&self) -> Result<(), Failure> {
        rustix::io::fcntl_setfd(&self.memory, FdFlags::empty())
            .map_err(|error| Failure::new(format!("cannot hand on the memory for --explain: {error}")))
    }

    /// Where other processes of this user find it while this one lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.memory.as_raw_fd())
    }

    /// What was counted so far.
    pub fn explanation(&self) -> Result<Explanation, Failure> {
        let mut bytes = [0; TALLY_LEN];
        self.memory
            .read_exact_at(&mut bytes, 0)
            .map_err(|error| Failure::new(format!("cannot read what --explain counted: {error}")))?;
        Ok(Explanation::of(|stack, reason| {
            let at = tally_index(stack, reason) * 8;
            bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
        }))
    }
}

/// Where a program's sockets went: what `--explain` prints and `--explain-json` writes.
#[derive(Debug, Serialize)]
pub struct Explanation {
    pub stacks: Vec<StackShare>,
}

/// The sockets on one stack.
#[derive(Debug, Serialize)]
pub struct StackShare {
    /// engine, kernel, or none: not a stream socket.
    pub stack: &'static str,
    pub sockets: u64,
    /// Most first.
    pub reasons: Vec<ReasonShare>,
}

/// The sockets that are there for one reason.
#[derive(Debug, Serialize)]
pub struct ReasonShare {
    /// The word for it, as `toe why --json` has it.
    pub reason: String,
    pub text: &'static str,
    pub sockets: u64,
    /// What to do to get another decision; empty when there is nothing to do.
    pub remedy: &'static str,
}

impl Explanation {
    fn of(count: impl Fn(Stack, Reason) -> u64) -> Explanation {
        let share = |stack: Stack| {
            let of = |&reason: &Reason| ReasonShare {
                reason: why::code_of(reason),
                text: reason.text(),
                sockets: count(stack, reason),
                remedy: reason.remedy(),
            };
            let mut reasons: Vec<ReasonShare> =
                Reason::ALL.iter().map(of).filter(|share| share.sockets > 0).collect();
            reasons.sort_by_key(|share| std::cmp::Reverse(share.sockets));
            let sockets = reasons.iter().map(|share| share.sockets).sum();
            StackShare { stack: stack.name(), sockets, reasons }
        };
        Explanation { stacks: [Stack::Engine, Stack::Kernel, Stack::None].map(share).into() }
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for share in &self.stacks {
            let what = match share.stack {
                "engine" => "on the engine",
                "kernel" => "on the kernel's stack",
                _ if share.sockets == 0 => continue,
                _ => "not for an engine",
            };
            text += &format!("{:>9} {what}\n", share.sockets);
            for ReasonShare { text: reason, sockets, remedy, .. } in &share.reasons {
                text += &format!("{sockets:>19} {reason}\n");
                if !remedy.is_empty() {
                    text += &format!("{:>19} to change that: {remedy}\n", "");
                }
            }
        }
        if self.stacks.iter().all(|share| share.sockets == 0) {
            text += "no socket of the program's was seen: it made none, it waits for io_uring, which is refused here (TOE_DISABLE=1 \
                     lets it), or it passed by (statically linked, set-user-id, or with an environment of its own); 'toe why PID' tells of \
                     one that runs\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_told_with_its_remedy() {
        let told = Explanation::of(|stack, reason| match (stack, reason) {
            (Stack::Engine, Reason::Accepted) => 12,
            (Stack::Kernel, Reason::V6Only) => 3,
            _ => 0,
        });
        let json = serde_json::to_value(&told).expect("plain data");
        assert_eq!(json["stacks"][1]["reasons"][0]["sockets"], 3);
        assert_eq!(json["stacks"][1]["stack"], "kernel");
        assert_eq!(json["stacks"][1]["reasons"][0]["reason"], "v6-only");
        let text = told.table();
        assert!(text.starts_with("       12 on the engine\n"), "{text}");
        assert!(text.contains("        3 on the kernel's stack\n"), "{text}");
        assert!(text.contains(Reason::V6Only.remedy()), "{text}");
        assert!(!text.contains("not for an engine"), "{text}");
    }

    #[test]
    fn a_new_tally_is_empty() {
        let tally = Tally::new().expect("memory");
        assert_eq!(
            tally.explanation().expect("a table").table(),
            "        0 on the engine\n        0 on the kernel's stack\nno socket of the program's was seen: it made none, it waits for \
             io_uring, which is refused here (TOE_DISABLE=1 lets it), or it passed by (statically linked, set-user-id, or with an environment \
             of its own); 'toe why PID' tells of one that runs\n"
        );
    }
}
