//! Plots as SVG, coloured by the page's style sheet alone so that they read well in light and dark. Used by `html`.
//!
//! Rows of one plot differ by orders of magnitude, so bars are drawn row by row: the longest of a row fills the width,
//! and each bar bears its figure.

use crate::sample::Stack;
use crate::stats::Summary;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const LABEL_WIDTH: f64 = 190.0;
const FIGURE_WIDTH: f64 = 150.0;
const BAR: f64 = 13.0;
const ROW: f64 = 2.0 * BAR + 12.0;
const AXIS: f64 = 22.0;

/// One bar: its parts, what stands beside it, and its spread.
#[derive(Clone, Debug, Default)]
pub(super) struct Bar {
    /// The style class and length of each part, from the left.
    pub(super) parts: Vec<(&'static str, f64)>,
    pub(super) text: String,
    pub(super) spread: Option<Summary>,
}

/// The bars of one row, one for each stack.
#[derive(Clone, Debug)]
pub(super) struct BarRow {
    pub(super) label: String,
    pub(super) bars: [Bar; 2],
}

/// The percentiles of one row, one list for each stack: names and microseconds.
#[derive(Clone, Debug)]
pub(super) struct LatencyRow {
    pub(super) label: String,
    pub(super) points: [Vec<(&'static str, f64)>; 2],
}

/// Horizontal bars in pairs, with whiskers from the least to the greatest round.
pub(super) fn bars(title: &str, rows: &[BarRow]) -> String {
    let mut out = open(title, rows.len(), 0.0);
    for (index, row) in rows.iter().enumerate() {
        let top = index as f64 * ROW;
        label(&mut out, &row.label, top);
        let reach = |bar: &Bar| {
            let length: f64 = bar.parts.iter().map(|(_, length)| length).sum();
            length.max(bar.spread.map_or(0.0, |spread| spread.max))
        };
        let longest = row.bars.iter().map(reach).fold(f64::MIN_POSITIVE, f64::max);
        let scale = (WIDTH - LABEL_WIDTH - FIGURE_WIDTH) / longest;
        for (place, bar) in row.bars.iter().enumerate() {
            let y = top + 4.0 + place as f64 * (BAR + 2.0);
            let mut x = LABEL_WIDTH;
            for (class, length) in &bar.parts {
                let width = length * scale;
                // Writing to a String cannot fail.
                let _ = write!(
                    out,
                    r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{BAR}"/>"#
                );
                x += width;
            }
            if let Some(spread) = bar.spread {
                whisker(&mut out, LABEL_WIDTH + spread.min * scale, LABEL_WIDTH + spread.max * scale, y);
            }
            let (x, y) = (LABEL_WIDTH + reach(bar) * scale + 6.0, y + BAR - 2.5);
            let _ = write!(out, r#"<text x="{x:.1}" y="{y:.1}">{}</text>"#, escape(&bar.text));
        }
    }
    out + "</svg>\n"
}

/// Percentiles on one logarithmic axis: a line for each stack, a dot for each percentile.
pub(super) fn latencies(title: &str, rows: &[LatencyRow]) -> String {
    let all = || rows.iter().flat_map(|row| row.points.iter().flatten()).map(|(_, us)| us.max(0.01).log10());
    let low = all().fold(f64::INFINITY, f64::min).floor();
    let high = all().fold(f64::NEG_INFINITY, f64::max).ceil().max(low + 1.0);
    let place = |us: f64| {
        let share = (us.max(0.01).log10() - low) / (high - low);
        LABEL_WIDTH + share * (WIDTH - LABEL_WIDTH - 30.0)
    };
    let mut out = open(title, rows.len(), AXIS);
    let bottom = rows.len() as f64 * ROW;
    for decade in (low as i32)..=(high as i32) {
        let us = 10_f64.powi(decade);
        let x = place(us);
        let _ = write!(out, r#"<line class="grid" x1="{x:.1}" x2="{x:.1}" y1="0" y2="{bottom:.1}"/>"#);
        let text = super::text::time(us);
        let _ = write!(
            out,
            r#"<text class="axis" text-anchor="middle" x="{x:.1}" y="{:.1}">{text}</text>"#,
            bottom + 15.0
        );
    }
    for (index, row) in rows.iter().enumerate() {
        let top = index as f64 * ROW;
        label(&mut out, &row.label, top);
        for (stack, points) in Stack::BOTH.into_iter().zip(&row.points) {
            let y = top + 10.0 + f64::from(u8::from(stack == Stack::Toe)) * (BAR + 2.0);
            let class = stack_class(stack);
            if let (Some((_, first)), Some((_, last))) = (points.first(), points.last()) {
                let (from, to) = (place(*first), place(*last));
                let _ = write!(
                    out,
                    r#"<line class="{class}" x1="{from:.1}" x2="{to:.1}" y1="{y:.1}" y2="{y:.1}"/>"#
                );
            }
            for (name, us) in points {
                let (x, text) = (place(*us), super::text::time(*us));
                let _ = write!(
                    out,
                    r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="4"><title>{} {name} {text}</title></circle>"#,
                    stack.title()
                );
            }
        }
    }
    out + "</svg>\n"
}

/// The style class of a stack's colour.
pub(super) fn stack_class(stack: Stack) -> &'static str {
    match stack {
        Stack::Linux => "linux",
        Stack::Toe => "toe",
    }
}

/// Text that may stand in HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

fn open(title: &str, rows: usize, below: f64) -> String {
    let height = rows as f64 * ROW + below;
    format!(
        r#"<svg viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="{0}"><title>{0}</title>"#,
        escape(title)
    )
}

fn label(out: &mut String, text: &str, top: f64) {
    let y = top + BAR + 9.0;
    let x = LABEL_WIDTH - 10.0;
    let _ =
        write!(out, r#"<text class="label" text-anchor="end" x="{x}" y="{y:.1}">{}</text>"#, escape(text));
}

fn whisker(out: &mut String, from: f64, to: f64, y: f64) {
    let (middle, top, bottom) = (y + BAR / 2.0, y + 3.0, y + BAR - 3.0);
    for (x1, x2, y1, y2) in [(from, to, middle, middle), (from, from, top, bottom), (to, to, top, bottom)] {
        let _ = write!(out, r#"<line class="whisker" x1="{x1:.1}" x2="{x2:.1}" y1="{y1:.1}" y2="{y2:.1}"/>"#);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fill_their_row_and_text_is_escaped() {
        let bar = |length| Bar {
            parts: vec![("linux", length)],
            text: "1 < 2".to_owned(),
            spread: Some(Summary { median: length, min: length / 2.0, max: length * 2.0 }),
        };
        let row = BarRow { label: "a & b".to_owned(), bars: [bar(1.0), bar(4.0)] };
        let svg = bars("rates", &[row]);
        assert!(svg.contains("a &amp; b") && svg.contains("1 &lt; 2"), "{svg}");
        // The longest whisker ends where the figures begin.
        assert!(svg.contains(r#"x1="710.0" x2="710.0""#), "{svg}");
        assert!(svg.ends_with("</svg>\n"));
    }

    #[test]
    fn latencies_lie_on_one_axis() {
        let points = |factor: f64| vec![("p50", 10.0 * factor), ("p99", 100.0 * factor)];
        let row = LatencyRow { label: "x".to_owned(), points: [points(10.0), points(1.0)] };
        let svg = latencies("times", &[row]);
        assert_eq!(svg.matches("<circle").count(), 4);
        for decade in ["10 us", "100 us", "1 ms"] {
            assert!(svg.contains(decade), "{decade} in {svg}");
        }
        assert!(latencies("nothing", &[]).ends_with("</svg>\n"));
    }
}
