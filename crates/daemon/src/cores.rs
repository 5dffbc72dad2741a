//! `--cores`: the processor cores that the engine's thread may run on. Parsed by `config`, applied by `main`. And the threads that run elsewhere.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::str::FromStr;
use std::thread::JoinHandle;

/// Stacks of threads that help.
const STACK_LEN: usize = 256 << 10;

/// A list of cores as taskset(1) writes it: `0`, `2,4`, `0-3`, `0-6:2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreList(Vec<usize>);

/// What is wrong with a list, and what to write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} {what}; write the cores as taskset does: 0  or  2,4  or  0-3  or  0-6:2")]
pub struct BadCoreList {
    text: String,
    what: &'static str,
}

/// Why the engine cannot run there, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    #[error("--cores {wanted}: this process may run on {allowed} only; choose among those")]
    NotAllowed { wanted: String, allowed: String },
    #[error("--cores {wanted}: {error}; leave it out to let the kernel choose")]
    Refused { wanted: String, error: rustix::io::Errno },
}

impl FromStr for CoreList {
    type Err = BadCoreList;

    fn from_str(text: &str) -> Result<CoreList, BadCoreList> {
        let bad = |what| BadCoreList { text: text.to_owned(), what };
        let mut cores = Vec::new();
        for part in text.split(',') {
            let (range, step) = part.split_once(':').unwrap_or((part, "1"));
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            if range == first && part.contains(':') {
                return Err(bad("has a step without a range"));
            }
            let number = |text: &str| text.parse::<usize>().map_err(|_| bad("is no list of cores"));
            let (first, last, step) = (number(first)?, number(last)?, number(step)?);
            if step == 0 {
                return Err(bad("has a step of nothing"));
            }
            if last < first {
                return Err(bad("has a range that runs backwards"));
            }
            if last >= CpuSet::MAX_CPU {
                return Err(bad("names a core beyond what Linux can count"));
            }
            cores.extend((first..=last).step_by(step));
        }
        cores.sort_unstable();
        cores.dedup();
        Ok(CoreList(cores))
    }
}

impl std::fmt::Display for CoreList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

impl CoreList {
    /// Keeps the calling thread on these cores. All of them must be among those that it may use now: the kernel would
    /// quietly leave the others out.
    pub fn apply(&self) -> Result<(), CoreError> {
        let wanted = self.to_string();
        let refused = |error| CoreError::Refused { wanted: wanted.clone(), error };
        let now = sched_getaffinity(None).map_err(refused)?;
        let allowed = CoreList((0..CpuSet::MAX_CPU).filter(|core| now.is_set(*core)).collect());
        if self.0.iter().any(|core| !allowed.0.contains(core)) {
            return Err(CoreError::NotAllowed { wanted, allowed: allowed.to_string() });
        }
        let mut set = CpuSet::new();
        self.0.iter().for_each(|core| set.set(*core));
        sched_setaffinity(None, &set).map_err(refused)
    }
}

/// Begins a thread that only helps.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    let begin = move || {
        leave_engine_core();
        run();
    };
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_LEN).spawn(begin)
}

/// A thread that only helps runs wherever the kernel lets it, not where the engine's thread spins.
fn leave_engine_core() {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|core| all.set(core));
    // A refusal leaves it where the engine is, and that is all.
    let _ = sched_setaffinity(None, &all);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_taskset_reads_them() {
        for (text, cores) in [
            ("0", vec![0]),
            ("2,4", vec![2, 4]),
            ("0-3", vec![0, 1, 2, 3]),
            ("0-6:2", vec![0, 2, 4, 6]),
            ("5,0-1,1", vec![0, 1, 5]),
        ] {
            assert_eq!(text.parse(), Ok(CoreList(cores)), "{text}");
        }
    }

    #[test]
    fn a_bad_list_says_what_to_write() {
        for (text, wanted) in [
            ("", "no list"),
            ("a", "no list"),
            ("1,", "no list"),
            ("-1", "no list"),
            ("3-1", "backwards"),
            ("0-4:0", "step of nothing"),
            ("1:2", "step without a range"),
            ("0-99999999", "beyond"),
        ] {
            let message = text.parse::<CoreList>().expect_err(text).to_string();
            assert!(message.contains(wanted) && message.contains("0-6:2"), "{text}: {message}");
        }
    }

    #[test]
    fn a_thread_stays_where_it_was_put() {
        let check = || {
            let first =
                (0..CpuSet::MAX_CPU).find(|core| sched_getaffinity(None).expect("an affinity").is_set(*core));
            let first = first.expect("a core");
            CoreList(vec![first]).apply().expect("allowed");
            assert_eq!(sched_getaffinity(None).expect("an affinity").count(), 1);
            let other = CoreList(vec![CpuSet::MAX_CPU - 1]).apply().expect_err("no such core").to_string();
            assert!(other.contains(&format!("may run on {first} only")), "{other}");
        };
        std::thread::spawn(check).join().expect("no panic");
    }
}
