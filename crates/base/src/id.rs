//! Names of things. Each is its own type, so that one cannot be passed where another is meant.

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($raw:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $raw);

        impl $name {
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id!(
    /// A session: one attached process. Also names the session's memory region.
    SessionId(u16)
);
id!(
    /// One of a session's queue sets.
    QueueSetId(u8)
);
id!(
    /// A link of the engine.
    PortId(u8)
);
id!(
    /// The place of a flow's record in the engine's flow table. Never leaves the engine.
    FlowIdx(u32)
);
id!(
    /// The number of an anchor: the kernel object whose last close ends a flow or listener.
    AnchorHandle(u32)
);
id!(
    /// A channel between two sessions. Counts up; a number is not given out again.
    ChannelId(u32)
);

id!(
    /// A lane between two UDP sockets. Counts up; a number is not given out again.
    LaneId(u32)
);

id!(
    /// What one session has of a UDP socket at the engine. Counts up; a number is not given out again.
    DatagramId(u32)
);

id!(
    /// A listener or connection of virtual interfaces. Counts up; a number in use is not given out again.
    ViaId(u32)
);

id!(
    /// A network namespace, by the number that the kernel gives it (Linux: SO_NETNS_COOKIE) and gives no other.
    NetNs(u64)
);

/// Who a session belongs to, as the kernel says it: what is charged to whom, and whose names are whose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cred {
    pub uid: u32,
    pub netns: NetNs,
}

impl Cred {
    /// A user of the namespace that [`NetNs::default`] names.
    pub const fn of_user(uid: u32) -> Cred {
        Cred { uid, netns: NetNs(0) }
    }
}

/// What a host calls one of its flows: the slot in the *session's own* flow table and how often that slot has been
/// reused. A host can name only its own slots, so ownership needs no second check; the generation makes an entry
/// that arrives after the slot was reused fall flat.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(u32);

/// What a host calls one of its listeners; built like a [`FlowId`], over the session's own listener table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub FlowId);

impl FlowId {
    /// Bits of the slot; the other 12 are the generation.
    pub const SLOT_BITS: u32 = 20;
    /// Largest number of slots that a session can have.
    pub const SLOTS_MAX: u32 = 1 << Self::SLOT_BITS;

    pub const fn new(slot: u32, generation: u16) -> FlowId {
        FlowId((slot & (Self::SLOTS_MAX - 1)) | ((generation as u32) << Self::SLOT_BITS))
    }

    pub const fn from_raw(raw: u32) -> FlowId {
        FlowId(raw)
    }

    pub const fn raw(self) -> u32 {
        self.0
    }

    pub const fn slot(self) -> usize {
        (self.0 & (Self::SLOTS_MAX - 1)) as usize
    }

    pub const fn generation(self) -> u16 {
        (self.0 >> Self::SLOT_BITS) as u16
    }
}

impl fmt::Debug for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot(), self.generation())
    }
}
