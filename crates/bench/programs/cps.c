/* Connections a second: each is opened, carries one request and its reply, and is closed; then the next begins. */
#include "load.h"

#include <unistd.h>

struct slot {
    struct exchange x;
    uint64_t began;
    bool connected;
};

static int epoll;
static uint32_t living;
static bool measuring;

/* The connection is there: its request leaves. */
static void ask(struct slot *slot, uint64_t data)
{
    slot->connected = true;
    slot->x.queued = 1;
    exchange_push(&slot->x, epoll, data);
}

/* `lane` goes into the counter, so it must differ from that of the connection before. */
static void begin_life(const struct options *options, struct slot *slot, uint64_t data, uint32_t lane)
{
    bool connected;
    slot->began = now_ns();
    exchange_start(&slot->x, net_connect(options, &connected), lane);
    slot->connected = false;
    /* EPOLLOUT tells of the handshake's end first, and then of room for the request. */
    slot->x.wants_out = !connected;
    net_watch(epoll, EPOLL_CTL_ADD, slot->x.fd, connected ? EPOLLIN : EPOLLIN | EPOLLOUT, data);
    living++;
    if (connected)
        ask(slot, data);
}

/* One step of a life; true when it is over. */
static bool step(const struct options *options, struct slot *slot, const struct epoll_event *event)
{
    if (!slot->connected) {
        if (net_connected(slot->x.fd, options))
            ask(slot, event->data.u64);
        return false;
    }
    if (event->events & (EPOLLIN | EPOLLERR | EPOLLHUP)) {
        if (exchange_receive(&slot->x) > 0) {
            close(slot->x.fd);
            living--;
            if (measuring)
                histogram_record(now_ns() - slot->began);
            return true;
        }
    }
    if (event->events & EPOLLOUT)
        exchange_push(&slot->x, epoll, event->data.u64);
    return false;
}

static uint64_t turn(const struct options *options, struct slot *slots, uint64_t until, bool ending)
{
    static uint32_t lane;
    struct epoll_event events[EVENTS];
    int ready = net_wait(epoll, events, until);
    for (int i = 0; i < ready; i++) {
        uint64_t data = events[i].data.u64;
        if (step(options, &slots[data], &events[i]) && !ending)
            begin_life(options, &slots[data], data, options->connections + (lane++ & 0x7fffff));
    }
    return now_ns();
}

int cps_run(const struct options *options)
{
    raise_descriptor_limit();
    exchange_prepare(options->size);
    epoll = net_epoll();
    struct slot *slots = allocate(options->connections, sizeof *slots);
    crowd_gather();
    for (uint32_t i = 0; i < options->connections; i++)
        begin_life(options, &slots[i], i, i);

    uint64_t now = now_ns(), begin = now + seconds_ns(options->warmup);
    while (now < begin)
        now = turn(options, slots, begin, false);
    measuring = true;
    report_begin(now);
    uint64_t end = now + seconds_ns(options->seconds);
    while (now < end)
        now = turn(options, slots, end, false);
    report_end(now);
    measuring = false;

    uint64_t deadline = now + PATIENCE_NS;
    while (living > 0) {
        now = turn(options, slots, deadline, true);
        if (now >= deadline)
            die("%u connections had no handshake or no reply within %ju s", living,
                (uintmax_t)(PATIENCE_NS / 1000000000));
    }
    report_requests("cps", options->size);
    return 0;
}
