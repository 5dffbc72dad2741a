//! Two ports whose frames go to each other. The faults are the ports' own.

use std::io;
use std::os::fd::BorrowedFd;
use toe_port::{Port, PortCounters};
use toe_wire::link::{RxOffload, TxOffload};

/// Frames taken from one end before the other has its turn.
const FRAMES_PER_TURN: usize = 64;

/// A wire.
pub(crate) struct Cable {
    ends: [Box<dyn Port>; 2],
}

impl Cable {
    pub(crate) fn new(left: Box<dyn Port>, right: Box<dyn Port>) -> Cable {
        Cable { ends: [left, right] }
    }

    /// Carries frames until neither end has one that is due. An error says that an end is gone.
    pub(crate) fn turn(&mut self) -> io::Result<()> {
        let [left, right] = &mut self.ends;
        while carry(&mut **left, &mut **right)? + carry(&mut **right, &mut **left)? > 0 {}
        Ok(())
    }

    pub(crate) fn poll_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ends.iter().filter_map(|end| end.poll_fd())
    }

    /// After so long there is something to carry although nothing came.
    pub(crate) fn next_deadline_us(&self) -> Option<u64> {
        self.ends.iter().filter_map(|end| end.next_deadline_us()).min()
    }

    pub(crate) fn counters(&self) -> [PortCounters; 2] {
        [self.ends[0].counters(), self.ends[1].counters()]
    }
}

/// Carries frames from one end to the other; returns how many came out of the one.
fn carry(from: &mut dyn Port, to: &mut dyn Port) -> io::Result<usize> {
    let out = to.transmit();
    let mut forward = |frame: &[u8], _: RxOffload| {
        // Without room the frame is lost, as on a wire whose receiver is not ready.
        if let Some(room) = out.frame(frame.len()) {
            room.copy_from_slice(frame);
            out.commit(TxOffload::default());
        }
    };
    let carried = from.receive(FRAMES_PER_TURN, &mut forward)?;
    // An interface that is down, such as one that has just been moved, takes nothing, and the port counts what is lost.
    // One that is gone is told by `receive`.
    let _ = to.flush();
    Ok(carried)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use toe_port::fault::FaultPort;
    use toe_port::memory::{MemoryLink, MemoryPort, pair};
    use toe_wire::MacAddr;
    use toe_wire::link::LinkCaps;

    /// A cable with these faults at its ends, the ports at its two far sides, and the clock of the faults.
    fn cable(faults: [&str; 2]) -> (Cable, [MemoryPort; 2], Arc<AtomicU64>) {
        let clock = Arc::new(AtomicU64::new(0));
        let link = |name: &str| MemoryLink {
            name: name.to_owned(),
            mac: MacAddr([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            caps: LinkCaps::default(),
        };
        let [(left, at_left), (right, at_right)] = faults.map(|plan| {
            let (end, far) = pair(link("end"), link("far"));
            let (plan, hand) = (plan.parse().expect("a good plan"), clock.clone());
            let end = FaultPort::new(Box::new(end), plan, Box::new(move || hand.load(Ordering::Relaxed)));
            (Box::new(end), far)
        });
        (Cable::new(left, right), [at_left, at_right], clock)
    }

    fn send(port: &mut MemoryPort, numbers: std::ops::Range<u8>) {
        for n in numbers {
            port.transmit().frame(60).expect("room").fill(n);
            port.transmit().commit(TxOffload::default());
            port.flush().expect("memory");
        }
    }

    fn received(port: &mut MemoryPort) -> Vec<u8> {
        let mut seen = Vec::new();
        port.receive(usize::MAX, &mut |frame, _| seen.push(frame[0])).expect("memory");
        seen
    }

    #[test]
    fn frames_cross_both_ways_in_order() {
        let (mut cable, [mut left, mut right], _) = cable(["seed=1", "seed=1"]);
        send(&mut left, 0..100);
        send(&mut right, 100..200);
        cable.turn().expect("memory");
        assert_eq!(received(&mut right), (0..100).collect::<Vec<u8>>());
        assert_eq!(received(&mut left), (100..200).collect::<Vec<u8>>());
        assert_eq!(cable.next_deadline_us(), None);
    }

    #[test]
    fn each_direction_has_the_faults_of_the_end_where_it_comes_in() {
        // 60 bytes at 480 kbit/s take a millisecond.
        let (mut cable, [mut left, mut right], clock) =
            cable(["rx_rate_kbit=480&rx_delay_us=500", "rx_delay_us=2000"]);
        send(&mut left, 0..2);
        send(&mut right, 7..8);
        let mut seen = Vec::new();
        cable.turn().expect("memory");
        while let Some(us) = cable.next_deadline_us() {
            let now = clock.fetch_add(us, Ordering::Relaxed) + us;
            cable.turn().expect("memory");
            seen.extend(received(&mut right).into_iter().map(|n| (now, n)));
            seen.extend(received(&mut left).into_iter().map(|n| (now, n)));
        }
        assert_eq!(seen, [(1500, 0), (2000, 7), (2500, 1)]);
    }
}
