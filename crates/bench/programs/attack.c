/* What a stranger on the link sends beside a well-behaved flow: pieces of datagrams that are never complete, and datagrams from addresses
 * that do not exist, to ports where nobody is and to a socket that nobody reads. By a raw socket (raw(7)) and a process of its own.
 * For namespaces of a test alone; needs CAP_NET_RAW. */
#include "load.h"
#include "udp.h"

#include <errno.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 64, TEXT = 32, RATE = 100000 };

/* 198.18.0.0/15 is for measurements (RFC 2544 appendix C.2.2): nobody is there. */
static const uint32_t SOURCES = 0xc6120000, SOURCE_BITS = 0x0001ffff;

struct packet {
    struct iphdr ip;
    struct udphdr udp;
    uint8_t text[TEXT];
};

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

/* Without a checksum, which UDP over IPv4 allows. */
static void renew(struct packet *p, enum beside kind, uint16_t port)
{
    uint64_t random = next_random();
    p->ip.saddr = htonl(SOURCES | ((uint32_t)random & SOURCE_BITS));
    p->ip.id = (uint16_t)(random >> 32);
    p->udp.source = htons((uint16_t)(1024 + (random >> 20) % 64000));
    p->udp.dest = kind == BESIDE_SOCKET ? htons(port) : htons((uint16_t)(20000 + (random >> 48) % 20000));
    if (kind != BESIDE_FRAGMENTS)
        return;
    /* The first pieces of some, second pieces that overlap others', tiny ones: the end never comes. */
    static const uint16_t offsets[] = {0, 0, 1, 2, 5, 100};
    p->ip.frag_off = htons((uint16_t)(0x2000 | offsets[random >> 40 & 3 ? (random >> 42) % 6 : 0]));
    if ((random >> 50 & 3) == 0)
        p->ip.id = htons((uint16_t)(random >> 32 & 63));
}

static void prepare(const struct sockaddr_in *target)
{
    for (int i = 0; i < BATCH; i++) {
        struct packet *p = &packets[i];
        p->ip = (struct iphdr){.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP};
        p->ip.tot_len = htons(sizeof *p);
        p->ip.daddr = target->sin_addr.s_addr;
        p->udp.len = htons(sizeof p->udp + TEXT);
        vectors[i] = (struct iovec){.iov_base = p, .iov_len = sizeof *p};
        messages[i].msg_hdr = (struct msghdr){.msg_name = (void *)target, .msg_namelen = sizeof *target, .msg_iov = &vectors[i],
                                              .msg_iovlen = 1};
    }
}

static _Noreturn void attack(const struct options *options)
{
    int fd = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
    if (fd < 0)
        die_errno("a raw socket (run as root)");
    state ^= now_ns();
    prepare(&options->connect);
    uint16_t port = (uint16_t)(ntohs(options->connect.sin_port) + VICTIM_PORT);
    uint64_t began = now_ns(), sent = 0;
    for (;;) {
        uint64_t due = (now_ns() - began) / 1000 * RATE / 1000000;
        if (due < sent + BATCH) {
            usleep(200);
            continue;
        }
        for (int i = 0; i < BATCH; i++)
            renew(&packets[i], options->beside, port);
        int count = sendmmsg(fd, messages, BATCH, 0);
        if (count < 0 && errno != ENOBUFS && errno != EAGAIN && errno != EINTR)
            die_errno("sending beside");
        sent += BATCH;
    }
}

void attack_begin(const struct options *options)
{
    if (options->beside == BESIDE_NOTHING)
        return;
    pid_t child = fork();
    if (child < 0)
        die_errno("another process");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        attack(options);
    }
}
