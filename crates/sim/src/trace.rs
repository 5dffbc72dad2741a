//! One aligned line for each event, as docs/simulator.md describes column by column. Off, an event costs one test.

use std::collections::VecDeque;
use std::fmt::Write as _;

/// Where lines go.
#[derive(Debug, Default)]
pub enum Trace {
    #[default]
    Off,
    /// The last so many are kept.
    Last(usize, VecDeque<String>),
    /// Printed at once.
    Print,
    /// Only a digest of all is kept: two runs of a seed must give the same.
    Digest(u64),
}

/// Which engine, session and connection an event is about; `None` prints as a dash.
#[derive(Clone, Copy, Debug, Default)]
pub struct About {
    pub node: Option<usize>,
    pub session: Option<u16>,
    pub conn: Option<u32>,
}

impl About {
    pub fn node(node: usize) -> About {
        About { node: Some(node), ..About::default() }
    }

    pub fn session(node: usize, session: u16) -> About {
        About { node: Some(node), session: Some(session), conn: None }
    }

    pub fn conn(node: usize, session: u16, conn: Option<u32>) -> About {
        About { node: Some(node), session: Some(session), conn }
    }
}

/// The columns' names, above the first line.
pub const HEADER: &str = "       time_us eng ses  conn event      detail";

impl Trace {
    pub fn is_on(&self) -> bool {
        !matches!(self, Trace::Off)
    }

    pub fn last(count: usize) -> Trace {
        Trace::Last(count, VecDeque::with_capacity(count))
    }

    /// What was kept, the oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &String> {
        let kept = match self {
            Trace::Last(_, lines) => Some(lines),
            _ => None,
        };
        kept.into_iter().flatten()
    }

    pub fn digest(&self) -> u64 {
        if let Trace::Digest(digest) = self { *digest } else { 0 }
    }

    pub fn event(&mut self, now_us: u64, about: About, event: &str, detail: std::fmt::Arguments<'_>) {
        if !self.is_on() {
            return;
        }
        let mut line = format!("{now_us:>14} ");
        let mut column = |value: Option<String>, width: usize| {
            let value = value.unwrap_or_else(|| "-".to_owned());
            let _ = write!(line, "{value:>width$} ");
        };
        column(about.node.map(|n| n.to_string()), 3);
        column(about.session.map(|n| n.to_string()), 3);
        column(about.conn.map(|n| n.to_string()), 5);
        let _ = write!(line, "{event:<10} {detail}");
        match self {
            Trace::Off => {}
            Trace::Print => println!("{line}"),
            Trace::Last(count, lines) => {
                if lines.len() == *count {
                    lines.pop_front();
                }
                lines.push_back(line);
            }
            Trace::Digest(digest) => {
                for byte in line.bytes() {
                    *digest = (*digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                }
            }
        }
    }
}
