//! The rows: all there are, and those that the options ask for. Used by `runner` and by the tests of `targets`.

use crate::apps::App;
use crate::options::{Link, Neighbour, Options, Workload};
use crate::row::{Attack, Calls, Cores, Direction, Flood, Load, Row, ServedBy, Web};
use crate::transfer;

const RR_SIZES: [u32; 3] = [64, 1024, 16 << 10];
const RR_DEPTHS: [u32; 3] = [1, 8, 64];
const RR_CONNECTIONS: [u32; 3] = [1, 64, 1000];

/// Every row and, right behind it, the same beside each neighbour.
pub(crate) fn all_beside(neighbours: &[Neighbour]) -> Vec<Row> {
    let with = |row: Row| {
        let busy = |neighbour: &Neighbour| Row { beside: Some(*neighbour), ..row.clone() };
        std::iter::once(row.clone()).chain(neighbours.iter().map(busy)).collect::<Vec<_>>()
    };
    all().into_iter().flat_map(with).collect()
}

/// Every row with nothing beside it. The first of a workload and link is the one that `--quick` takes.
pub(crate) fn all() -> Vec<Row> {
    let mut rows = Vec::new();
    for link in Link::ALL {
        for workload in Workload::ALL {
            let loads = loads(workload, link);
            rows.extend(loads.into_iter().map(|load| Row::quiet(workload, link, load)));
            if let Some(load) = on_one_core(workload, link) {
                rows.push(Row { cores: Cores::One, ..Row::quiet(workload, link, load) });
            }
            let full = with_full_cores(workload, link).into_iter();
            rows.extend(full.map(|load| Row { cores: Cores::Full, ..Row::quiet(workload, link, load) }));
        }
    }
    rows
}

/// The rows that `options` ask for. Without a word about links the ones that need root are left out for others, and without a word about
/// its workload the directwrite paper's grid.
pub(crate) fn chosen(options: &Options, is_root: bool) -> Vec<Row> {
    let mut seen = Vec::new();
    let mut wanted = |row: &Row| {
        let workload = options.workloads.is_empty() || options.workloads.contains(&row.workload);
        let link = match options.links.as_slice() {
            [] => is_root || row.link == Link::Local,
            links => links.contains(&row.link),
        };
        let name = row.name();
        // An hour of its own.
        let is_asked =
            !row.is_of_paper() || options.workloads.contains(&row.workload) || !options.rows.is_empty();
        let named = options.rows.is_empty() || options.rows.iter().any(|part| name.contains(part.as_str()));
        let chosen = workload && link && named && is_asked;
        // With --quick, the first of each.
        let key = (row.link, row.workload, row.beside);
        let first = !seen.contains(&key);
        if chosen {
            seen.push(key);
        }
        chosen && (first || !options.quick)
    };
    all_beside(&options.beside).into_iter().filter(|row| wanted(row)).collect()
}

fn loads(workload: Workload, link: Link) -> Vec<Load> {
    use Direction::{Receive, Send};
    let stream = |flows, direction| Load::Stream { flows, direction };
    match (workload, link) {
        (Workload::Stream, Link::Tap) => vec![stream(1, Send), stream(1, Receive)],
        (Workload::File, link) => {
            let web = web().into_iter().filter(|_| matches!(link, Link::Local | Link::Veth));
            transfer::all(link).into_iter().map(Load::File).chain(web).collect()
        }
        (_, Link::Tap | Link::Mbit10 | Link::Mbit100) => Vec::new(),
        (Workload::Http, _) => {
            let shapes = [(256, true), (256, false), (64 << 10, true), (64 << 10, false)];
            shapes.map(|(file, keepalive)| Load::Http { file, keepalive }).to_vec()
        }
        (Workload::Apps, _) => App::ALL.map(Load::App).to_vec(),
        (Workload::Kv, _) => vec![
            Load::Redis { pipeline: 1 },
            Load::Redis { pipeline: 16 },
            Load::Memcached { keys: 1 },
            Load::Memcached { keys: 16 },
        ],
        (Workload::Rr, _) => {
            let mut cells = Vec::new();
            for size in RR_SIZES {
                for depth in RR_DEPTHS {
                    cells.extend(RR_CONNECTIONS.map(|connections| Load::Rr { size, depth, connections }));
                }
            }
            cells
        }
        (Workload::Stream, _) => vec![stream(1, Send), stream(1, Receive), stream(8, Send)],
        (Workload::Cps, _) => ServedBy::ALL.map(|served_by| Load::Cps { served_by }).to_vec(),
        (Workload::Crowd, _) => [(8, 64), (16, 10_000)]
            .map(|(programs, connections)| Load::Crowd { programs, connections })
            .to_vec(),
        (Workload::Idle, Link::Local) => vec![Load::Idle { connections: 10_000 }],
        // Over a link a client's kernel has its own share of the memory, the same on both stacks.
        (Workload::Idle, _) => Vec::new(),
        (Workload::Wake, _) => vec![Load::Wake],
        (Workload::Udp, _) => datagrams(link),
        // Each end of a link has an engine.
        (Workload::Via, _) => messages(),
        (Workload::Calls, Link::Local) => Calls::ALL.map(Load::Calls).to_vec(),
        (Workload::Calls, _) => Vec::new(),
    }
}

/// nginx with sendfile, and over TLS without and with records of the socket's.
fn web() -> Vec<Load> {
    let of = |how, files: &[u32]| files.iter().map(move |&file| Load::Web { file, how }).collect::<Vec<_>>();
    let mut loads = of(Web::Plain, &[64 << 10, 1 << 20, 10 << 20]);
    loads.extend([Web::Tls, Web::KernelTls].into_iter().flat_map(|how| of(how, &[64 << 10, 10 << 20])));
    loads
}

/// The two figures of the EVIL paper, and what it has not: a request and its reply, and the smallest and largest messages.
fn messages() -> Vec<Load> {
    let mut loads = vec![Load::MessageRr { size: 8 }, Load::MessageWake { size: 8 }];
    let sizes = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
    loads.extend(sizes.map(|size| Load::Messages { size, total_mb: 20 }));
    loads.extend([1, 100, 500].map(|total_mb| Load::Messages { size: 16 << 10, total_mb }));
    loads.extend([Load::Messages { size: 8, total_mb: 8 }, Load::Messages { size: 1 << 20, total_mb: 500 }]);
    loads
}

/// By sendto, by sendmmsg, in small and in large super-segments; over a link both ways, as its two ends are two stacks. Then request and
/// reply, a rate that Linux reaches, three times what the server reaches, and a rate beside strangers' packets.
fn datagrams(link: Link) -> Vec<Load> {
    let plain = Flood::PLAIN;
    let floods = [
        plain,
        Flood { batch: 32, ..plain },
        Flood { segments: 64, ..plain },
        Flood { size: 1200, segments: 50, ..plain },
    ];
    let back = floods.map(|flood| Flood { direction: Direction::Receive, ..flood });
    let back = back.into_iter().filter(|_| link == Link::Veth);
    let mut loads: Vec<Load> = floods.into_iter().chain(back).map(Load::Datagrams).collect();
    let paced = Load::Datagrams(Flood { rate: Some(50_000), ..plain });
    loads.extend([Load::DatagramRr, paced, Load::DatagramOverload]);
    if link == Link::Veth {
        loads.extend(Attack::ALL.map(Load::DatagramsBeside));
    }
    loads
}

/// The row that has everything on one processor.
fn on_one_core(workload: Workload, link: Link) -> Option<Load> {
    match (workload, link) {
        (Workload::Http, Link::Local) => Some(Load::Http { file: 256, keepalive: true }),
        (Workload::Rr, Link::Local) => Some(Load::Rr { size: 64, depth: 1, connections: 1 }),
        _ => None,
    }
}

/// Those whose servers have as many workers, and whose clients as many threads, as there are processors: as servers are deployed, and with no
/// processor left for a thread that is neither's.
fn with_full_cores(workload: Workload, link: Link) -> Vec<Load> {
    match (workload, link) {
        (_, Link::Tap | Link::Mbit10 | Link::Mbit100) => Vec::new(),
        (Workload::Http, _) => [true, false].map(|keepalive| Load::Http { file: 256, keepalive }).to_vec(),
        (Workload::Apps, _) => App::ALL.map(Load::App).to_vec(),
        (Workload::Kv, _) => vec![Load::Memcached { keys: 1 }],
        (Workload::Rr, _) => vec![Load::Rr { size: 64, depth: 1, connections: 64 }],
        (Workload::Cps, _) => ServedBy::ALL.map(|served_by| Load::Cps { served_by }).to_vec(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn options() -> Options {
        Options {
            programs: "/nowhere".into(),
            workloads: Vec::new(),
            links: Vec::new(),
            rounds: 5,
            seconds: None,
            quick: false,
            rows: Vec::new(),
            beside: Vec::new(),
            together: None,
            cpus: None,
            congestion: None,
            json: None,
            html: None,
        }
    }

    #[test]
    fn each_row_has_a_name_of_its_own() {
        let rows = all_beside(&Neighbour::ALL);
        let names: BTreeSet<String> = rows.iter().map(Row::name).collect();
        assert_eq!(names.len(), rows.len());
        for name in ["local/rr/64B-d1-c1", "local/rr/64B-d1-c1-onecore", "veth/http/256B-keepalive-full"] {
            assert!(names.contains(name), "{name} in {names:?}");
        }
    }

    #[test]
    fn options_choose_rows() {
        let names = |options: &Options, root| -> Vec<String> {
            chosen(options, root).iter().map(Row::name).collect()
        };
        let (of_paper, others): (Vec<Row>, Vec<Row>) = all().into_iter().partition(Row::is_of_paper);
        assert_eq!(chosen(&options(), true), others);
        let file = Options { workloads: vec![Workload::File], ..options() };
        assert!(of_paper.len() == 4 * 54 && of_paper.iter().all(|row| chosen(&file, true).contains(row)));
        assert!(chosen(&options(), false).iter().all(|row| row.link == Link::Local));
        let quick = Options {
            quick: true,
            workloads: vec![Workload::Wake, Workload::Rr],
            links: vec![Link::Local],
            ..options()
        };
        assert_eq!(names(&quick, true), ["local/rr/64B-d1-c1", "local/wake/64B"]);
        let beside = Options { beside: vec![Neighbour::Loops], ..quick.clone() };
        let both = ["local/rr/64B-d1-c1", "local/rr/64B-d1-c1-busy", "local/wake/64B", "local/wake/64B-busy"];
        assert_eq!(names(&beside, true), both);
        let named = Options { rows: vec!["16KiB-d64-c1000".to_owned()], ..options() };
        assert_eq!(names(&named, true), ["local/rr/16KiB-d64-c1000", "veth/rr/16KiB-d64-c1000"]);
    }
}
