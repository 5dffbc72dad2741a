//! `toe profile --html`: the figures as one page with plots that needs no other file, the IXP paper's beside them.

use super::{PAPER, PAPER_SIZES, Report, Row};
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
const WIDTH: f64 = 760.0;
const LABEL_WIDTH: f64 = 150.0;
const BAR: f64 = 14.0;
const ROW: f64 = BAR + 6.0;

/// One bar: what it is of, and its parts.
struct Bar {
    label: String,
    parts: Vec<f64>,
}

/// Bars whose parts are the same modules or planes.
struct Plot {
    title: &'static str,
    names: &'static [&'static str],
    bars: Vec<Bar>,
    is_share: bool,
}

pub(super) fn page(report: &Report) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>toe profile</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>What a datagram costs</h1>\n\
         <p>The engine's UDP over IPv4, over memory, on one thread; sizes in bytes of the IP packet. The paper: UDP/IP on an Intel IXP1200 at \
         232 MHz, its table 1, and what follows from that table for its figures 8 and 9: the part of UDP that grows with the size is the \
         checksum's. Of the modules within IP (its figure 7) its text gives no numbers.</p>\n"
    );
    let rows = &report.rows;
    out += "<h2>Time per packet, ns</h2>\n";
    out += &svg(&costs("Receive", rows, |row| [row.receive.ip_ns, row.receive.total_ns - row.receive.ip_ns]));
    out += &svg(&costs("Transmit", rows, |row| {
        let ip_ns = row.transmit.ip_ns + row.transmit.port_ns;
        [ip_ns, row.transmit.total_ns - ip_ns]
    }));
    out += "<h2>Modules within IP, % (figure 7)</h2>\n";
    out += &svg(&Plot {
        title: "Receive",
        names: &["Ethernet", "IP header", "addresses, UDP header"],
        bars: bars(rows, |row| {
            let rx = &row.receive;
            let parts = [rx.ethernet_ns, rx.header_ns];
            vec![parts[0], parts[1], (rx.ip_ns - parts[0] - parts[1]).max(0.0)]
        }),
        is_share: true,
    });
    out += &svg(&Plot {
        title: "Transmit",
        names: &["headers", "to the port"],
        bars: bars(rows, |row| vec![row.transmit.ip_ns, row.transmit.port_ns]),
        is_share: true,
    });
    out += "<h2>Modules within UDP, % (figure 8)</h2>\n";
    out += &svg(&Plot {
        title: "Receive",
        names: &["checksum", "demultiplex", "deliver"],
        bars: bars(rows, |row| {
            vec![row.receive.checksum_ns, row.receive.demultiplex_ns, row.receive.deliver_ns]
        }),
        is_share: true,
    });
    out += &svg(&Plot {
        title: "Transmit",
        names: &["checksum", "route", "copy"],
        bars: bars(rows, |row| vec![row.transmit.checksum_ns, row.transmit.route_ns, row.transmit.copy_ns]),
        is_share: true,
    });
    out += &svg(&paper("The paper: receive", ["checksum", "all else"].as_slice(), checksum_of_paper));
    out += "<h2>Planes, % (figure 9)</h2>\n";
    out += &svg(&Plot {
        title: "Here: receive",
        is_share: true,
        ..costs("", rows, |row| [row.receive.ip_ns, row.receive.total_ns - row.receive.ip_ns])
    });
    out +=
        &svg(&paper("The paper: receive", ["IP", "UDP"].as_slice(), |n| vec![PAPER[0].1[n], PAPER[1].1[n]]));
    out + "</body>\n</html>\n"
}

fn costs(title: &'static str, rows: &[Row], parts: fn(&Row) -> [f64; 2]) -> Plot {
    let bars = bars(rows, |row| parts(row).to_vec());
    Plot { title, names: &["IP", "UDP"], bars, is_share: false }
}

fn bars(rows: &[Row], parts: impl Fn(&Row) -> Vec<f64>) -> Vec<Bar> {
    rows.iter().map(|row| Bar { label: row.size.to_string(), parts: parts(row) }).collect()
}

fn paper(title: &'static str, names: &'static [&'static str], parts: impl Fn(usize) -> Vec<f64>) -> Plot {
    let bar = |(n, size): (usize, &u32)| Bar { label: size.to_string(), parts: parts(n) };
    Plot { title, names, bars: PAPER_SIZES.iter().enumerate().map(bar).collect(), is_share: true }
}

/// What grows with the size, from the line through the smallest and the largest packet, and the rest.
fn checksum_of_paper(n: usize) -> Vec<f64> {
    let (sizes, us) = (PAPER_SIZES, PAPER[1].1);
    let last = sizes.len() - 1;
    let an_byte = (us[last] - us[0]) / f64::from(sizes[last] - sizes[0]);
    let grown = an_byte * f64::from(sizes[n]);
    vec![grown, (us[n] - grown).max(0.0)]
}

fn svg(plot: &Plot) -> String {
    let height = ROW * (plot.bars.len() as f64 + 1.0);
    let mut out = format!(
        "<h3>{0}</h3>\n<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{0}\">",
        plot.title
    );
    let whole = |bar: &Bar| bar.parts.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let longest = plot.bars.iter().map(whole).fold(f64::MIN_POSITIVE, f64::max);
    for (n, name) in plot.names.iter().enumerate() {
        // A string takes all that is written to it.
        let x = LABEL_WIDTH + 190.0 * n as f64;
        let _ = write!(out, "<rect class=\"part{n}\" x=\"{x}\" y=\"2\" width=\"12\" height=\"12\"/>");
        let _ = write!(out, "<text x=\"{}\" y=\"13\">{name}</text>", x + 18.0);
    }
    for (row, bar) in plot.bars.iter().enumerate() {
        let y = ROW * (row as f64 + 1.0);
        let _ = write!(
            out,
            "<text text-anchor=\"end\" x=\"{}\" y=\"{:.1}\">{}</text>",
            LABEL_WIDTH - 10.0,
            y + 12.0,
            bar.label
        );
        let full = if plot.is_share { whole(bar) } else { longest };
        let mut x = LABEL_WIDTH;
        for (n, part) in bar.parts.iter().enumerate() {
            let width = (WIDTH - LABEL_WIDTH - 80.0) * part / full;
            let figure = if plot.is_share { 100.0 * part / full } else { *part };
            let _ = write!(
                out,
                "<rect class=\"part{n}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\">\
                 <title>{}: {figure:.1}</title></rect>",
                plot.names[n]
            );
            if width > 40.0 {
                let _ = write!(
                    out,
                    "<text class=\"in\" x=\"{:.1}\" y=\"{:.1}\">{figure:.0}</text>",
                    x + 4.0,
                    y + 11.5
                );
            }
            x += width;
        }
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fill_their_bars_and_the_paper_stands_beside() {
        let text = page(&super::super::tests::report());
        assert_eq!(text.matches("<svg").count(), text.matches("</svg>").count());
        // Receive of the report's one row: 20 of 50 ns are IP's.
        assert!(text.contains("<title>IP: 40.0</title>"), "{text}");
        // "약 26 %" and "약 5 %" in the paper: from its table 22.7 and 2.8 on receive.
        assert!(
            text.contains("<title>UDP: 77.3</title>") && text.contains("<title>UDP: 97.2</title>"),
            "{text}"
        );
    }

    #[test]
    fn the_papers_checksum_is_what_grows() {
        let share = |n| checksum_of_paper(n)[0] / PAPER[1].1[n];
        assert!(share(0) > 0.35 && share(0) < 0.45 && share(7) > 0.93, "{} {}", share(0), share(7));
    }
}
