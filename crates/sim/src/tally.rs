//! How often each fault and each thing that programs do occurred: what was not exercised was not tested.

use toe_base::counter::CounterSet;
use toe_engine::Counter;

toe_base::counters! {
    /// One count each; `name` is what the summary prints.
    pub enum Tally {
        Frames = "frames",
        FramesCut = "frames cut from large ones",
        BytesRead = "bytes read",
        VirtualSeconds = "virtual seconds",
        Connections = "connections",
        Ipv6Connections = "connections by IPv6",
        LocalConnections = "local connections",
        FastOpens = "bytes sent before the handshake",
        ConnectErrors = "connects that failed",
        Completed = "connections completed",
        Excused = "connections excused",
        Strangers = "connections of hostile hosts",
        Bulk = "bulk one way",
        BothWays = "bulk both ways",
        Exchanges = "request and response",
        HalfClosed = "half close",
        Aborts = "aborts",
        EmptyConnections = "nothing sent",
        SlowReaders = "slow readers",
        Urgent = "urgent bytes sent",
        Records = "records ended",
        UrgentTold = "urgent bytes told of",
        ConnectStorms = "connect storms",
        ManyFlows = "worlds of 100 connections or more",
        Lost = "frames lost",
        LostInBurst = "frames lost in bursts",
        QueueFull = "frames lost to a full queue",
        Reordered = "frames reordered",
        Duplicated = "frames duplicated",
        Corrupted = "frames corrupted",
        Marked = "frames marked, congestion",
        Fragmented = "frames that came in pieces",
        TooLarge = "frames beyond a path's MTU",
        MtuChanges = "path MTU changes",
        WindowsShrunk = "windows shrunk",
        Overlaps = "overlapping segments",
        Garbage = "garbage segments near the window",
        Passed = "sockets passed to another process",
        Forks = "processes that made a child",
        LateEntries = "rings in which entries waited for the engine",
        Promised = "connects that hosts need not ask for",
        Unmade = "anchors that could not be made",
        Trimmed = "pages of idle memory given back",
        Heads = "frames of which the engine was shown the headers",
        HeadsFailed = "such whose bytes did not come",
        ToldFirst = "sockets whose owner was told before another process had them",
        SharedListeners = "listeners that one process more takes from",
        WentBack = "connections taken back from who did not take them",
        LeftListeners = "listeners that a process let go of",
        Captures = "captures",
        Copies = "packets shown to captures",
        LocalCopies = "local segments shown to captures",
        YieldedToCaptures = "connections asked out of their channel by a capture",
        GivenBack = "sockets that were given up with bytes",
        Unclaimed = "such whose bytes nobody came for",
        Inherited = "sockets that outlived their process",
        HostsDied = "hosts died",
        HostsTurned = "hosts turned hostile",
        HostileEntries = "hostile entries",
        Fences = "hostile hosts fenced",
        Stalls = "hosts stopped reading",
        ClockJumps = "clock jumps",
        RingFull = "completions refused, ring full",
        PortFull = "frames refused, port full",
        NetworkChanges = "changes of links, addresses, routes and neighbours",
        KernelsFrames = "frames that a kernel kept from its engine",
        ListenersRefused = "listeners that could not be steered",
        Rebuilds = "derived structures rebuilt",
        Datagrams = "datagrams sent",
        DatagramsCame = "datagrams that came",
        DatagramPieces = "pieces of datagrams sent",
        DatagramEnds = "ends of sockets of datagrams",
        Lanes = "lanes between sockets of datagrams",
        DatagramErrors = "errors about datagrams told",
        Messages = "messages, remote writes and reads posted",
        MessagesDone = "descriptors of messages done",
        MessageErrors = "descriptors that cannot be",
        MessagePrograms = "programs with messages killed",
        HostileRecords = "records of hostile hosts",
        FileCalls = "transfers of files, calls",
        FilesBeside = "transfers of files beside programs",
        FileBytes = "bytes of files that came",
        FileErrors = "transfers of files that failed",
    }
}

/// The counts of one or more runs, and the engines' own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tallies {
    counts: CounterSet<{ Tally::ALL.len() }>,
    engine: CounterSet<{ Counter::ALL.len() }>,
    pub seeds: u64,
}

impl Tallies {
    pub fn add(&mut self, tally: Tally) {
        self.counts.add(tally as usize, 1);
    }

    pub fn add_many(&mut self, tally: Tally, n: u64) {
        self.counts.add(tally as usize, n);
    }

    pub fn get(&self, tally: Tally) -> u64 {
        self.counts.get(tally as usize)
    }

    pub fn engine(&self, counter: Counter) -> u64 {
        self.engine.get(counter as usize)
    }

    pub fn add_engine(&mut self, engine: &toe_engine::Engine) {
        for counter in Counter::ALL {
            self.engine.add(*counter as usize, engine.view().counter(*counter));
        }
    }

    pub fn merge(&mut self, other: &Tallies) {
        for tally in Tally::ALL {
            self.counts.add(*tally as usize, other.get(*tally));
        }
        for counter in Counter::ALL {
            self.engine.add(*counter as usize, other.engine(*counter));
        }
        self.seeds += other.seeds;
    }
}
