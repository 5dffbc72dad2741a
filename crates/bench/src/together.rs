//! Rows over slow wires side by side: such a wire leaves the processors idle nearly all the time. Each row has a lab and an engine of its own
//! and makes its runs turn and turn about, as it does alone. How many run at once is told, or follows from how idle the processors are seen to
//! be. Used by `runner`.

use crate::cpus::Cpus;
use crate::error::Result;
use crate::measure::{self, Niced};
use crate::options::Together;
use crate::row::Row;
use crate::sample::Measured;
use crate::stats::Summary;
use serde::Serialize;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// No row is begun that would leave the processors less idle than this: with less, programs begin to wait for each other.
const IDLE_PERCENT_MIN: f64 = 40.0;
/// How long the processors are watched before the next row may begin.
const LOOK: Duration = Duration::from_secs(3);

/// What was seen of rows that ran side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Seen {
    /// At once.
    pub(crate) most: usize,
    /// How idle the processors were meanwhile, but for programs that give way to all others.
    pub(crate) idle_percent: Summary,
}

/// A row that has been measured, or not.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    pub(crate) row: &'a Row,
    pub(crate) outcome: Result<Measured>,
    /// That are still under way.
    pub(crate) others: usize,
}

/// The row may have others beside it.
pub(crate) fn may_be(row: &Row) -> bool {
    row.over_slow_wire().is_some() && row.beside.is_none()
}

/// How idle the processors are for a while, in percent.
pub(crate) fn look(cpus: &Cpus) -> Result<f64> {
    Ok(100.0 - measure::busy_percent(cpus, Niced::CountsAsIdle, LOOK)?)
}

/// Measures `rows`, the longest first. `look` takes a while to see how idle the processors are; `take` gets what became of each row.
pub(crate) fn run(
    mut rows: Vec<&Row>,
    how_many: Together,
    measure: &(dyn Fn(&Row) -> Result<Measured> + Sync),
    look: &mut dyn FnMut() -> Result<f64>,
    take: &mut dyn FnMut(Ended<'_>) -> Result<()>,
) -> Result<Option<Seen>> {
    let time_of = |row: &Row| row.over_slow_wire().map(|(transfer, rate_kbit)| transfer.time_at(rate_kbit));
    rows.sort_by_key(|row| std::cmp::Reverse(time_of(row)));
    let mut waiting = rows.into_iter();
    let (tell, told) = mpsc::channel();
    let (mut running, mut most, mut idle_percent) = (0, 0, Vec::new());
    thread::scope(|scope| {
        while running > 0 || waiting.len() > 0 {
            for row in waiting.by_ref().take(room(how_many, running, idle_percent.last().copied())) {
                let tell = tell.clone();
                // Nobody hears it once the caller wants no more.
                scope.spawn(move || tell.send((row, measure(row))));
                running += 1;
            }
            most = most.max(running);
            idle_percent.push(look()?);
            for (row, outcome) in told.try_iter() {
                running -= 1;
                take(Ended { row, outcome, others: running })?;
            }
        }
        Ok(Summary::of(idle_percent).map(|idle_percent| Seen { most, idle_percent }))
    })
}

/// How many more may begin beside those that run, which left the processors so idle.
fn room(how_many: Together, running: usize, idle_percent: Option<f64>) -> usize {
    match (how_many, idle_percent) {
        (Together::Count(count), _) => count.get().saturating_sub(running),
        (Together::Idle, Some(idle)) if running > 0 => {
            // The next takes as much as each of these.
            let each = (100.0 - idle) / running as f64;
            usize::from(idle - each >= IDLE_PERCENT_MIN)
        }
        (Together::Idle, _) => usize::from(running == 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;
    use std::num::NonZeroUsize;
    use std::sync::Barrier;

    #[test]
    fn another_row_begins_while_the_processors_stay_idle() {
        let three = Together::Count(NonZeroUsize::new(3).expect("three"));
        assert_eq!(room(three, 0, None), 3);
        assert_eq!(room(three, 2, Some(0.0)), 1);
        assert_eq!(room(Together::Idle, 0, Some(0.0)), 1);
        // Five that take 10 % each; the sixth leaves the 40 %, the seventh would not.
        assert_eq!(room(Together::Idle, 5, Some(50.0)), 1);
        assert_eq!(room(Together::Idle, 6, Some(40.0)), 0);
    }

    #[test]
    fn as_many_rows_run_at_once_as_are_told_the_longest_first() {
        let all = plan::all();
        let rows: Vec<&Row> = all.iter().filter(|row| may_be(row)).take(4).collect();
        let two = Together::Count(NonZeroUsize::new(2).expect("two"));
        // Each waits for another: one alone would never end.
        let barrier = Barrier::new(2);
        let measure = |row: &Row| {
            barrier.wait();
            Ok(Measured { row: row.clone(), samples: Vec::new(), null_ns: None })
        };
        let mut names = Vec::new();
        let mut take = |ended: Ended<'_>| {
            names.push(ended.row.name());
            Ok(())
        };
        let mut look = || {
            thread::yield_now();
            Ok(50.0)
        };
        let seen = run(rows.clone(), two, &measure, &mut look, &mut take).expect("all are measured");
        assert_eq!((seen.map(|seen| seen.most), names.len()), (Some(2), rows.len()));
    }
}
