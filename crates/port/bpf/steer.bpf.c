/*
 * steer.bpf.c: which frames of an interface are the engine's; runs in the kernel for each frame that arrives
 * (XDP). All others go on to the kernel as if this program were not there.
 *
 * The maps are written by crates/port/src/xdp/steering.rs, which says what stands in them and when.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#define SEC(name) __attribute__((section(name), used))
#define ALWAYS_INLINE inline __attribute__((always_inline))
/* How the loader reads a map's properties out of the type information. */
#define UINT(name, value) int(*name)[value]
#define TYPE(name, value) value *name

static void *(*const map_lookup)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const redirect_map)(void *map, __u64 key, __u64 flags) = (void *)BPF_FUNC_redirect_map;
static struct bpf_sock *(*const skc_lookup_tcp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 tuple_size, __u64 netns,
                                                __u64 flags) = (void *)BPF_FUNC_skc_lookup_tcp;
static long (*const sk_release)(void *sock) = (void *)BPF_FUNC_sk_release;

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NET16(x) ((__u16)__builtin_bswap16(x))
#else
#define NET16(x) ((__u16)(x))
#endif

#define ETHERTYPE_IPV4 NET16(0x0800)
#define PROTOCOL_ICMP 1
#define PROTOCOL_TCP 6
/* Errors (RFC 792). */
#define ICMP_UNREACHABLE 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
/* More fragments, or not the first one. */
#define FRAGMENT NET16(0x3fff)
/* Of a TCP header's flags. */
#define SYN 0x02
#define ACK 0x10

/* What the engine has of a port number; steering.rs has the same numbers. */
#define RESERVED 1     /* the engine alone has the port */
#define LISTENS_ANY 2  /* a program of the engine listens on it at every address */
#define LISTENS_SOME 4 /* ... at addresses that stand in `listeners` */
#define FLOWS 8        /* connections of the engine that stand in `flows` use it */

struct eth {
    __u8 dst[6], src[6];
    __be16 type;
};

struct ipv4 {
    __u8 version_and_len, tos;
    __be16 total_len, id, fragment;
    __u8 ttl, protocol;
    __be16 checksum;
    __be32 src, dst;
};

/* What a TCP header begins with. */
struct tcp {
    __be16 src, dst;
    __be32 seq, ack;
    __u8 header_len, flags;
};

/* What an ICMP message begins with; an error goes on with the header of the datagram that it is about. */
struct icmp {
    __u8 type, code;
    __be16 checksum;
    __be32 rest;
};

/* Bytes as on the wire. */
struct endpoint {
    __be32 addr;
    __be16 port, zero;
};

struct flow {
    __be32 local, remote;
    __be16 local_port, remote_port;
};

/* Sockets of the engine, by receive queue. */
struct {
    UINT(type, BPF_MAP_TYPE_XSKMAP);
    UINT(max_entries, 64);
    TYPE(key, __u32);
    TYPE(value, __u32);
} sockets SEC(".maps");

/* By port number in the host's byte order. */
struct {
    UINT(type, BPF_MAP_TYPE_ARRAY);
    UINT(max_entries, 65536);
    TYPE(key, __u32);
    TYPE(value, __u32);
} ports SEC(".maps");

/* The host's addresses on the interface. */
struct {
    UINT(type, BPF_MAP_TYPE_HASH);
    UINT(max_entries, 1024);
    UINT(map_flags, BPF_F_NO_PREALLOC);
    TYPE(key, __be32);
    TYPE(value, __u8);
} addresses SEC(".maps");

struct {
    UINT(type, BPF_MAP_TYPE_HASH);
    UINT(max_entries, 65536);
    UINT(map_flags, BPF_F_NO_PREALLOC);
    TYPE(key, struct endpoint);
    TYPE(value, __u8);
} listeners SEC(".maps");

struct {
    UINT(type, BPF_MAP_TYPE_HASH);
    UINT(max_entries, 131072);
    UINT(map_flags, BPF_F_NO_PREALLOC);
    TYPE(key, struct flow);
    TYPE(value, __u8);
} flows SEC(".maps");

/* What the kernel has for a segment. */
enum { NOTHING, LISTENER, CONNECTION };

static ALWAYS_INLINE int kernels(struct xdp_md *ctx, const struct ipv4 *ip, const struct tcp *tcp) {
    struct bpf_sock_tuple tuple = {
        .ipv4 = {.saddr = ip->src, .daddr = ip->dst, .sport = tcp->src, .dport = tcp->dst},
    };
    struct bpf_sock *sock = skc_lookup_tcp(ctx, &tuple, sizeof tuple.ipv4, BPF_F_CURRENT_NETNS, 0);
    if (!sock)
        return NOTHING;
    int has = sock->state == BPF_TCP_LISTEN ? LISTENER : CONNECTION;
    sk_release(sock);
    return has;
}

static ALWAYS_INLINE int is_listened_at(__u32 use, const struct ipv4 *ip, const struct tcp *tcp) {
    if (use & LISTENS_ANY)
        return 1;
    struct endpoint local = {.addr = ip->dst, .port = tcp->dst};
    return use & LISTENS_SOME && map_lookup(&listeners, &local);
}

static ALWAYS_INLINE int is_engines(struct xdp_md *ctx, const struct ipv4 *ip, const struct tcp *tcp) {
    __u32 port = NET16(tcp->dst);
    const __u32 *use = map_lookup(&ports, &port);
    if (!use || !*use)
        return 0;
    /* What is only to be forwarded is nobody's here. */
    if (!map_lookup(&addresses, &ip->dst))
        return 0;
    if (*use & RESERVED)
        return 1;
    int is_listened = is_listened_at(*use, ip, tcp), is_flow = 0;
    if (*use & FLOWS) {
        struct flow flow = {ip->dst, ip->src, tcp->dst, tcp->src};
        is_flow = map_lookup(&flows, &flow) != 0;
    }
    if (!is_listened && !is_flow)
        return 0;
    int has = kernels(ctx, ip, tcp);
    /* A connection of the kernel's own, in whatever state, stays the kernel's: it may be older than the engine's listener. */
    if (has == CONNECTION)
        return 0;
    /* What begins a connection at a listener of the kernel's is not for whoever connects from its port. */
    return is_listened || has != LISTENER || (tcp->flags & (SYN | ACK)) != SYN;
}

/* An error about a segment that the engine has sent: whoever would get the answer to that gets the error. */
static ALWAYS_INLINE int is_about_engines(struct xdp_md *ctx, const struct ipv4 *ip, const void *end) {
    const struct icmp *icmp = (const void *)(ip + 1);
    const struct ipv4 *quoted = (const void *)(icmp + 1);
    const struct tcp *sent = (const void *)(quoted + 1);
    /* The ports are quoted in any case (RFC 792). */
    if ((const void *)&sent->seq > end)
        return 0;
    if (icmp->type != ICMP_UNREACHABLE && icmp->type != ICMP_TIME_EXCEEDED && icmp->type != ICMP_PARAMETER_PROBLEM)
        return 0;
    if (quoted->version_and_len != 0x45 || quoted->protocol != PROTOCOL_TCP || quoted->src != ip->dst)
        return 0;
    struct ipv4 back = {.src = quoted->dst, .dst = quoted->src};
    struct tcp answer = {.src = sent->dst, .dst = sent->src, .flags = ACK};
    return is_engines(ctx, &back, &answer);
}

SEC("xdp")
int steer(struct xdp_md *ctx) {
    const void *data = (const void *)(long)ctx->data;
    const void *end = (const void *)(long)ctx->data_end;
    const struct eth *eth = data;
    const struct ipv4 *ip = (const void *)(eth + 1);
    if ((const void *)(ip + 1) > end || eth->type != ETHERTYPE_IPV4)
        return XDP_PASS;
    /* A group's frame is the kernel's to judge. A header with options is as well: the engine takes none. */
    if (eth->dst[0] & 1 || ip->version_and_len != 0x45 || ip->fragment & FRAGMENT)
        return XDP_PASS;
    if (ip->protocol == PROTOCOL_ICMP) {
        if (!is_about_engines(ctx, ip, end))
            return XDP_PASS;
    } else {
        const struct tcp *tcp = (const void *)(ip + 1);
        if (ip->protocol != PROTOCOL_TCP || (const void *)(tcp + 1) > end || !is_engines(ctx, ip, tcp))
            return XDP_PASS;
    }
    /* The flag says what is done while no socket serves this queue: the kernel would answer with RST. */
    return redirect_map(&sockets, ctx->rx_queue_index, XDP_DROP);
}

/* No function is called that asks for another. */
char program_license[] SEC("license") = "MIT";
