/* Datagrams: a server that counts what comes and answers what asks for an answer, a flood, and request and reply. How many
 * datagrams came the server says over a TCP connection, on which none is lost. All calls wait. */
#include "load.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum {
    BATCH_MAX = 64,
    /* The first octet of a datagram. */
    ASKS = 'A',
    TELLS = 'T',
};

static _Atomic uint64_t came;
static uint8_t buffers[BATCH_MAX][BUFFER];
static struct sockaddr_in names[BATCH_MAX];
static struct iovec vectors[BATCH_MAX];
static struct mmsghdr messages[BATCH_MAX];

static void prepare(uint32_t batch, size_t size, struct sockaddr_in *to)
{
    for (uint32_t i = 0; i < batch; i++) {
        vectors[i] = (struct iovec){.iov_base = buffers[i], .iov_len = size};
        messages[i].msg_hdr = (struct msghdr){.msg_name = to != NULL ? to : &names[i], .msg_namelen = sizeof *to,
                                              .msg_iov = &vectors[i], .msg_iovlen = 1};
    }
}

static void answer(int fd, const uint8_t *datagram, size_t count, const struct sockaddr_in *from)
{
    if (count > 0 && datagram[0] == ASKS && sendto(fd, datagram, count, 0, (const void *)from, sizeof *from) < 0)
        die_errno("sending a datagram");
}

static int receive_batch(int fd, uint32_t batch)
{
    for (uint32_t i = 0; i < batch; i++)
        messages[i].msg_hdr.msg_namelen = sizeof names[i];
    int count = recvmmsg(fd, messages, batch, MSG_WAITFORONE, NULL);
    for (int i = 0; i < count; i++)
        answer(fd, buffers[i], messages[i].msg_len, &names[i]);
    return count;
}

static int receive_one(int fd)
{
    socklen_t length = sizeof names[0];
    ssize_t count = recvfrom(fd, buffers[0], BUFFER, 0, (void *)&names[0], &length);
    if (count >= 0)
        answer(fd, buffers[0], (size_t)count, &names[0]);
    return count < 0 ? -1 : 1;
}

struct receiver {
    int fd;
    uint32_t batch;
};

static void *receive(void *of)
{
    const struct receiver *receiver = of;
    for (;;) {
        int count = receiver->batch > 1 ? receive_batch(receiver->fd, receiver->batch) : receive_one(receiver->fd);
        /* What nobody listens for any more, says Linux. */
        if (count < 0 && errno != ECONNREFUSED && errno != EINTR)
            die_errno("receiving a datagram");
        if (count > 0)
            atomic_fetch_add_explicit(&came, (uint64_t)count, memory_order_relaxed);
    }
    return NULL;
}

static int datagram_socket(void)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die_errno("a socket for datagrams");
    return fd;
}

int udp_serve_run(const struct options *options)
{
    static struct receiver receiver;
    receiver = (struct receiver){.fd = datagram_socket(), .batch = options->batch};
    if (bind(receiver.fd, (const void *)&options->listen, sizeof options->listen) < 0)
        die_errno("binding");
    prepare(options->batch, BUFFER, NULL);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0
        || bind(listener, (const void *)&options->listen, sizeof options->listen) < 0 || listen(listener, 8) < 0)
        die_errno("listening");
    pthread_t thread;
    if (pthread_create(&thread, NULL, receive, &receiver) != 0)
        die("no thread");
    puts("ready");
    fflush(stdout);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            die_errno("accepting");
        uint8_t octet;
        while (read(fd, &octet, 1) == 1) {
            uint64_t count = atomic_load(&came);
            if (write(fd, &count, sizeof count) != sizeof count)
                break;
        }
        close(fd);
    }
}

static int control(const struct options *options)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const void *)&options->connect, sizeof options->connect) < 0)
        die_errno("connecting");
    return fd;
}

static uint64_t ask_count(int fd)
{
    uint64_t count;
    if (write(fd, "?", 1) != 1 || recv(fd, &count, sizeof count, MSG_WAITALL) != sizeof count)
        die_errno("asking how many datagrams came");
    return count;
}

/* Sends until then; returns how many were sent. */
static uint64_t flood_until(int fd, const struct options *options, uint64_t end)
{
    uint64_t sent = 0;
    while (now_ns() < end)
        for (uint32_t n = 0; n < BATCH_MAX; n += options->batch) {
            int count = options->batch > 1 ? sendmmsg(fd, messages, options->batch, 0)
                : sendto(fd, buffers[0], options->size, 0, (const void *)&options->connect, sizeof options->connect) < 0
                ? -1 : 1;
            if (count < 0)
                die_errno("sending a datagram");
            sent += (uint64_t)count;
        }
    return sent;
}

int udp_flood_run(const struct options *options)
{
    int counts = control(options), fd = datagram_socket();
    struct sockaddr_in to = options->connect;
    prepare(options->batch, options->size, &to);
    for (uint32_t i = 0; i < options->batch; i++)
        buffers[i][0] = TELLS;
    flood_until(fd, options, now_ns() + seconds_ns(options->warmup));
    uint64_t before = ask_count(counts), now = now_ns();
    report_begin(now);
    uint64_t sent = flood_until(fd, options, now + seconds_ns(options->seconds));
    report_end(now_ns());
    report_datagrams(sent, ask_count(counts) - before);
    return 0;
}

int udp_rr_run(const struct options *options)
{
    int fd = datagram_socket();
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
        buffers[0][0] = ASKS;
        memcpy(buffers[0] + 1, &number, sizeof number);
        if (send(fd, buffers[0], options->size, 0) < 0 || recv(fd, buffers[1], BUFFER, 0) != (ssize_t)options->size)
            die_errno("request and reply");
        memcpy(&told, buffers[1] + 1, sizeof told);
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
