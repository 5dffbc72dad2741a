//! Runs many scripts and says what came of it. What a script says of itself is checked too: one that is pending and
//! passes, or that claims a difference of Linux which is not there, is told.

use crate::engine::{EngineStack, LinkKind};
use crate::linux::{real_seconds, run_on_linux};
use crate::run::{Failure, run};
use crate::script::{OnLinux, Script};
use crate::stack::StackError;
use crate::whole::{LinkKind as WholeLink, can_set_up, run_on_whole};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Attempts with a stack in real time: a busy machine can be late.
const ATTEMPTS: usize = 3;
/// Longer scripts wait for what the engine in virtual time shows as well.
const WHOLE_SECONDS_MAX: u64 = 20;

/// What came of one script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    /// Not at the first attempt but at this one, and why not at first: in real time a busy machine can be late.
    PassedLater(usize, String),
    /// Not held against the stack, for this reason.
    Skipped(String),
    /// Said to fail, and does not.
    PassesNow(String),
    Failed(String),
}

impl Verdict {
    pub const fn is_failure(&self) -> bool {
        matches!(self, Verdict::Failed(_))
    }
}

/// With the engine, over both kinds of link.
pub fn with_engine(script: &Script) -> Verdict {
    let mut result = Ok(());
    for kind in [LinkKind::Plain, LinkKind::Offloading] {
        result = EngineStack::new(&script.header, kind)
            .map_err(|error| format!("{}: {error}\n", script.path.display()))
            .and_then(|mut stack| {
                run(script, &mut stack).map_err(|failure| format!("(link: {kind:?}) {failure}"))
            });
        if result.is_err() {
            break;
        }
    }
    match (&script.header.pending, result) {
        (None, Ok(())) => Verdict::Passed,
        (None, Err(text)) => Verdict::Failed(text),
        (Some(what), Ok(())) => Verdict::PassesNow(format!("pending: {what}")),
        (Some(what), Err(_)) => Verdict::Skipped(format!("pending: {what}")),
    }
}

/// With Linux; `slow`: also those that take long.
pub fn with_linux(script: &Script, slow: bool) -> Verdict {
    if script.has_datagrams() {
        return Verdict::Skipped("datagrams: with the engine in virtual time".to_owned());
    }
    match &script.header.linux {
        OnLinux::No(reason) => return Verdict::Skipped(reason.clone()),
        OnLinux::Slow if !slow => return Verdict::Skipped("slow".to_owned()),
        OnLinux::Differs(_) | OnLinux::Yes | OnLinux::Slow => {}
    }
    let script = &script.of_linux();
    attempts(script, || run_on_linux(script))
}

/// With the whole of OpenTOE: `programs` is the folder of `toe`, `toed` and the switch.
pub fn with_whole(script: &Script, programs: &Path, link: WholeLink) -> Verdict {
    if let Some(what) = &script.header.pending {
        return Verdict::Skipped(format!("pending: {what}"));
    }
    if script.has_datagrams() {
        return Verdict::Skipped("datagrams: with the engine in virtual time".to_owned());
    }
    if !can_set_up(&script.header.setup) || script.header.mtu != 1500 {
        return Verdict::Skipped("a set-up of its own".to_owned());
    }
    if real_seconds(script) > WHOLE_SECONDS_MAX {
        return Verdict::Skipped("slow".to_owned());
    }
    attempts(script, || run_on_whole(script, programs, link))
}

/// Tries until it succeeds, [`ATTEMPTS`] times at most; the first failure is told in any case.
fn attempts(script: &Script, one: impl Fn() -> Result<Result<(), Failure>, StackError>) -> Verdict {
    let mut first = None;
    for attempt in 1..=ATTEMPTS {
        match one() {
            Err(error) => return Verdict::Failed(format!("{}: {error}\n", script.path.display())),
            Ok(Ok(())) => return passed(attempt, first),
            Ok(Err(failure)) if failure.is_trouble => return Verdict::Failed(failure.to_string()),
            Ok(Err(failure)) => first = first.or(Some(failure.to_string())),
        }
    }
    Verdict::Failed(first.unwrap_or_default())
}

fn passed(attempt: usize, first_failure: Option<String>) -> Verdict {
    let why = first_failure.map(|text| text.lines().next().unwrap_or_default().to_owned());
    why.map_or(Verdict::Passed, |why| Verdict::PassedLater(attempt, why))
}

/// Runs all with `one`, `threads` at a time, the longest first. Verdicts are in the order of the scripts.
pub fn all(scripts: &[Script], threads: usize, one: impl Fn(&Script) -> Verdict + Sync) -> Vec<Verdict> {
    let mut order: Vec<usize> = (0..scripts.len()).collect();
    order.sort_by_key(|at| core::cmp::Reverse(real_seconds(&scripts[*at])));
    let next = AtomicUsize::new(0);
    let verdicts = Mutex::new(vec![None; scripts.len()]);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(at) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let verdict = one(&scripts[*at]);
                    if let Ok(mut verdicts) = verdicts.lock() {
                        verdicts[*at] = Some(verdict);
                    }
                }
            });
        }
    });
    let lost = || Verdict::Failed("its thread panicked".to_owned());
    let verdicts = verdicts.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    verdicts.into_iter().map(|verdict| verdict.unwrap_or_else(lost)).collect()
}

/// What there is to say, failures first, and a line that counts.
pub fn report(scripts: &[Script], verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    let (mut passed, mut later, mut failed) = (0, 0, 0);
    let mut skipped = std::collections::BTreeMap::<&str, u32>::new();
    for (script, verdict) in scripts.iter().zip(verdicts) {
        match verdict {
            Verdict::Passed => passed += 1,
            Verdict::PassedLater(attempt, why) => {
                passed += 1;
                later += 1;
                text += &format!("at attempt {attempt}, after {why}\n");
            }
            Verdict::Skipped(reason) => *skipped.entry(reason).or_default() += 1,
            Verdict::PassesNow(claim) => {
                passed += 1;
                text += &format!("{}: passes, though it says \"{claim}\"\n", script.path.display());
            }
            Verdict::Failed(why) => {
                failed += 1;
                text += &format!("{why}\n");
            }
        }
    }
    text += &format!("{} scripts: {passed} passed ({later} not at once), {failed} failed", scripts.len());
    let count: u32 = skipped.values().sum();
    text += &format!(", {count} not run or not counted\n");
    for (reason, count) in skipped {
        text += &format!("  {count:4}  {reason}\n");
    }
    text
}
