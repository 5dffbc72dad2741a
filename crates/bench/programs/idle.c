/* Many connections that do nothing: each is opened and asks once, then all rest until the standard input ends. */
#include "load.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    /* Requests on their way at once. */
    ASKING_MAX = 256,
};

/* The standard input's word in the epoll: no connection has it. */
#define INPUT UINT64_MAX

struct lane {
    struct exchange x;
    uint64_t asked;
};

static int epoll;

static void ask(struct lane *lanes, uint32_t index)
{
    lanes[index].asked = now_ns();
    lanes[index].x.queued = 1;
    exchange_push(&lanes[index].x, epoll, index);
}

/* One request and its reply on each. */
static void ask_all(struct lane *lanes, uint32_t count)
{
    uint32_t begun = 0, complete = 0;
    uint64_t deadline = now_ns() + PATIENCE_NS;
    while (complete < count) {
        while (begun < count && begun - complete < ASKING_MAX)
            ask(lanes, begun++);
        struct epoll_event events[EVENTS];
        int ready = net_wait(epoll, events, deadline);
        for (int i = 0; i < ready; i++) {
            uint64_t index = events[i].data.u64;
            if ((events[i].events & ~(uint32_t)EPOLLOUT) && exchange_receive(&lanes[index].x) > 0) {
                histogram_record(now_ns() - lanes[index].asked);
                complete++;
                deadline = now_ns() + PATIENCE_NS;
            }
            if (lanes[index].x.wants_out)
                exchange_push(&lanes[index].x, epoll, index);
        }
        if (ready == 0 && now_ns() >= deadline)
            die("%u of %u connections had no reply within %ju s", count - complete, count,
                (uintmax_t)(PATIENCE_NS / 1000000000));
    }
}

/* Whether the standard input has ended; takes what is there. */
static bool input_ended(void)
{
    char bytes[512];
    ssize_t n = read(STDIN_FILENO, bytes, sizeof bytes);
    return n == 0 || (n < 0 && errno != EINTR && !net_is_blocked());
}

static void rest(void)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = INPUT};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, STDIN_FILENO, &event) < 0) {
        /* A file, /dev/null or nothing at all: it is at its end, or will be. */
        if (errno != EPERM && errno != EBADF)
            die_errno("watching the standard input");
        return;
    }
    while (!signals_end()) {
        struct epoll_event events[EVENTS];
        int ready = net_wait_interruptibly(epoll, events);
        for (int i = 0; i < ready; i++) {
            if (events[i].data.u64 != INPUT)
                die("the server sent on an idle connection, or closed it");
            if (input_ended())
                return;
        }
    }
}

int idle_run(const struct options *options)
{
    raise_descriptor_limit();
    signals_hold();
    exchange_prepare(options->size);
    epoll = net_epoll();
    uint32_t count = options->connections;
    struct lane *lanes = allocate(count, sizeof *lanes);
    int *fds = allocate(count, sizeof *fds);
    uint64_t begin = now_ns();
    net_open_all(options, fds, count);
    for (uint32_t i = 0; i < count; i++) {
        exchange_start(&lanes[i].x, fds[i], i);
        net_watch(epoll, EPOLL_CTL_ADD, fds[i], EPOLLIN, i);
    }
    ask_all(lanes, count);
    uint64_t opened = now_ns();
    printf("{\"ready\":true,\"connections\":%u}\n", count);
    fflush(stdout);
    report_begin(opened);
    rest();
    report_end(now_ns());
    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
    report_idle(count, options->size, opened - begin);
    return 0;
}
