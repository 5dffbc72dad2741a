//! What TCP counts of all connections together.

use toe_base::counter::CounterSet;

toe_base::counters! {
    pub enum Counter {
        EcnReductions = "ecn_reductions",
        FastRetransmits = "fast_retransmits",
        SpuriousTimeouts = "spurious_timeouts",
        Undos = "undone_reductions",
        DropNoTimestamp = "drop_no_timestamp",
        DropOldTimestamp = "drop_old_timestamp",
        DropUnacceptable = "drop_unacceptable_segment",
        ChallengeAcks = "challenge_acks",
        ChallengeAcksHeldBack = "challenge_acks_held_back",
        TimeWaitResets = "time_wait_resets_ignored",
        DropAfterClose = "drop_data_after_close",
        DropNoMemory = "drop_no_receive_memory",
        DropReassemblyFull = "drop_reassembly_full",
        KeepaliveProbes = "keepalive_probes",
        RetransmitTimeouts = "retransmit_timeouts",
        TailLossProbes = "tail_loss_probes",
        ZeroWindowProbes = "zero_window_probes",
    }
}

impl Counter {
    /// Whether it counts what is dropped.
    pub const fn is_drop(self) -> bool {
        matches!(self.name().as_bytes(), [b'd', b'r', b'o', b'p', b'_', ..])
    }
}

/// The values.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    values: CounterSet<{ Counter::ALL.len() }>,
    /// The last reason for which something was dropped.
    last_drop: Option<Counter>,
}

impl Counters {
    #[inline]
    pub fn add(&mut self, counter: Counter) {
        self.values.add(counter as usize, 1);
        if counter.is_drop() {
            self.last_drop = Some(counter);
        }
    }

    pub fn get(&self, counter: Counter) -> u64 {
        self.values.get(counter as usize)
    }

    /// Why something was dropped since the last call.
    pub fn take_drop(&mut self) -> Option<Counter> {
        self.last_drop.take()
    }
}
