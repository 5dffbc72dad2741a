//! The engine's command line, which nobody gets to read. Called by `main`, once.
//!
//! Any user may read `/proc/PID/cmdline` of any process, and the kernel takes the lock of that process's address space meanwhile
//! (`mmap_lock`). Who reads it without end, with the lowest priority and beside others who use the processors, keeps that lock for seconds;
//! every `mmap` and `munmap` of the engine waits for it, the engine's own thread's for a new session as well. Of a process whose command line
//! is empty the kernel says so without looking. What else of `/proc/PID` takes the lock is only for who may trace the process.

use crate::sys;

/// Places in `/proc/PID/stat`, from the state on, which is the third (proc_pid_stat(5)).
const START_CODE: usize = 23;
const END_CODE: usize = 24;
const START_STACK: usize = 25;
const START_DATA: usize = 42;
const END_DATA: usize = 43;
const START_BRK: usize = 44;
const ARG_START: usize = 45;
const ENV_START: usize = 47;
const ENV_END: usize = 48;

/// Says to the kernel that there is none; the process's own copy stays. To be called while there is one thread, as the kernel is told anew
/// where the heap ends.
pub fn empty() {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let done = sections(&stat).is_some_and(|sections| sys::set_sections(&sections).is_ok());
    if !done {
        // A kernel without CONFIG_CHECKPOINT_RESTORE: everything stays as it was.
        tracing::warn!(
            "any user may read this process's command line, and so hold it up; mount /proc with hidepid=2"
        );
    }
}

/// Where everything lies, as the kernel has it, but for the command line.
fn sections(stat: &str) -> Option<sys::Sections> {
    let (_, behind_name) = stat.rsplit_once(") ")?;
    let words: Vec<&str> = behind_name.split_whitespace().collect();
    let at = |index: usize| words.get(index)?.parse().ok().filter(|address: &u64| *address != 0);
    let arguments = at(ARG_START)?;
    Some(sys::Sections {
        code: [at(START_CODE)?, at(END_CODE)?],
        data: [at(START_DATA)?, at(END_DATA)?],
        start_brk: at(START_BRK)?,
        stack: at(START_STACK)?,
        arguments: [arguments, arguments],
        environment: [at(ENV_START)?, at(ENV_END)?],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_the_kernels() {
        let name_with_all = "7 (a) b) ) S ";
        let words: Vec<String> = (4..=52).map(|number| (number * 1000).to_string()).collect();
        let found = sections(&format!("{name_with_all}{}", words.join(" "))).expect("all are there");
        assert_eq!((found.code, found.stack), ([26_000, 27_000], 28_000));
        assert_eq!((found.data, found.start_brk), ([45_000, 46_000], 47_000));
        assert_eq!((found.arguments, found.environment), ([48_000, 48_000], [50_000, 51_000]));
        assert_eq!(sections("7 (a) S 1 2"), None);
    }
}
