//! The options that the engine answers differently, and why that is so.

const REFUSED: &str =
    "differs: where it would begin to have an effect it is ENOPROTOOPT, because engines do not do that";
const ACCEPTED: &str =
    "differs: of an accepted connection it is as of any other (Linux: what the SYN came by)";

/// Options by their names, several with spaces between, and why they differ.
pub const KNOWN: &[(&str, &str)] = &[
    (
        "SO_TIMESTAMP SO_TIMESTAMPNS SO_TIMESTAMPING SO_TIMESTAMP_NEW SO_TIMESTAMPNS_NEW SO_TIMESTAMPING_NEW SO_PEEK_OFF \
         SO_TXTIME SO_BINDTOIFINDEX TCP_TX_DELAY IP_OPTIONS IP_TRANSPARENT IP_MINTTL IPV6_HOPOPTS \
         IPV6_RTHDRDSTOPTS IPV6_DSTOPTS IPV6_MINHOPCOUNT IPV6_TRANSPARENT",
        REFUSED,
    ),
    ("SO_RCVLOWAT", "differs: bounded by half of the engine's own largest window (2 MiB)"),
    ("SO_PEERNAME", "differs: ENOTCONN once the connection is over"),
    ("TCP_MAXSEG IP_MTU IPV6_MTU", "differs: what the engine's link carries"),
    ("TCP_QUICKACK", "differs: accepted, changes nothing, and read as it was set"),
    (
        "TCP_CONGESTION TCP_CC_INFO",
        "differs: of the engine's algorithms, and the one of its configuration at first",
    ),
    ("TCP_FASTOPEN", "differs: of a closed socket it is not bounded by net.core.somaxconn"),
    ("IP_MULTICAST_TTL IPV6_MULTICAST_HOPS IPV6_MULTICAST_IF", ACCEPTED),
    ("IPV6_PATHMTU", "differs: ENOTCONN; IPV6_MTU tells it"),
];

/// Whether an entry's names have this one.
pub fn is_of(names: &str, name: &str) -> bool {
    names.split_whitespace().any(|known| known == name)
}

pub fn why(name: &str) -> Option<&'static str> {
    KNOWN.iter().find(|(names, _)| is_of(names, name)).map(|(_, why)| *why)
}
