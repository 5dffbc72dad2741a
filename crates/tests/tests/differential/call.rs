//! One call of a sequence, and its form as a line of text: what is shown, kept for a replay, and sent to a worker.

use std::fmt;
use std::str::FromStr;

/// How long a call may block that is not meant to, in milliseconds; it then ends with EINTR.
pub const LIMIT_MS: u32 = 2000;

/// A descriptor that an earlier call of the sequence made: which call, and which of the descriptors it made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Made {
    pub by: usize,
    pub nth: usize,
}

/// A number of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    Number(i64),
    /// A descriptor, so that it is the same one when calls before it are dropped.
    Made(Made),
    /// The port, whichever it is on a stack, that the worker's descriptor is bound to.
    PortOf(usize, Made),
}

/// A call by one of the workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its name in the sequence.
    pub id: usize,
    pub who: usize,
    pub limit_ms: u32,
    pub name: String,
    pub args: Vec<Arg>,
    /// The next call comes at once: nothing looks at the workers in between.
    pub hurries: bool,
}

impl Call {
    pub fn new(who: usize, name: &str, args: &[i64]) -> Call {
        let args = args.iter().map(|number| Arg::Number(*number)).collect();
        Call { id: 0, who, limit_ms: LIMIT_MS, name: name.to_owned(), args, hurries: false }
    }

    /// The call may end by its timer.
    pub fn within(mut self, limit_ms: u32) -> Call {
        self.limit_ms = limit_ms;
        self
    }

    pub fn is(&self, names: &[&str]) -> bool {
        names.contains(&self.name.as_str())
    }

    /// The number at a place; zero when there is none, as the worker has it.
    pub fn number(&self, at: usize) -> i64 {
        match self.args.get(at) {
            Some(Arg::Number(number)) => *number,
            _ => 0,
        }
    }

    /// The number at this place is a descriptor.
    fn is_descriptor(&self, at: usize) -> bool {
        match self.name.as_str() {
            "poll" | "ppoll" | "select" | "pselect" => at % 2 == 1,
            // The data of an entry is the number of its descriptor.
            "epoll_ctl" => matches!(at, 0 | 2 | 4),
            "sendfile" | "splice" | "volley" => at < 2,
            "socket" | "close_range" | "file" | "pipe" | "epoll_create" | "fork" | "exec" | "take" => false,
            _ => at == 0,
        }
    }

    /// Names the descriptors by the calls that made them, as far as `made` knows.
    pub fn name_descriptors(&mut self, made: impl Fn(i64) -> Option<Made>) {
        for at in 0..self.args.len() {
            if let Arg::Number(number) = self.args[at]
                && self.is_descriptor(at)
                && let Some(made) = made(number)
            {
                self.args[at] = Arg::Made(made);
            }
        }
    }

    /// The call in numbers alone: `fd` says what a descriptor is, `port` what a port is, `shift` by how much the ports
    /// that are named are higher this time.
    pub fn in_numbers(&self, shift: i64, fd: impl Fn(Made) -> i64, port: impl Fn(usize, i64) -> i64) -> Call {
        let names_port = self.is(&["bind", "connect", "udp_send"]);
        let number = |(at, arg): (usize, &Arg)| match *arg {
            Arg::Number(number) if at == 2 && number > 0 && names_port => number + shift,
            Arg::Number(number) => number,
            Arg::Made(made) => fd(made),
            Arg::PortOf(who, made) => port(who, fd(made)),
        };
        let args = self.args.iter().enumerate().map(|arg| Arg::Number(number(arg))).collect();
        Call { args, ..self.clone() }
    }

    /// The line for a worker, of a call in numbers.
    pub fn order(&self) -> String {
        let numbers: Vec<String> = (0..self.args.len()).map(|at| self.number(at).to_string()).collect();
        format!("{} {} {}\n", self.limit_ms, self.name, numbers.join(" "))
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.by)?;
        if self.nth > 0 { write!(f, ".{}", self.nth) } else { Ok(()) }
    }
}

impl FromStr for Made {
    type Err = ();

    fn from_str(text: &str) -> Result<Made, ()> {
        let text = text.strip_prefix('%').ok_or(())?;
        let (by, nth) = text.split_once('.').unwrap_or((text, "0"));
        Ok(Made { by: by.parse().map_err(|_| ())?, nth: nth.parse().map_err(|_| ())? })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: p{} {}", self.id, self.who, self.name)?;
        for arg in &self.args {
            match arg {
                Arg::Number(number) => write!(f, " {number}")?,
                Arg::Made(made) => write!(f, " {made}")?,
                Arg::PortOf(who, made) => write!(f, " @{who}{made}")?,
            }
        }
        if self.limit_ms != LIMIT_MS {
            write!(f, " !{}", self.limit_ms)?;
        }
        if self.hurries {
            f.write_str(" +")?;
        }
        Ok(())
    }
}

impl FromStr for Call {
    type Err = String;

    fn from_str(line: &str) -> Result<Call, String> {
        parse(line).ok_or_else(|| format!("not a call: {line:?}"))
    }
}

fn parse(line: &str) -> Option<Call> {
    let mut words = line.split_whitespace();
    let id = words.next()?.strip_suffix(':')?.parse().ok()?;
    let who = words.next()?.strip_prefix('p')?.parse().ok()?;
    let mut call = Call { id, ..Call::new(who, words.next()?, &[]) };
    for word in words {
        if let Some(limit) = word.strip_prefix('!') {
            call.limit_ms = limit.parse().ok()?;
        } else if word == "+" {
            call.hurries = true;
        } else if let Some(port) = word.strip_prefix('@') {
            let (who, made) = port.split_at(port.find('%')?);
            call.args.push(Arg::PortOf(who.parse().ok()?, made.parse().ok()?));
        } else if word.starts_with('%') {
            call.args.push(Arg::Made(word.parse().ok()?));
        } else {
            call.args.push(Arg::Number(word.parse().ok()?));
        }
    }
    Some(call)
}

#[test]
fn a_call_is_read_as_it_is_shown() {
    let mut call = Call { id: 9, ..Call::new(1, "connect", &[5, 0]).within(20) };
    let made = |by, nth| Made { by, nth };
    call.name_descriptors(|fd| (fd == 5).then_some(made(3, 1)));
    call.args.push(Arg::PortOf(0, made(7, 0)));
    call.hurries = true;
    assert_eq!(call.to_string(), "9: p1 connect %3.1 0 @0%7 !20 +");
    assert_eq!(call.to_string().parse(), Ok(call.clone()));
    let told = call.in_numbers(3, |made| made.by as i64 + 1, |who, fd| fd * 100 + who as i64);
    assert_eq!(told.order(), "20 connect 4 0 800\n");
    assert_eq!(Call::new(0, "bind", &[4, 0, 20_000]).in_numbers(7, |_| 0, |_, _| 0).number(2), 20_007);
    assert!("connect 5".parse::<Call>().is_err());
}
