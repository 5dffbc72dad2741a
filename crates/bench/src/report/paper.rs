//! The directwrite paper's grid beside what was measured here: the time of its two methods as a share of that of read and write. Used
//! by `text` and `html`.
//!
//! The paper (section III.2, figures 6 to 11) gives the best of its cells, as "up to so many percent less". Its read and write were those of the
//! kernel that its methods were in, so OpenTOE's methods are set beside OpenTOE's read and write; those of Linux are beside them.

use super::Report;
use super::svg::{self, Bar, BarRow, escape};
use crate::options::Link;
use crate::row::{Direction, Load};
use crate::sample::{Figure, Measured, Stack};
use crate::transfer::{Method, PACKETS, SIZES_MB, Shape, Transfer};
use std::fmt::Write;

/// One method over one link, in all cells of size and packet that were measured.
struct Line {
    link: Link,
    direction: Direction,
    method: Method,
    /// The paper's best, as a share of read and write; it has no `local`.
    paper: f64,
    own: Shares,
    linux: Shares,
    /// The calling thread's processor time, of that of OpenTOE's read and write.
    thread: Shares,
    cells: usize,
}

/// The least, the middle and the greatest of all cells.
#[derive(Clone, Copy)]
struct Shares {
    least: f64,
    middle: f64,
    most: f64,
}

impl Shares {
    fn of(mut shares: Vec<f64>) -> Option<Shares> {
        shares.sort_by(f64::total_cmp);
        Some(Shares {
            least: *shares.first()?,
            middle: *shares.get(shares.len() / 2)?,
            most: *shares.last()?,
        })
    }

    fn presented(self) -> String {
        let Shares { least, middle, most } = self;
        format!("{:.0} % ({:.0}..{:.0})", middle * 100.0, least * 100.0, most * 100.0)
    }
}

/// What the paper has: up to so much less time.
fn paper(link: Link, method: Method) -> f64 {
    match (link, method) {
        (Link::Mbit10, _) => 1.0,
        (Link::Mbit100, Method::Part) => 0.90,
        (Link::Mbit100, _) => 0.75,
        (_, Method::Part) => 0.85,
        _ => 0.70,
    }
}

fn lines(report: &Report) -> Vec<Line> {
    let mut lines = Vec::new();
    for link in [Link::Mbit10, Link::Mbit100, Link::Veth, Link::Local] {
        for direction in [Direction::Send, Direction::Receive] {
            for method in [Method::Part, Method::Whole] {
                lines.extend(line(report, link, direction, method));
            }
        }
    }
    lines
}

fn line(report: &Report, link: Link, direction: Direction, method: Method) -> Option<Line> {
    let find = |shape, method| {
        let load = Load::File(Transfer { shape, direction, method });
        let is_it = |m: &&Measured| m.row.link == link && m.row.load == load && m.row.beside.is_none();
        report.rows.iter().find(is_it)
    };
    let (mut own, mut linux, mut thread) = (Vec::new(), Vec::new(), Vec::new());
    for megabytes in SIZES_MB {
        for packet in PACKETS {
            let shape = Shape::Paper { megabytes, packet };
            let (Some(this), Some(base)) = (find(shape, method), find(shape, Method::ReadWrite)) else {
                continue;
            };
            let median = |m: &Measured, stack, figure| m.summary(stack, figure).map(|s| s.median);
            let push = |into: &mut Vec<f64>, stack, figure| {
                let shares = median(this, Stack::Toe, figure).zip(median(base, stack, figure));
                into.extend(shares.filter(|(_, base)| *base > 0.0).map(|(this, base)| this / base));
            };
            push(&mut own, Stack::Toe, Figure::P50);
            push(&mut linux, Stack::Linux, Figure::P50);
            push(&mut thread, Stack::Toe, Figure::ThreadCpu);
        }
    }
    let cells = own.len();
    let (own, linux, thread) = (Shares::of(own)?, Shares::of(linux)?, Shares::of(thread)?);
    Some(Line { link, direction, method, paper: paper(link, method), own, linux, thread, cells })
}

impl Line {
    fn label(&self) -> String {
        let direction = match self.direction {
            Direction::Send => "send",
            Direction::Receive => "receive",
        };
        let method = match self.method {
            Method::Part => "Method I",
            _ => "Method II",
        };
        let link = match self.link {
            Link::Veth => "unshaped, veth",
            link => link.name(),
        };
        format!("{link}, {direction}, {method}")
    }
}

/// As text; empty when nothing of it was measured.
pub(super) fn text(report: &Report) -> String {
    let lines = lines(report);
    let mut out = String::new();
    if lines.is_empty() {
        return out;
    }
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "\nThe directwrite paper's grid: time, of read and write's; the middle of all cells (least..greatest)\n{:<32}{:>8}{:>20}{:>20}{:>28}{:>7}",
        "", "paper", "of OpenTOE's", "of Linux's", "thread's CPU, of OpenTOE's", "cells"
    );
    for line in lines {
        let _ = writeln!(
            out,
            "{:<32}{:>6.0} %{:>20}{:>20}{:>28}{:>7}",
            line.label(),
            line.paper * 100.0,
            line.own.presented(),
            line.linux.presented(),
            line.thread.presented(),
            line.cells
        );
    }
    out
}

/// As a section of the page: a plot and a table; empty when nothing of it was measured.
pub(super) fn html(report: &Report) -> String {
    let lines = lines(report);
    if lines.is_empty() {
        return String::new();
    }
    let mut out = String::from(
        "<h2>The directwrite paper's grid</h2>\n<p class=\"key\"><span><i class=\"linux\"></i>the paper's best</span>\
         <span><i class=\"toe\"></i>OpenTOE</span></p>\n<p class=\"note\">Time of its methods, in percent of that of read and write on \
         the same stack: 2, 5 and 10 MB in packets of 128, 512 and 1024 bytes. The bar is the middle of all cells, the whisker goes from the \
         least to the greatest. The paper gives its best cell alone.</p>\n",
    );
    let bar_row = |line: &Line| {
        let paper = Bar {
            parts: vec![("linux", line.paper * 100.0)],
            text: format!("{:.0} %", line.paper * 100.0),
            spread: None,
        };
        let Shares { least, middle, most } = line.own;
        let spread = crate::stats::Summary { median: middle * 100.0, min: least * 100.0, max: most * 100.0 };
        let own =
            Bar { parts: vec![("toe", middle * 100.0)], text: line.own.presented(), spread: Some(spread) };
        BarRow { label: line.label(), bars: [paper, own] }
    };
    out += &svg::bars("Time, in percent of read and write's", &lines.iter().map(bar_row).collect::<Vec<_>>());
    out += "<div class=\"wide\"><table>\n<tr><th>link, direction, method</th><th>paper's best</th><th>of OpenTOE's read and write</th>\
            <th>of Linux's read and write</th><th>thread's CPU, of OpenTOE's read and write</th><th>cells</th></tr>\n";
    for line in &lines {
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td>{:.0} %</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&line.label()),
            line.paper * 100.0,
            line.own.presented(),
            line.linux.presented(),
            line.thread.presented(),
            line.cells
        );
    }
    out + "</table></div>\n"
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    #[test]
    fn every_method_over_every_link_has_a_line_of_all_cells() {
        let report = report();
        let lines = lines(&report);
        assert_eq!(lines.len(), 16);
        for line in &lines {
            // OpenTOE is twice as good as Linux, and as good as itself.
            assert_eq!((line.cells, line.own.middle, line.linux.most), (9, 1.0, 0.5), "{}", line.label());
        }
        let text = text(&report);
        assert!(text.contains("100mbit, receive, Method II") && text.contains("75 %"), "{text}");
        assert!(html(&report).contains("<td>unshaped, veth, send, Method I</td><td>85 %</td>"));
    }
}
