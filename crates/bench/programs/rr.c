/* Request and reply in a closed loop: each connection keeps `depth` requests outstanding. */
#include "load.h"

#include <stdlib.h>

struct lane {
    struct exchange x;
    /* When each outstanding request was due, oldest at `oldest`, in a ring of `depth`. */
    uint64_t *due;
    uint32_t oldest;
};

static int epoll;
static uint32_t depth;
static uint64_t outstanding;
static bool measuring;

/* Replies to the lane's oldest requests came; a new request takes the place of each unless the run is `ending`. */
static void replied(struct lane *lane, uint32_t replies, uint64_t now, bool ending)
{
    for (uint32_t i = 0; i < replies; i++) {
        if (measuring)
            histogram_record(now - lane->due[lane->oldest]);
        lane->due[lane->oldest] = now;
        lane->oldest = lane->oldest + 1 == depth ? 0 : lane->oldest + 1;
    }
    if (ending)
        outstanding -= replies;
    else
        lane->x.queued += replies;
}

/* One wait and what it brings; returns the time after it. */
static uint64_t turn(struct lane *lanes, uint64_t until, bool ending)
{
    struct epoll_event events[EVENTS];
    int ready = net_wait(epoll, events, until);
    for (int i = 0; i < ready; i++) {
        struct lane *lane = &lanes[events[i].data.u64];
        if (events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) {
            uint32_t replies = exchange_receive(&lane->x);
            if (replies > 0)
                replied(lane, replies, now_ns(), ending);
        }
        if (lane->x.queued > 0 || lane->x.wants_out)
            exchange_push(&lane->x, epoll, events[i].data.u64);
    }
    return now_ns();
}

static struct lane *open_lanes(const struct options *options)
{
    uint32_t count = options->connections;
    struct lane *lanes = allocate(count, sizeof *lanes);
    uint64_t *due = allocate((size_t)count * depth, sizeof *due);
    int *fds = allocate(count, sizeof *fds);
    net_open_all(options, fds, count);
    for (uint32_t i = 0; i < count; i++) {
        exchange_start(&lanes[i].x, fds[i], i);
        lanes[i].due = due + (size_t)i * depth;
        net_watch(epoll, EPOLL_CTL_ADD, fds[i], EPOLLIN, i);
    }
    free(fds);
    return lanes;
}

static void fill_lanes(struct lane *lanes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t now = now_ns();
        for (uint32_t k = 0; k < depth; k++)
            lanes[i].due[k] = now;
        lanes[i].x.queued = depth;
        exchange_push(&lanes[i].x, epoll, i);
    }
    outstanding = (uint64_t)count * depth;
}

int rr_run(const struct options *options)
{
    raise_descriptor_limit();
    exchange_prepare(options->size);
    depth = options->depth;
    epoll = net_epoll();
    struct lane *lanes = open_lanes(options);
    fill_lanes(lanes, options->connections);

    crowd_gather();
    uint64_t now = now_ns(), begin = now + seconds_ns(options->warmup);
    while (now < begin)
        now = turn(lanes, begin, false);
    measuring = true;
    report_begin(now);
    uint64_t end = now + seconds_ns(options->seconds);
    while (now < end)
        now = turn(lanes, end, false);
    report_end(now);
    measuring = false;
    /* One that was starved has no latency to tell of. */
    for (uint32_t i = 0; i < options->connections; i++)
        histogram_still_waits(now - lanes[i].due[lanes[i].oldest]);

    /* What is on its way must still come: a reply that does not is lost. */
    uint64_t deadline = now + PATIENCE_NS;
    while (outstanding > 0) {
        now = turn(lanes, deadline, true);
        if (now >= deadline)
            die("%ju replies did not come within %ju s", (uintmax_t)outstanding,
                (uintmax_t)(PATIENCE_NS / 1000000000));
    }
    report_requests("rr", options->size);
    return 0;
}
