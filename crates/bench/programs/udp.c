/* Datagrams: a server that counts what comes, answers what asks for an answer and floods who orders it, a flood either way, and request
 * and reply. What came and what was sent the server says over a TCP connection, on which nothing is lost. All calls wait. */
#include "load.h"
#include "udp.h"

#include <errno.h>
#include <netinet/udp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum {
    BATCH_MAX = 64,
    /* The first byte of a datagram. */
    ASKS = 'A',
    TELLS = 'T',
};

/* A count that does not change for so long is the last. */
#define SETTLED_NS UINT64_C(20000000)
/* Who is so far behind its rate does not catch up. */
#define BEHIND_NS UINT64_C(1000000)

static _Atomic uint64_t came, sent;

/* What one thread sends from or receives into. */
struct batch {
    uint8_t buffers[BATCH_MAX][BUFFER];
    struct sockaddr_in names[BATCH_MAX];
    struct iovec vectors[BATCH_MAX];
    struct mmsghdr messages[BATCH_MAX];
};

static struct batch *make_batch(uint32_t count, size_t size, struct sockaddr_in *to)
{
    struct batch *batch = allocate(1, sizeof *batch);
    for (uint32_t i = 0; i < count; i++) {
        if (to != NULL)
            memset(batch->buffers[i], TELLS, size);
        batch->vectors[i] = (struct iovec){.iov_base = batch->buffers[i], .iov_len = size};
        batch->messages[i].msg_hdr = (struct msghdr){.msg_name = to != NULL ? to : &batch->names[i], .msg_namelen = sizeof *to,
                                                     .msg_iov = &batch->vectors[i], .msg_iovlen = 1};
    }
    return batch;
}

static void set_udp(int fd, int option, int value)
{
    if (setsockopt(fd, SOL_UDP, option, &value, sizeof value) < 0)
        die_errno("setting an option of a socket for datagrams");
}

static int datagram_socket(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die_errno("a socket for datagrams");
    return fd;
}

/* Receiving. */

struct receiver {
    int fd;
    const struct options *options;
    struct batch *batch;
};

static void answer(int fd, const uint8_t *datagram, size_t count, const struct sockaddr_in *from)
{
    if (count > 0 && datagram[0] == ASKS && sendto(fd, datagram, count, 0, (const void *)from, sizeof *from) < 0)
        die_errno("sending a datagram");
}

static int receive_batch(struct receiver *r)
{
    struct batch *batch = r->batch;
    for (uint32_t i = 0; i < r->options->batch; i++)
        batch->messages[i].msg_hdr.msg_namelen = sizeof batch->names[i];
    int count = recvmmsg(r->fd, batch->messages, r->options->batch, MSG_WAITFORONE, NULL);
    for (int i = 0; i < count; i++)
        answer(r->fd, batch->buffers[i], batch->messages[i].msg_len, &batch->names[i]);
    return count;
}

/* What the socket has joined counts as what it was. */
static int receive_joined(struct receiver *r)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct msghdr *message = &r->batch->messages[0].msg_hdr;
    message->msg_namelen = sizeof r->batch->names[0];
    message->msg_control = control;
    message->msg_controllen = sizeof control;
    ssize_t length = recvmsg(r->fd, message, 0);
    if (length < 0)
        return -1;
    int size = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c))
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO)
            memcpy(&size, CMSG_DATA(c), sizeof size);
    return size > 0 ? (int)((length + size - 1) / size) : 1;
}

static int receive_one(struct receiver *r)
{
    struct batch *batch = r->batch;
    socklen_t length = sizeof batch->names[0];
    ssize_t count = recvfrom(r->fd, batch->buffers[0], BUFFER, 0, (void *)&batch->names[0], &length);
    if (count >= 0)
        answer(r->fd, batch->buffers[0], (size_t)count, &batch->names[0]);
    return count < 0 ? -1 : 1;
}

static void work(uint64_t us)
{
    if (us > 0)
        for (uint64_t end = now_ns() + us * 1000; now_ns() < end;)
            ;
}

static void *receive(void *of)
{
    struct receiver *r = of;
    const struct options *options = r->options;
    for (;;) {
        int count = options->segments > 1 ? receive_joined(r) : options->batch > 1 ? receive_batch(r) : receive_one(r);
        /* What nobody listens for any more, says Linux. */
        if (count < 0 && errno != ECONNREFUSED && errno != EINTR)
            die_errno("receiving a datagram");
        if (count > 0) {
            work((uint64_t)options->work_us * (uint64_t)count);
            atomic_fetch_add_explicit(&came, (uint64_t)count, memory_order_relaxed);
        }
    }
    return NULL;
}

static void start(void *(*run)(void *), void *of)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, of) != 0 || pthread_detach(thread) != 0)
        die("no thread");
}

static void start_receiver(int fd, const struct options *options)
{
    static struct receiver receiver;
    receiver = (struct receiver){.fd = fd, .options = options, .batch = make_batch(options->batch, BUFFER, NULL)};
    if (options->segments > 1)
        set_udp(fd, UDP_GRO, 1);
    start(receive, &receiver);
}

/* Sending. */

struct sender {
    int fd;
    uint32_t size, batch, segments, rate;
    struct sockaddr_in to;
    struct batch *bytes;
    /* When the next datagrams go, at a rate. */
    uint64_t due;
};

static struct sender *make_sender(int fd, const struct options *options, const struct sockaddr_in *to)
{
    struct sender *s = allocate(1, sizeof *s);
    *s = (struct sender){.fd = fd, .size = options->size, .batch = options->batch, .segments = options->segments,
                         .rate = options->rate, .to = *to};
    if (s->segments > 1)
        set_udp(fd, UDP_SEGMENT, (int)s->size);
    s->bytes = make_batch(s->batch, (size_t)s->size * s->segments, &s->to);
    return s;
}

static uint32_t send_some(struct sender *s)
{
    if (s->batch > 1) {
        int count = sendmmsg(s->fd, s->bytes->messages, s->batch, 0);
        if (count < 0)
            die_errno("sending datagrams");
        return (uint32_t)count;
    }
    if (sendto(s->fd, s->bytes->buffers[0], (size_t)s->size * s->segments, 0, (const void *)&s->to, sizeof s->to) < 0)
        die_errno("sending a datagram");
    return s->segments;
}

static void send_at_rate(struct sender *s)
{
    uint64_t now = now_ns();
    if (now < s->due)
        return;
    if (now - s->due > BEHIND_NS)
        s->due = now;
    uint32_t count = send_some(s);
    s->due += (uint64_t)count * UINT64_C(1000000000) / s->rate;
    atomic_fetch_add_explicit(&sent, count, memory_order_relaxed);
}

void udp_send_until(struct sender *s, uint64_t end)
{
    while (now_ns() < end) {
        if (s->rate > 0) {
            send_at_rate(s);
            continue;
        }
        /* The clock is looked at now and then only. */
        uint32_t count = 0;
        while (count < BATCH_MAX)
            count += send_some(s);
        atomic_fetch_add_explicit(&sent, count, memory_order_relaxed);
    }
}

void udp_set_rate(struct sender *s, uint32_t rate)
{
    s->rate = rate;
}

/* The order for a flood, and the counts, go over a TCP connection. */

enum { COUNTS = 1, FLOOD = 2 };

struct order {
    uint32_t kind, size, batch, segments, rate;
    uint16_t port, unused;
    uint64_t ns;
};

struct flood {
    struct options options;
    struct sockaddr_in to;
    int fd;
    uint64_t ns;
};

static void *flood_back(void *of)
{
    struct flood *flood = of;
    udp_send_until(make_sender(flood->fd, &flood->options, &flood->to), now_ns() + flood->ns);
    return NULL;
}

static void obey(int fd, int datagrams, const struct order *order)
{
    if (order->kind == COUNTS) {
        struct udp_counts counts = {.came = atomic_load(&came), .sent = atomic_load(&sent)};
        if (write(fd, &counts, sizeof counts) != sizeof counts)
            die_errno("saying how many datagrams came");
        return;
    }
    struct flood *flood = allocate(1, sizeof *flood);
    socklen_t length = sizeof flood->to;
    if (getpeername(fd, (void *)&flood->to, &length) < 0)
        die_errno("who orders");
    flood->to.sin_port = order->port;
    flood->options = (struct options){.size = order->size, .batch = order->batch, .segments = order->segments, .rate = order->rate};
    flood->fd = datagrams;
    flood->ns = order->ns;
    start(flood_back, flood);
}

int udp_serve_run(const struct options *options)
{
    int fd = datagram_socket();
    if (bind(fd, (const void *)&options->listen, sizeof options->listen) < 0)
        die_errno("binding");
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0
        || bind(listener, (const void *)&options->listen, sizeof options->listen) < 0 || listen(listener, 8) < 0)
        die_errno("listening");
    start_receiver(fd, options);
    if (options->victim > 0) {
        struct sockaddr_in at = options->listen;
        at.sin_port = htons((uint16_t)(ntohs(at.sin_port) + VICTIM_PORT));
        if (bind(datagram_socket(), (const void *)&at, sizeof at) < 0)
            die_errno("binding the socket that nobody reads");
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client < 0)
            die_errno("accepting");
        struct order order;
        while (recv(client, &order, sizeof order, MSG_WAITALL) == sizeof order)
            obey(client, fd, &order);
        close(client);
    }
}

int udp_control(const struct options *options)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const void *)&options->connect, sizeof options->connect) < 0)
        die_errno("connecting");
    return fd;
}

struct udp_counts udp_ask(int fd)
{
    struct order order = {.kind = COUNTS};
    struct udp_counts counts;
    if (write(fd, &order, sizeof order) != sizeof order || recv(fd, &counts, sizeof counts, MSG_WAITALL) != sizeof counts)
        die_errno("asking how many datagrams came");
    return counts;
}

/* What came when no more comes. */
static uint64_t ask_settled(int fd)
{
    uint64_t before = udp_ask(fd).came;
    for (;;) {
        usleep(SETTLED_NS / 1000);
        uint64_t now = udp_ask(fd).came;
        if (now == before)
            return now;
        before = now;
    }
}

struct sender *udp_sender(const struct options *options)
{
    return make_sender(datagram_socket(), options, &options->connect);
}

static void sleep_until(uint64_t end)
{
    for (uint64_t now = now_ns(); now < end; now = now_ns())
        usleep((useconds_t)((end - now) / 1000 + 1));
}

/* The server floods; what came is counted here. */
static int receive_flood(const struct options *options)
{
    int counts = udp_control(options), fd = datagram_socket();
    struct sockaddr_in own;
    socklen_t length = sizeof own;
    /* The address by which the server is reached, and a port. */
    if (getsockname(counts, (void *)&own, &length) < 0)
        die_errno("the own address");
    own.sin_port = 0;
    if (bind(fd, (const void *)&own, sizeof own) < 0 || getsockname(fd, (void *)&own, &length) < 0)
        die_errno("binding");
    start_receiver(fd, options);
    uint64_t warm = seconds_ns(options->warmup), measured = seconds_ns(options->seconds);
    struct order order = {.kind = FLOOD, .size = options->size, .batch = options->batch, .segments = options->segments,
                          .rate = options->rate, .port = own.sin_port, .ns = warm + measured + 10 * SETTLED_NS};
    if (write(counts, &order, sizeof order) != sizeof order)
        die_errno("ordering a flood");
    uint64_t begin = now_ns() + warm;
    sleep_until(begin);
    uint64_t sent_before = udp_ask(counts).sent, before = atomic_load(&came), now = now_ns();
    report_begin(now);
    sleep_until(now + measured);
    uint64_t here = atomic_load(&came) - before;
    report_end(now_ns());
    report_datagrams("udp-flood", udp_ask(counts).sent - sent_before, here, 0);
    return 0;
}

int udp_flood_run(const struct options *options)
{
    if (options->receive)
        return receive_flood(options);
    int counts = udp_control(options);
    struct sender *s = udp_sender(options);
    attack_begin(options);
    udp_send_until(s, now_ns() + seconds_ns(options->warmup));
    uint64_t before = ask_settled(counts), sent_before = atomic_load(&sent), now = now_ns();
    report_begin(now);
    udp_send_until(s, now + seconds_ns(options->seconds));
    report_end(now_ns());
    report_datagrams("udp-flood", atomic_load(&sent) - sent_before, ask_settled(counts) - before, 0);
    return 0;
}

uint64_t udp_sent(void)
{
    return atomic_load(&sent);
}

int udp_rr_run(const struct options *options)
{
    int fd = datagram_socket();
    struct batch *batch = make_batch(2, options->size, NULL);
    uint8_t *out = batch->buffers[0], *in = batch->buffers[1];
    struct timeval patience = {.tv_sec = 2};
    if (connect(fd, (const void *)&options->connect, sizeof options->connect) < 0
        || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) < 0)
        die_errno("connecting");
    uint64_t now = now_ns(), begin = now + seconds_ns(options->warmup), end = begin + seconds_ns(options->seconds);
    bool measuring = false;
    for (uint64_t number = 0; now < end; number++) {
        if (!measuring && now >= begin) {
            measuring = true;
            report_begin(now);
        }
        uint64_t asked = now_ns(), told = 0;
        out[0] = ASKS;
        memcpy(out + 1, &number, sizeof number);
        if (send(fd, out, options->size, 0) < 0 || recv(fd, in, BUFFER, 0) != (ssize_t)options->size)
            die_errno("request and reply");
        memcpy(&told, in + 1, sizeof told);
        if (told != number)
            die("the reply to another request");
        now = now_ns();
        if (measuring)
            histogram_record(now - asked);
    }
    report_end(now);
    report_requests("udp-rr", options->size);
    return 0;
}
