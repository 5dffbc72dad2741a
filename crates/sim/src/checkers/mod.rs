//! What must hold, one checker a file. A checker says what is wrong in one sentence; the run stops at the first.

pub mod captures;
pub mod fast_open;
pub mod isolation;
pub mod memory;
pub mod paths;
pub mod reports;
pub mod sequence;
pub mod starvation;
pub mod storms;
pub mod streams;
pub mod timers;

/// Who found something wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checker {
    Streams,
    Sequence,
    Memory,
    Timers,
    Paths,
    Storms,
    Isolation,
    Liveness,
    /// What a kernel is told to hand to its engine.
    Steering,
    Captures,
    /// What the engine says of itself.
    Reports,
    /// Of a world of datagrams.
    Datagrams,
    Messages,
    /// Of transfers of files.
    Files,
    /// The engine panicked.
    Panic,
}

impl Checker {
    pub const fn name(self) -> &'static str {
        match self {
            Checker::Streams => "stream bytes",
            Checker::Sequence => "sequence space",
            Checker::Memory => "memory",
            Checker::Timers => "timers",
            Checker::Paths => "paths",
            Checker::Storms => "storms",
            Checker::Isolation => "isolation",
            Checker::Liveness => "liveness",
            Checker::Steering => "steering",
            Checker::Captures => "captures",
            Checker::Reports => "reports",
            Checker::Datagrams => "datagrams",
            Checker::Messages => "messages",
            Checker::Files => "files",
            Checker::Panic => "panic",
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub checker: Checker,
    pub at_us: u64,
    pub what: String,
}

/// The first thing that was found, wherever: parts of the world that are called from inside the engine leave it here.
#[derive(Clone, Debug, Default)]
pub struct Verdict(Option<(Checker, String)>);

impl Verdict {
    pub fn fail(&mut self, checker: Checker, what: String) {
        self.0.get_or_insert((checker, what));
    }

    pub fn check(&mut self, checker: Checker, found: Result<(), String>) {
        if let Err(what) = found {
            self.fail(checker, what);
        }
    }

    pub fn is_ok(&self) -> bool {
        self.0.is_none()
    }

    pub fn take(&mut self) -> Option<(Checker, String)> {
        self.0.take()
    }
}
