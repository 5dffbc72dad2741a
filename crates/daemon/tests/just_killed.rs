//! A program of its own, because it forks: while a child of fork has copies of what other tests have open, the last close
//! of an anchor, which the unit tests ask for, is not the last.

use rustix::fs::FlockOperation;
use std::fs::{self, File};
use std::path::Path;
use toe_daemon::runtime::EngineName;

#[test]
fn an_engine_that_was_just_killed_is_waited_for() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("just-killed-{}", std::process::id()));
    fs::create_dir(&dir).expect("a directory");
    // The lock goes with the child, which has not ended when the name is asked for.
    let held = File::create(dir.join("a.lock")).expect("a file");
    rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive).expect("free");
    let mut child = std::process::Command::new("sleep").arg("1000").stdin(held).spawn().expect("sleep");
    fs::write(dir.join("a.pid"), child.id().to_string()).expect("a file");
    let living = EngineName::take(&dir, "a", false).err();
    child.kill().expect("killed");
    let gone = EngineName::take(&dir, "a", false);
    child.wait().expect("waited for");
    fs::remove_dir_all(&dir).expect("removed");
    living.expect("it lives");
    gone.expect("it is gone, though nobody has waited for it");
}
