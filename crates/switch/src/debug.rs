//! Messages about decisions, on standard error, only when the environment has TOE_DEBUG: a program's own output is
//! never mixed with ours otherwise.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

static ON: AtomicBool = AtomicBool::new(false);

/// Called once, when the library is loaded.
pub fn switch_on(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

/// One line. Formatted on the stack and written with one system call, so that it may be called from anywhere.
pub fn log(message: fmt::Arguments<'_>) {
    if ON.load(Ordering::Relaxed) {
        say(message);
    }
}

/// The same whatever the environment has: for what would have ended the program with a message of the loader's.
pub fn say(message: fmt::Arguments<'_>) {
    let mut line = Line { text: [0; 256], len: 0 };
    // A message that is too long is cut.
    let _ = write!(line, "toe-switch[{}] {message}", toe::sys::pid());
    line.text[line.len] = b'\n';
    let _ = rustix::io::write(toe::sys::borrow(libc::STDERR_FILENO), &line.text[..=line.len]);
}

struct Line {
    text: [u8; 256],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.text.len() - 1 - self.len;
        let part = &text.as_bytes()[..text.len().min(room)];
        self.text[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        Ok(())
    }
}
