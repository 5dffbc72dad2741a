/* The server of all modes. */
#include "load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A connection. `kept` and `out` are there only while something waits in them. */
struct connection {
    int fd;
    uint32_t size;
    /* Bytes that a sink received or a source sent. */
    uint64_t count;
    /* The first part of a header or a message whose rest has not come. */
    uint8_t *kept;
    /* What the peer has not taken yet. */
    uint8_t *out;
    uint32_t kept_length, out_start, out_end;
    /* 0 until the header is complete. */
    uint8_t mode;
    bool altered, closes_when_sent;
};

_Static_assert(sizeof(struct connection) <= 64, "an idle connection costs 64 bytes at most");

/* What becomes of a connection after a step. */
enum verdict { GO_ON, CLOSE };

static int epoll;
static uint64_t answered;
static uint8_t input[BUFFER], replies[BUFFER];

/* The connection with this pointer's word in the epoll. */
static uint64_t word(struct connection *c)
{
    return (uintptr_t)c;
}

static void watch(struct connection *c, uint32_t events)
{
    net_watch(epoll, EPOLL_CTL_MOD, c->fd, events, word(c));
}

static void finish(struct connection *c)
{
    close(c->fd);
    free(c->kept);
    free(c->out);
    free(c);
}

/* Sends `count` bytes; keeps what does not leave, and reads no more until it has. */
static enum verdict send_or_keep(struct connection *c, const void *from, size_t count)
{
    ssize_t sent = net_send(c->fd, from, count);
    if (sent < 0 && !net_is_blocked())
        return CLOSE;
    size_t left = count - (sent < 0 ? 0 : (size_t)sent);
    if (left == 0)
        return c->closes_when_sent ? CLOSE : GO_ON;
    c->out = allocate(left, 1);
    memcpy(c->out, (const uint8_t *)from + (count - left), left);
    c->out_start = 0;
    c->out_end = (uint32_t)left;
    watch(c, EPOLLOUT);
    return GO_ON;
}

static enum verdict send_kept(struct connection *c)
{
    ssize_t sent = net_send(c->fd, c->out + c->out_start, c->out_end - c->out_start);
    if (sent < 0)
        return net_is_blocked() ? GO_ON : CLOSE;
    c->out_start += (uint32_t)sent;
    if (c->out_start < c->out_end)
        return GO_ON;
    free(c->out);
    c->out = NULL;
    if (c->closes_when_sent)
        return CLOSE;
    watch(c, EPOLLIN);
    return GO_ON;
}

static enum verdict stream_out(struct connection *c)
{
    for (int i = 0; i < STREAM_TURN; i++) {
        uint64_t left = c->size == 0 ? BUFFER : c->size - c->count;
        size_t part = left < BUFFER ? (size_t)left : BUFFER;
        ssize_t sent = net_send(c->fd, payload_at(c->count), part);
        if (sent < 0)
            return net_is_blocked() ? GO_ON : CLOSE;
        c->count += (uint64_t)sent;
        if (c->size != 0 && c->count == c->size) {
            watch(c, EPOLLIN);
            break;
        }
        if ((size_t)sent < part)
            break;
    }
    return GO_ON;
}

static void stream_in(struct connection *c, const uint8_t *bytes, size_t count)
{
    if (count > 0 && !payload_is_right(bytes, count, c->count))
        c->altered = true;
    c->count += count;
}

static void keep(struct connection *c, const uint8_t *bytes, size_t count)
{
    if (count == 0)
        return;
    c->kept = allocate(count, 1);
    memcpy(c->kept, bytes, count);
    c->kept_length = (uint32_t)count;
}

/* Bytes of `mode` rr: answers all complete messages with one write, keeps what is left over. */
static enum verdict answer(struct connection *c, const uint8_t *bytes, size_t count)
{
    size_t complete = handler_answer(bytes, count, c->size, replies, &answered);
    keep(c, bytes + complete, count - complete);
    return complete == 0 ? GO_ON : send_or_keep(c, replies, complete);
}

/* The bytes that follow the header. */
static enum verdict take(struct connection *c, const uint8_t *bytes, size_t count)
{
    switch (c->mode) {
    case MODE_RR:
        return answer(c, bytes, count);
    case MODE_SINK:
        stream_in(c, bytes, count);
        return GO_ON;
    default:
        return GO_ON;
    }
}

/* The first bytes of a connection. */
static enum verdict begin(struct connection *c, const uint8_t *bytes, size_t count)
{
    struct header header;
    if (count < sizeof header) {
        keep(c, bytes, count);
        return GO_ON;
    }
    memcpy(&header, bytes, sizeof header);
    bool size_fits = header.mode != MODE_RR || (header.size >= 1 && header.size <= BUFFER);
    if (header.magic != MAGIC || header.mode < MODE_RR || header.mode > MODE_SOURCE || !size_fits) {
        fprintf(stderr, "toe-load serve: a connection does not begin as one of toe-load does; it is closed\n");
        return CLOSE;
    }
    c->mode = header.mode;
    c->size = header.size;
    if (c->mode == MODE_SOURCE)
        watch(c, EPOLLIN | EPOLLOUT);
    return take(c, bytes + sizeof header, count - sizeof header);
}

/* The peer sends no more. */
static enum verdict peer_done(struct connection *c)
{
    if (c->mode != MODE_SINK)
        return CLOSE;
    uint64_t count = c->altered ? SINK_ALTERED : c->count;
    c->closes_when_sent = true;
    return send_or_keep(c, &count, sizeof count);
}

/* One read, behind what was kept of the last. `*filled` says that more may be there. */
static enum verdict read_once(struct connection *c, bool *filled)
{
    size_t kept = c->kept_length;
    ssize_t n = net_receive(c->fd, input + kept, sizeof input - kept);
    *filled = n == (ssize_t)(sizeof input - kept);
    if (n < 0)
        return net_is_blocked() ? GO_ON : CLOSE;
    if (n == 0)
        return peer_done(c);
    if (kept > 0) {
        memcpy(input, c->kept, kept);
        free(c->kept);
        c->kept = NULL;
        c->kept_length = 0;
    }
    return (c->mode == 0 ? begin : take)(c, input, kept + (size_t)n);
}

static enum verdict step(struct connection *c, uint32_t events)
{
    if (c->out != NULL)
        return send_kept(c);
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) {
        bool filled = true;
        int reads = c->mode == MODE_SINK ? STREAM_TURN : 1;
        for (int i = 0; i < reads && filled; i++)
            if (read_once(c, &filled) == CLOSE)
                return CLOSE;
    }
    if (c->mode == MODE_SOURCE && (events & EPOLLOUT))
        return stream_out(c);
    return GO_ON;
}

static void welcome(int listener)
{
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED)
                continue;
            if (net_is_blocked())
                return;
            if (errno == EMFILE || errno == ENFILE)
                die("no descriptor left for a connection: raise the hard limit (ulimit -Hn)");
            die_errno("accept4");
        }
        net_no_delay(fd);
        struct connection *c = allocate(1, sizeof *c);
        c->fd = fd;
        net_watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN, word(c));
    }
}

int serve_run(const struct options *options)
{
    raise_descriptor_limit();
    payload_prepare(BUFFER);
    signals_hold();
    int listener = net_listen(&options->listen, options->programs > 1);
    epoll = net_epoll();
    net_watch(epoll, EPOLL_CTL_ADD, listener, EPOLLIN, 0);
    puts("ready");
    fflush(stdout);
    while (!signals_end()) {
        struct epoll_event events[EVENTS];
        int ready = net_wait_interruptibly(epoll, events);
        for (int i = 0; i < ready; i++) {
            struct connection *c = (struct connection *)(uintptr_t)events[i].data.u64;
            if (c == NULL)
                welcome(listener);
            else if (step(c, events[i].events) == CLOSE)
                finish(c);
        }
        if (signals_take_report())
            report_server(answered);
    }
    report_server(answered);
    return 0;
}
