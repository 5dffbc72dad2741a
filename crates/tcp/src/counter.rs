//! What TCP counts of all connections together.

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

/// The values.
pub type Counters = toe_base::counter::CounterValues<Counter, { Counter::ALL.len() }>;
