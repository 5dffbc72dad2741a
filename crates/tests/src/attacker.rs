//! Programs of users who mean harm. They speak the host interface by themselves (`attacker/*.py`), bound by nothing of the
//! host library, as real users without rights: in the engine's network namespace or in one of their own.

use crate::child::Program;
use crate::engine::Engine;
use crate::lab::{Lab, Side};
use std::path::{Path, PathBuf};
use std::process::Command;
use toe_abi::INTERFACE_VERSION;

const PYTHON: &str = "/usr/bin/python3";
/// Overrides the version that attackers speak, to try them on an engine of another one.
const VERSION: &str = "TOE_INTERFACE_VERSION";

const FILES: &[(&str, &str)] = &[
    ("__main__.py", include_str!("attacker/__main__.py")),
    ("chaos.py", include_str!("attacker/chaos.py")),
    ("descriptors.py", include_str!("attacker/descriptors.py")),
    ("flood.py", include_str!("attacker/flood.py")),
    ("hoard.py", include_str!("attacker/hoard.py")),
    ("holes.py", include_str!("attacker/holes.py")),
    ("interface.py", include_str!("attacker/interface.py")),
    ("names.py", include_str!("attacker/names.py")),
    ("stuck.py", include_str!("attacker/stuck.py")),
    ("talk.py", include_str!("attacker/talk.py")),
    ("views.py", include_str!("attacker/views.py")),
    ("wakes.py", include_str!("attacker/wakes.py")),
    ("wire.py", include_str!("attacker/wire.py")),
];

/// A user who means harm, and one who does not; neither is anybody's on this machine.
pub const MALLORY: u32 = 60_001;
pub const ALICE: u32 = 60_002;

/// Whose program it is, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    /// A user without rights in the engine's network namespace.
    User(u32),
    /// The same in user and network namespaces of his own, where he is root.
    Contained(u32),
    /// Root of a container that shares everything but the network: uid 0 in the network namespace of this side.
    Root(Side),
    /// Root until the attack has what a user can be handed by root, then a user without rights.
    Demoted(u32),
}

/// Attacks on one engine.
#[derive(Debug)]
pub struct Attacks {
    files: PathBuf,
    socket: PathBuf,
    dir: PathBuf,
}

impl Attacks {
    pub fn on(lab: &Lab, engine: &Engine) -> Attacks {
        Attacks::at(lab, Path::new("/run/opentoe").join(format!("{}.sock", engine.name())))
    }

    /// Attacks on whatever listens at `socket`.
    pub fn at(lab: &Lab, socket: PathBuf) -> Attacks {
        let files = lab.dir().join("attacker");
        std::fs::create_dir_all(&files).expect("a directory");
        for (name, text) in FILES {
            std::fs::write(files.join(name), text).expect("the attacker");
        }
        Attacks { files, socket, dir: lab.dir().to_owned() }
    }

    /// Begins an attack, which lasts until the program is dropped.
    pub fn begin(&self, lab: &Lab, who: As, attack: &str, args: &[&str]) -> Program {
        Program::spawn(attack, &mut self.command(lab, who, attack, args))
    }

    /// Begins an attack and waits until it says `word`.
    pub fn begun(&self, lab: &Lab, who: As, attack: &[&str], word: &str) -> Program {
        let mut program = self.begin(lab, who, attack[0], &attack[1..]);
        program.wait_for_line(word, crate::wait::SOON * 3);
        program
    }

    fn command(&self, lab: &Lab, who: As, attack: &str, args: &[&str]) -> Command {
        let side = if let As::Root(side) = who { side } else { Side::Server };
        let (mut words, mut environment): (Vec<String>, Option<u32>) = (Vec::new(), None);
        match who {
            As::User(uid) => words.extend(give_up_root(uid)),
            As::Contained(uid) => {
                words.extend(give_up_root(uid));
                words.extend(["unshare", "--user", "--map-root-user", "--net"].map(str::to_owned));
            }
            As::Root(_) => {}
            // What it mounts is seen by nobody else, and goes with it.
            As::Demoted(uid) => {
                words.extend(["unshare", "--mount"].map(str::to_owned));
                environment = Some(uid);
            }
        }
        words.push(PYTHON.to_owned());
        let mut command = lab.command(side, &words[0]);
        command.args(&words[1..]).arg("-B").arg(&self.files).arg(&self.socket).arg(attack).args(args);
        command.env("TOE_ATTACKER_DIR", &self.dir);
        if std::env::var_os(VERSION).is_none() {
            command.env(VERSION, INTERFACE_VERSION.to_string());
        }
        if let Some(uid) = environment {
            command.env("TOE_ATTACKER_UID", uid.to_string());
        }
        command
    }
}

/// Words before a program's that make it a user's without rights.
fn give_up_root(uid: u32) -> Vec<String> {
    let uid = uid.to_string();
    ["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups", "--inh-caps=-all", "--no-new-privs"]
        .map(str::to_owned)
        .to_vec()
}
