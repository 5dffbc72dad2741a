/* One request after a pause, again and again: in the pause both sides have gone to sleep. */
#include "load.h"

#include <errno.h>
#include <time.h>

static void pause_for(uint32_t us)
{
    struct timespec left = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {
    }
}

static void ask_once(struct exchange *x, int epoll)
{
    uint64_t deadline = now_ns() + PATIENCE_NS;
    x->queued = 1;
    exchange_push(x, epoll, 0);
    for (;;) {
        struct epoll_event events[EVENTS];
        int ready = net_wait(epoll, events, deadline);
        if (ready > 0 && (events[0].events & (EPOLLIN | EPOLLERR | EPOLLHUP)) && exchange_receive(x) > 0)
            return;
        if (ready > 0 && (events[0].events & EPOLLOUT))
            exchange_push(x, epoll, 0);
        if (ready == 0 && now_ns() >= deadline)
            die("a reply did not come within %ju s", (uintmax_t)(PATIENCE_NS / 1000000000));
    }
}

int wake_run(const struct options *options)
{
    exchange_prepare(options->size);
    int fd, epoll = net_epoll();
    net_open_all(options, &fd, 1);
    struct exchange x;
    exchange_start(&x, fd, 0);
    net_watch(epoll, EPOLL_CTL_ADD, fd, EPOLLIN, 0);
    /* The first carries the header and finds everything new. */
    ask_once(&x, epoll);

    uint64_t begin = now_ns() + seconds_ns(options->warmup);
    while (now_ns() < begin) {
        pause_for(options->interval_us);
        ask_once(&x, epoll);
    }
    uint64_t now = now_ns(), end = now + seconds_ns(options->seconds);
    report_begin(now);
    while (now < end) {
        pause_for(options->interval_us);
        uint64_t asked = now_ns();
        ask_once(&x, epoll);
        now = now_ns();
        histogram_record(now - asked);
    }
    report_end(now);
    report_requests("wake", options->size);
    return 0;
}
