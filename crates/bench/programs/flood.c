/* SYN flood: requests for connections from addresses that do not exist, at a fixed rate, through a raw socket (raw(7)).
 * For namespaces of a test alone; needs CAP_NET_RAW. */
#include "load.h"

#include <errno.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    /* Packets of one call. */
    BATCH = 64,
    /* What a SYN of Linux carries: MSS, SACK permitted, timestamps, window scale. */
    TCP_OPTIONS = 20,
};

/* 198.18.0.0/15 is for measurements (RFC 2544 appendix C.2.2): nobody is there. */
static const uint32_t SOURCES = 0xc6120000, SOURCE_BITS = 0x0001ffff;

struct packet {
    struct iphdr ip;
    struct tcphdr tcp;
    uint8_t options[TCP_OPTIONS];
};

_Static_assert(sizeof(struct packet) == 60, "headers without padding");

static struct packet packets[BATCH];
static struct iovec vectors[BATCH];
static struct mmsghdr messages[BATCH];
static uint64_t state = UINT64_C(0x9e3779b97f4a7c15);

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint32_t sum_words(uint32_t sum, const void *from, size_t count)
{
    const uint8_t *bytes = from;
    for (size_t i = 0; i < count; i += 2)
        sum += (uint32_t)bytes[i] << 8 | bytes[i + 1];
    return sum;
}

static uint16_t folded(uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return htons((uint16_t)~sum);
}

static void prepare(const struct sockaddr_in *target)
{
    static const uint8_t options[TCP_OPTIONS] = {2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7};
    for (int i = 0; i < BATCH; i++) {
        struct packet *p = &packets[i];
        p->ip = (struct iphdr){.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP};
        p->ip.tot_len = htons(sizeof *p);
        p->ip.daddr = target->sin_addr.s_addr;
        p->tcp = (struct tcphdr){.dest = target->sin_port, .doff = (sizeof p->tcp + TCP_OPTIONS) / 4, .syn = 1};
        p->tcp.window = htons(64240);
        memcpy(p->options, options, sizeof options);
        vectors[i] = (struct iovec){.iov_base = p, .iov_len = sizeof *p};
        messages[i].msg_hdr = (struct msghdr){.msg_name = (void *)target, .msg_namelen = sizeof *target,
                                              .msg_iov = &vectors[i], .msg_iovlen = 1};
    }
}

/* Another source and another sequence number. The kernel fills in the IP header's checksum. */
static void renew(struct packet *p)
{
    uint64_t random = next_random();
    p->ip.saddr = htonl(SOURCES | ((uint32_t)random & SOURCE_BITS));
    p->tcp.source = htons((uint16_t)(1024 + (random >> 20) % 64000));
    p->tcp.seq = (uint32_t)(next_random() >> 16);
    p->tcp.check = 0;
    uint32_t sum = sum_words(IPPROTO_TCP + sizeof p->tcp + TCP_OPTIONS, &p->ip.saddr, 8);
    p->tcp.check = folded(sum_words(sum, &p->tcp, sizeof p->tcp + TCP_OPTIONS));
}

/* Sends up to `count` packets; returns how many left. */
static int send_batch(int fd, int count)
{
    for (int i = 0; i < count; i++)
        renew(&packets[i]);
    int sent = sendmmsg(fd, messages, (unsigned)count, 0);
    if (sent < 0 && errno != ENOBUFS && errno != EAGAIN && errno != EINTR)
        die_errno("sending a SYN");
    return sent < 0 ? 0 : sent;
}

int flood_run(const struct options *options)
{
    int fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
    if (fd < 0)
        die_errno("a raw socket (run as root)");
    state ^= now_ns();
    prepare(&options->connect);
    uint64_t began = now_ns(), end = began + seconds_ns(options->seconds), sent = 0;
    report_begin(began);
    for (uint64_t now = began; now < end; now = now_ns()) {
        uint64_t due = (now - began) / 1000 * options->rate / 1000000;
        if (due <= sent) {
            usleep(200);
            continue;
        }
        uint64_t missing = due - sent;
        sent += (uint64_t)send_batch(fd, missing < BATCH ? (int)missing : BATCH);
    }
    report_end(now_ns());
    report_flood(sent);
    close(fd);
    return 0;
}
