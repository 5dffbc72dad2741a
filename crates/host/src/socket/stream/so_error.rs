//! The error of a connection: what its program is told of by the next call that fails, or by SO_ERROR, once.

use toe_abi::command::FlowInfo;
use toe_abi::errno::Errno;

/// What waits to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoError {
    pending: Errno,
    /// How many of the errors that the engine noted (modulo 256) had come when SO_ERROR last told one.
    noted_reported: u8,
    /// Whoever had the connection before was told of its end.
    end_is_reported: bool,
}

impl SoError {
    pub const NONE: SoError = SoError { pending: Errno::OK, noted_reported: 0, end_is_reported: false };

    pub fn pending(&self) -> Errno {
        self.pending
    }

    pub fn waits(&self) -> bool {
        !self.pending.is_ok()
    }

    pub fn set(&mut self, errno: Errno) {
        self.pending = errno;
    }

    /// Tells it, and forgets it.
    pub fn take(&mut self) -> Errno {
        std::mem::replace(&mut self.pending, Errno::OK)
    }

    /// The same, of a call that fails in any case: by `otherwise` if nothing waits.
    pub fn take_or(&mut self, otherwise: Errno) -> Errno {
        let error = self.take();
        if error.is_ok() { otherwise } else { error }
    }

    /// The connection has ended by `errno`.
    pub fn on_end(&mut self, errno: Errno) {
        if !std::mem::take(&mut self.end_is_reported) {
            self.pending = errno;
        }
    }

    /// It had ended where it was before, and the program was told.
    pub fn on_earlier_end(&mut self, is_reported: bool) {
        self.end_is_reported = is_reported;
    }

    /// The one that the engine has noted, once.
    pub fn take_noted(&mut self, info: &FlowInfo) -> Errno {
        if info.soft_error == 0 || info.soft_errors == self.noted_reported {
            return Errno::OK;
        }
        self.noted_reported = info.soft_errors;
        Errno(info.soft_error.into())
    }

    /// What goes along when the connection is claimed.
    pub fn claimed(self) -> SoError {
        SoError { end_is_reported: false, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_once() {
        let mut so_error = SoError::NONE;
        so_error.on_end(Errno::ECONNRESET);
        assert!(so_error.waits());
        assert_eq!(so_error.take_or(Errno::EPIPE), Errno::ECONNRESET);
        assert_eq!(so_error.take_or(Errno::EPIPE), Errno::EPIPE);
    }

    #[test]
    fn an_end_that_another_process_told_is_not_told_again_but_the_next_error_is() {
        let mut so_error = SoError::NONE;
        so_error.on_earlier_end(true);
        so_error.on_end(Errno::ECONNRESET);
        assert!(!so_error.waits());
        so_error.on_end(Errno::ECONNRESET);
        assert!(so_error.waits());
    }

    #[test]
    fn of_noted_errors_each_is_told_once() {
        let mut so_error = SoError::NONE;
        let mut info = FlowInfo { soft_error: 113, soft_errors: 1, ..FlowInfo::default() };
        assert_eq!((so_error.take_noted(&info), so_error.take_noted(&info)), (Errno(113), Errno::OK));
        info.soft_errors = 2;
        assert_eq!(so_error.take_noted(&info), Errno(113));
    }
}
