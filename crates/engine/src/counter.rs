//! What the engine counts: traffic, and every reason for which it drops, refuses or fences.

use toe_abi::attach::FenceReason;
use toe_base::counter::CounterSet;
use toe_tcp::counter as tcp;

toe_base::counters! {
    /// One counter each; `name` is what `toe status` prints.
    pub enum Counter {
        RxFrames = "rx_frames",
        RxSegments = "rx_segments",
        TxSegments = "tx_segments",
        TxControl = "tx_control",
        LocalSegments = "local_segments",
        DropTruncated = "drop_truncated",
        DropNotForUs = "drop_not_for_us",
        DropEthertype = "drop_ethertype",
        DropVlan = "drop_other_vlan",
        DropBadIp = "drop_bad_ip_header",
        DropFragment = "drop_ip_fragment",
        DropFragmentLimit = "drop_ip_fragment_limit",
        DropFragmentTimeout = "drop_ip_fragment_timeout",
        DropProtocol = "drop_ip_protocol",
        DropBadChecksum = "drop_bad_tcp_checksum",
        DropBadTcp = "drop_bad_tcp_header",
        DropBadArp = "drop_bad_arp",
        DropBadIcmp = "drop_bad_icmp",
        IgnoredIcmp = "ignored_icmp",
        IcmpErrors = "icmp_errors",
        IcmpErrorsStray = "icmp_errors_stray",
        PathMtuLowered = "path_mtu_lowered",
        Reassembled = "reassembled",
        DropBadAddress = "drop_bad_source_address",
        WindowScaleTooLarge = "window_scale_too_large",
        DropNoFlow = "drop_no_flow",
        DropUnacceptable = "drop_unacceptable_segment",
        DropOldTimestamp = "drop_old_timestamp",
        DropNoTimestamp = "drop_no_timestamp",
        DropNoMemory = "drop_no_receive_memory",
        DropReassemblyFull = "drop_reassembly_full",
        PrunedOutOfOrder = "pruned_out_of_order",
        CollapsedWindows = "collapsed_windows",
        DropAcceptQueueFull = "drop_accept_queue_full",
        DropBacklogFull = "drop_backlog_full",
        DropFlowTableFull = "drop_flow_table_full",
        DropOverQuota = "drop_over_quota",
        DropControlQueueFull = "drop_control_queue_full",
        DropAfterClose = "drop_data_after_close",
        ChallengeAcks = "challenge_acks",
        ChallengeAcksHeldBack = "challenge_acks_held_back",
        Resets = "resets_sent",
        ResetsHeldBack = "resets_held_back",
        OrphansReset = "orphans_reset",
        TimeWaitEvicted = "time_wait_evicted",
        TimeWaitReused = "time_wait_reused",
        TimeWaitResets = "time_wait_resets_ignored",
        CookiesSent = "syn_cookies_sent",
        CookiesGood = "syn_cookies_received",
        CookiesBad = "syn_cookies_failed",
        FastOpenSent = "fast_open_sent",
        FastOpenRefused = "fast_open_refused",
        FastOpenLost = "fast_open_lost",
        FastOpenReceived = "fast_open_received",
        FastOpenAsked = "fast_open_asked",
        FastOpenBadCookie = "fast_open_bad_cookie",
        FastOpenQueueFull = "fast_open_queue_full",
        Retransmits = "retransmits",
        RetransmitTimeouts = "retransmit_timeouts",
        FastRetransmits = "fast_retransmits",
        TailLossProbes = "tail_loss_probes",
        SpuriousTimeouts = "spurious_timeouts",
        Undos = "undone_reductions",
        EcnReductions = "ecn_reductions",
        ZeroWindowProbes = "zero_window_probes",
        KeepaliveProbes = "keepalive_probes",
        PassiveOpens = "passive_opens",
        ActiveOpens = "active_opens",
        ConnectRefused = "connect_refused",
        ListenersLeft = "listeners_nobody_takes_from",
        OverQuota = "over_quota",
        NeighbourFailures = "neighbour_failures",
        TwinsGone = "twins_gone",
        StaleEntries = "stale_entries",
        Claims = "claims",
        ChannelsOpened = "channels_opened",
        DirectConnections = "direct_connections",
        Lanes = "lanes",
        RxDatagrams = "rx_datagrams",
        TxDatagrams = "tx_datagrams",
        TxFragments = "tx_datagram_fragments",
        DatagramsByLane = "datagrams_by_lane",
        DatagramsByKernel = "datagrams_by_kernel",
        DropBadUdp = "drop_bad_udp_header",
        DropBadUdpChecksum = "drop_bad_udp_checksum",
        DropNoSocket = "drop_no_datagram_socket",
        DropDatagramQueueFull = "drop_datagram_queue_full",
        DropDatagramUndeliverable = "drop_datagram_undeliverable",
        DropDatagramBadRecord = "drop_datagram_bad_record",
        DropDatagramNoRoute = "drop_datagram_no_route",
        DropDatagramTooBig = "drop_datagram_too_big",
        DropDatagramNoNeighbour = "drop_datagram_no_neighbour",
        DatagramErrors = "datagram_icmp_errors",
        Unreachables = "port_unreachables_sent",
        UnreachablesHeldBack = "port_unreachables_held_back",
        ViaConnections = "via_connections",
        Yields = "yields",
        FenceUnknownEntryType = "fence_unknown_entry_type",
        FenceBadArgument = "fence_bad_argument",
        FenceBadSendRange = "fence_bad_send_range",
        FenceCreditBeyondData = "fence_credit_beyond_data",
        FenceBadHead = "fence_bad_head",
        FenceBadIrqMode = "fence_bad_irq_mode",
        FenceUnknownHandle = "fence_unknown_handle",
        FenceCompletionOverflow = "fence_completion_overflow",
        FenceMemoryLost = "fence_memory_lost",
    }
}

impl Counter {
    /// Whether it counts what is dropped.
    pub const fn is_drop(self) -> bool {
        matches!(self.name().as_bytes(), [b'd', b'r', b'o', b'p', b'_', ..])
    }

    /// The name here of what TCP counts itself.
    pub const fn of_tcp(counter: tcp::Counter) -> Counter {
        match counter {
            tcp::Counter::EcnReductions => Counter::EcnReductions,
            tcp::Counter::FastRetransmits => Counter::FastRetransmits,
            tcp::Counter::SpuriousTimeouts => Counter::SpuriousTimeouts,
            tcp::Counter::Undos => Counter::Undos,
            tcp::Counter::DropNoTimestamp => Counter::DropNoTimestamp,
            tcp::Counter::DropOldTimestamp => Counter::DropOldTimestamp,
            tcp::Counter::DropUnacceptable => Counter::DropUnacceptable,
            tcp::Counter::ChallengeAcks => Counter::ChallengeAcks,
            tcp::Counter::ChallengeAcksHeldBack => Counter::ChallengeAcksHeldBack,
            tcp::Counter::TimeWaitResets => Counter::TimeWaitResets,
            tcp::Counter::DropAfterClose => Counter::DropAfterClose,
            tcp::Counter::DropNoMemory => Counter::DropNoMemory,
            tcp::Counter::DropReassemblyFull => Counter::DropReassemblyFull,
            tcp::Counter::KeepaliveProbes => Counter::KeepaliveProbes,
            tcp::Counter::RetransmitTimeouts => Counter::RetransmitTimeouts,
            tcp::Counter::TailLossProbes => Counter::TailLossProbes,
            tcp::Counter::ZeroWindowProbes => Counter::ZeroWindowProbes,
        }
    }

    /// The counter of a fence reason.
    pub const fn of_fence(reason: FenceReason) -> Counter {
        match reason {
            FenceReason::UnknownEntryType => Counter::FenceUnknownEntryType,
            FenceReason::BadArgument => Counter::FenceBadArgument,
            FenceReason::BadSendRange => Counter::FenceBadSendRange,
            FenceReason::CreditBeyondData => Counter::FenceCreditBeyondData,
            FenceReason::BadHead => Counter::FenceBadHead,
            FenceReason::BadIrqMode => Counter::FenceBadIrqMode,
            FenceReason::UnknownHandle => Counter::FenceUnknownHandle,
            FenceReason::CompletionOverflow => Counter::FenceCompletionOverflow,
            FenceReason::MemoryLost => Counter::FenceMemoryLost,
        }
    }
}

/// The engine's counters.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    values: CounterSet<{ Counter::ALL.len() }>,
    /// The last reason for which something was dropped, for captures.
    last_drop: Option<Counter>,
}

impl Counters {
    #[inline]
    pub fn add(&mut self, counter: Counter) {
        self.add_many(counter, 1);
    }

    pub fn add_many(&mut self, counter: Counter, count: u64) {
        self.values.add(counter as usize, count);
        if counter.is_drop() {
            self.last_drop = Some(counter);
        }
    }

    /// Why something was dropped since the last call.
    pub fn take_drop(&mut self) -> Option<Counter> {
        self.last_drop.take()
    }

    pub fn get(&self, counter: Counter) -> u64 {
        self.values.get(counter as usize)
    }
}
