//! Which processors the programs of a row may use: the same for both stacks. Used by `stage`.

use crate::error::{Error, Result};
use crate::options::Workload;
use crate::row::{Cores, Row};

/// A set of processors, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cpus(Vec<usize>);

/// Where the parts of a row run, as taskset(1) lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) server: String,
    pub(crate) client: String,
    pub(crate) engine: String,
    /// Workers of the server, and threads of the client.
    pub(crate) threads: u32,
}

impl Cpus {
    /// Those that this process may use.
    pub(crate) fn own() -> Result<Cpus> {
        let set = rustix::thread::sched_getaffinity(None)
            .map_err(|error| Error::failed("the processors that this process may use", error))?;
        Ok(Cpus((0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()))
    }

    /// Reads `0,2-3`; all must be processors that this process may use.
    pub(crate) fn parse(text: &str, own: &Cpus) -> Result<Cpus> {
        let wrong = |why: &str| Error::Options(format!("--cpus {text}: {why}"));
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number =
                |word: &str| word.trim().parse::<usize>().map_err(|_| wrong("it is a list such as 0,2-3"));
            cpus.extend(number(first)?..=number(last)?);
        }
        cpus.sort_unstable();
        cpus.dedup();
        match cpus.iter().find(|cpu| !own.0.contains(cpu)) {
            _ if cpus.is_empty() => Err(wrong("it names no processor")),
            Some(cpu) => Err(wrong(&format!("there is no processor {cpu} that this process may use"))),
            None => Ok(Cpus(cpus)),
        }
    }

    pub(crate) fn list(&self) -> String {
        self.0.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// How the parts of `row` are placed. Rows of one request at a time, of datagrams and of messages, have server and client apart from each other,
    /// or the scheduler's choice would decide the figure; all else is the scheduler's to place.
    pub(crate) fn placement(&self, row: &Row) -> Placement {
        let all = self.list();
        let one = |index: usize| self.0.get(index).or(self.0.first()).map_or(all.clone(), usize::to_string);
        let of_all =
            |threads| Placement { server: all.clone(), client: all.clone(), engine: all.clone(), threads };
        match (row.cores, row.workload) {
            (Cores::One, _) => Placement { server: one(0), client: one(0), engine: one(0), threads: 1 },
            (Cores::Full, _) => of_all(self.count() as u32),
            (Cores::Spare, Workload::Rr | Workload::Wake | Workload::Udp | Workload::Via) => {
                Placement { server: one(0), client: one(1), ..of_all(1) }
            }
            (Cores::Spare, _) => of_all(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;

    #[test]
    fn lists_are_read_and_checked() {
        let own = Cpus(vec![0, 1, 2, 3]);
        assert_eq!(Cpus::parse("3,0-1", &own).expect("a list").list(), "0,1,3");
        for bad in ["", "x", "2-1", "4", "0-9"] {
            assert!(Cpus::parse(bad, &own).is_err(), "{bad}");
        }
    }

    #[test]
    fn one_core_rows_have_one_core_and_full_ones_all() {
        let cpus = Cpus(vec![2, 5]);
        for row in plan::all() {
            let placed = cpus.placement(&row);
            assert_eq!(placed.threads, if row.cores == Cores::Full { 2 } else { 1 });
            match (row.cores, row.workload) {
                (Cores::One, _) => assert_eq!([&placed.server, &placed.client, &placed.engine], ["2"; 3]),
                (Cores::Spare, Workload::Rr | Workload::Wake | Workload::Udp | Workload::Via) => {
                    assert_eq!([&placed.server, &placed.client, &placed.engine], ["2", "5", "2,5"]);
                }
                _ => assert_eq!([&placed.server, &placed.client, &placed.engine], ["2,5"; 3]),
            }
        }
    }
}
