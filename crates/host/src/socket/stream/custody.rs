//! Who has a connection in this process, and whether that is about to change.

use toe_base::AnchorHandle;

/// Who has it.
#[derive(Clone, Copy, Debug)]
enum Custodian<S> {
    /// It waits in a listener.
    Untaken,
    Program(S),
    /// The program has let go of it.
    Nobody,
}

/// A connection's, by the socket `S` where its program has it.
#[derive(Debug)]
pub struct Custody<S> {
    who: Custodian<S>,
    /// What this session has bound to it. `None`: it came from another process.
    pub anchor: Option<AnchorHandle>,
    /// The session has told the engine that it lets go.
    let_go: bool,
    /// It is to be given back to the engine as soon as it can be: it is in [`crate::queue::Queue`]'s list of those.
    pub yields: bool,
}

impl<S: Copy> Custody<S> {
    pub fn untaken() -> Custody<S> {
        Custody { who: Custodian::Untaken, anchor: None, let_go: false, yields: false }
    }

    pub fn of(socket: S) -> Custody<S> {
        Custody { who: Custodian::Program(socket), ..Custody::untaken() }
    }

    pub fn socket(&self) -> Option<S> {
        match self.who {
            Custodian::Program(socket) => Some(socket),
            Custodian::Untaken | Custodian::Nobody => None,
        }
    }

    pub fn is_untaken(&self) -> bool {
        matches!(self.who, Custodian::Untaken)
    }

    pub fn is_nobodys(&self) -> bool {
        matches!(self.who, Custodian::Nobody)
    }

    pub fn accept(&mut self, socket: S) {
        self.who = Custodian::Program(socket);
    }

    pub fn orphan(&mut self) {
        self.who = Custodian::Nobody;
    }

    pub fn has_let_go(&self) -> bool {
        self.let_go
    }

    /// The session lets go. `true`: the engine is to be told.
    pub fn let_go(&mut self) -> bool {
        !std::mem::replace(&mut self.let_go, true)
    }
}
