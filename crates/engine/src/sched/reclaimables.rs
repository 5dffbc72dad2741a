//! Which flows of a session have how much receive memory to spare: more than what is in order and waits to be read. Where
//! memory is scarce, who has most gives first. Lists by session and by size, linked through fixed arrays: no allocation,
//! and each note is a few stores, or nothing where the size is about what it was.

use toe_base::limits::SESSIONS_MAX;
use toe_base::{FlowIdx, SessionId};

const NONE: u32 = u32::MAX;
/// Sizes by powers of two, from [`LEAST`] on; the last has all that is larger.
const SIZES: usize = 16;
/// Less is not worth the work.
const LEAST: u64 = 8 << 10;

/// A flow's place.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    session: SessionId,
    /// 0: nothing to spare.
    size: u8,
    /// In the list of that session and size. Not so: nothing came of it when it was asked to give.
    listed: bool,
}

/// See the module. Derived from the records: it can be rebuilt from them.
#[derive(Debug)]
pub struct Reclaimables {
    heads: Vec<[u32; SIZES]>,
    links: Vec<Link>,
}

impl Reclaimables {
    pub fn new(flows: usize) -> Reclaimables {
        let link = Link { before: NONE, after: NONE, session: SessionId(0), size: 0, listed: false };
        Reclaimables { heads: vec![[NONE; SIZES]; SESSIONS_MAX], links: vec![link; flows] }
    }

    /// The flow has so many bytes of `session` to spare.
    pub fn note(&mut self, flow: FlowIdx, session: SessionId, spare: u64) {
        let size = if spare < LEAST { 0 } else { (spare / LEAST).ilog2() as usize + 1 };
        let size = size.min(SIZES - 1) as u8;
        let link = &self.links[flow.index()];
        if link.size == size && (link.session == session || size == 0) {
            return;
        }
        self.unlink(flow);
        let link = &mut self.links[flow.index()];
        (link.session, link.size) = (session, size);
        if size > 0 {
            self.link(flow);
        }
    }

    /// Who has about the most of `session`; it is out of the lists until what it has to spare changes.
    pub fn take_largest(&mut self, session: SessionId) -> Option<FlowIdx> {
        let heads = self.heads.get(session.index())?;
        let flow = FlowIdx(*heads.iter().rev().find(|head| **head != NONE)?);
        self.unlink(flow);
        Some(flow)
    }

    fn link(&mut self, flow: FlowIdx) {
        let Link { session, size, .. } = self.links[flow.index()];
        let head = &mut self.heads[session.index()][usize::from(size)];
        let after = core::mem::replace(head, flow.0);
        let link = &mut self.links[flow.index()];
        (link.before, link.after, link.listed) = (NONE, after, true);
        if after != NONE {
            self.links[after as usize].before = flow.0;
        }
    }

    fn unlink(&mut self, flow: FlowIdx) {
        let Link { before, after, session, size, listed } = self.links[flow.index()];
        if !listed {
            return;
        }
        self.links[flow.index()].listed = false;
        if after != NONE {
            self.links[after as usize].before = before;
        }
        if before != NONE {
            self.links[before as usize].after = after;
        } else {
            self.heads[session.index()][usize::from(size)] = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_most_gives_first_and_once() {
        let mut reclaimables = Reclaimables::new(8);
        let (one, two) = (SessionId(1), SessionId(2));
        for (flow, spare) in [(0, 4 << 10), (1, 16 << 20), (2, 1 << 20), (3, 8 << 10)] {
            reclaimables.note(FlowIdx(flow), one, spare);
        }
        reclaimables.note(FlowIdx(4), two, 32 << 20);
        reclaimables.note(FlowIdx(2), one, (1 << 20) + 5);
        assert_eq!(reclaimables.take_largest(one), Some(FlowIdx(1)));
        reclaimables.note(FlowIdx(1), one, (16 << 20) + 1);
        assert_eq!(reclaimables.take_largest(one), Some(FlowIdx(2)), "asked once, it is left alone");
        reclaimables.note(FlowIdx(1), one, 64 << 10);
        assert_eq!(reclaimables.take_largest(one), Some(FlowIdx(1)), "until it has another amount");
        reclaimables.note(FlowIdx(3), one, 0);
        assert_eq!(reclaimables.take_largest(one), None, "a little is not worth asking for");
        reclaimables.note(FlowIdx(4), one, 32 << 20);
        assert_eq!(
            (reclaimables.take_largest(two), reclaimables.take_largest(one)),
            (None, Some(FlowIdx(4)))
        );
    }

    #[test]
    fn lists_hold_together_whatever_is_noted() {
        let mut reclaimables = Reclaimables::new(16);
        let mut spare = [0u64; 16];
        let mut seed = 5u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let flow = (seed >> 33) as usize % 16;
            spare[flow] = (seed >> 40) >> (seed >> 60);
            reclaimables.note(FlowIdx(flow as u32), SessionId(3), spare[flow]);
        }
        for flow in 0..16 {
            reclaimables.note(FlowIdx(flow), SessionId(3), 0);
            reclaimables.note(FlowIdx(flow), SessionId(3), spare[flow as usize]);
        }
        let mut given = Vec::new();
        while let Some(flow) = reclaimables.take_largest(SessionId(3)) {
            given.push(spare[flow.index()]);
        }
        assert_eq!(given.len(), spare.iter().filter(|spare| **spare >= LEAST).count());
        assert!(given.windows(2).all(|pair| pair[0] >= pair[1] / 2));
    }
}
