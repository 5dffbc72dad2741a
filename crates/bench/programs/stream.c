/* Bulk: flows that send, or receive, as fast as they can. What is counted is what the receiving end has got. */
#include "load.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

struct flow {
    int fd;
    uint32_t header_left;
    /* Bytes sent or received. */
    uint64_t count;
    /* The sink's answer, and how much of it is here. */
    uint64_t answer;
    uint32_t answer_have;
};

static int epoll;
static uint8_t input[BUFFER];
static struct header header;

/* The rest of the header leaves; false while it has not. */
static bool send_header(struct flow *flow)
{
    if (flow->header_left == 0)
        return true;
    const uint8_t *from = (const uint8_t *)&header + sizeof header - flow->header_left;
    ssize_t sent = net_send(flow->fd, from, flow->header_left);
    if (sent < 0 && !net_is_blocked())
        die_errno("sending the header");
    flow->header_left -= sent < 0 ? 0 : (uint32_t)sent;
    return flow->header_left == 0;
}

static void send_some(struct flow *flow, uint32_t write_size)
{
    if (!send_header(flow))
        return;
    for (int i = 0; i < STREAM_TURN; i++) {
        ssize_t sent = net_send(flow->fd, payload_at(flow->count), write_size);
        if (sent < 0 && net_is_blocked())
            return;
        if (sent < 0)
            die_errno("sending a stream after %ju bytes", (uintmax_t)flow->count);
        flow->count += (uint64_t)sent;
        if ((size_t)sent < write_size)
            return;
    }
}

static void receive_some(struct flow *flow)
{
    for (int i = 0; i < STREAM_TURN; i++) {
        ssize_t n = net_receive(flow->fd, input, sizeof input);
        if (n < 0 && net_is_blocked())
            return;
        if (n < 0)
            die_errno("receiving a stream after %ju bytes", (uintmax_t)flow->count);
        if (n == 0)
            die("the server ended a stream after %ju bytes", (uintmax_t)flow->count);
        if (!payload_is_right(input, (size_t)n, flow->count))
            die("an altered stream: among the %zd bytes from byte %ju on", n, (uintmax_t)flow->count);
        flow->count += (uint64_t)n;
        if ((size_t)n < sizeof input)
            return;
    }
}

static void open_flows(const struct options *options, struct flow *flows)
{
    int *fds = allocate(options->flows, sizeof *fds);
    net_open_all(options, fds, options->flows);
    for (uint32_t i = 0; i < options->flows; i++) {
        flows[i] = (struct flow){.fd = fds[i], .header_left = sizeof header};
        net_watch(epoll, EPOLL_CTL_ADD, fds[i], EPOLLOUT, i);
    }
    free(fds);
}

/* Until `end`: sends or receives on all flows. */
static void run_until(const struct options *options, struct flow *flows, uint64_t end)
{
    while (now_ns() < end) {
        struct epoll_event events[EVENTS];
        int ready = net_wait(epoll, events, end);
        for (int i = 0; i < ready; i++) {
            struct flow *flow = &flows[events[i].data.u64];
            if (!options->receive)
                send_some(flow, options->write_size);
            else if (flow->header_left == 0)
                receive_some(flow);
            else if (send_header(flow))
                net_watch(epoll, EPOLL_CTL_MOD, flow->fd, EPOLLIN, events[i].data.u64);
        }
    }
}

/* The sink's answer, as far as it is here; true when it is whole and right. */
static bool receive_answer(struct flow *flow)
{
    uint8_t *answer = (uint8_t *)&flow->answer;
    ssize_t n = net_receive(flow->fd, answer + flow->answer_have, sizeof flow->answer - flow->answer_have);
    if (n < 0 && net_is_blocked())
        return false;
    if (n < 0)
        die_errno("receiving the sink's count");
    if (n == 0)
        die("the sink closed a flow without its count");
    flow->answer_have += (uint32_t)n;
    if (flow->answer_have < sizeof flow->answer)
        return false;
    if (flow->answer == SINK_ALTERED)
        die("an altered stream: the sink did not get what was sent");
    if (flow->answer != flow->count)
        die("the sink counts %ju bytes, %ju were sent", (uintmax_t)flow->answer, (uintmax_t)flow->count);
    return true;
}

/* Ends what was sent and waits until the sink has counted all of it. */
static void await_answers(struct flow *flows, uint32_t count)
{
    uint32_t missing = count;
    for (uint32_t i = 0; i < count; i++) {
        if (flows[i].header_left > 0)
            die("a flow could not send even its header: measure for longer");
        if (shutdown(flows[i].fd, SHUT_WR) < 0)
            die_errno("shutdown");
        net_watch(epoll, EPOLL_CTL_MOD, flows[i].fd, EPOLLIN, i);
    }
    uint64_t deadline = now_ns() + STREAM_PATIENCE_NS;
    while (missing > 0) {
        struct epoll_event events[EVENTS];
        int ready = net_wait(epoll, events, deadline);
        for (int i = 0; i < ready; i++) {
            struct flow *flow = &flows[events[i].data.u64];
            if (!receive_answer(flow))
                continue;
            net_watch(epoll, EPOLL_CTL_DEL, flow->fd, 0, 0);
            missing--;
        }
        if (ready == 0 && now_ns() >= deadline)
            die("%u of %u sinks did not say their counts within %ju s", missing, count,
                (uintmax_t)(STREAM_PATIENCE_NS / 1000000000));
    }
}

static uint64_t counted(const struct options *options, const struct flow *flows)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < options->flows; i++)
        total += flows[i].count;
    return total;
}

/* A whole run on flows of its own, so that nothing which an earlier one left in buffers is counted to this one. */
static uint64_t run(const struct options *options, struct flow *flows, double skip, double seconds)
{
    open_flows(options, flows);
    run_until(options, flows, now_ns() + seconds_ns(skip));
    uint64_t skipped = counted(options, flows), now = now_ns();
    report_begin(now);
    run_until(options, flows, now + seconds_ns(seconds));
    if (!options->receive)
        await_answers(flows, options->flows);
    report_end(now_ns());
    uint64_t total = counted(options, flows) - skipped;
    for (uint32_t i = 0; i < options->flows; i++)
        close(flows[i].fd);
    return total;
}

int stream_run(const struct options *options)
{
    raise_descriptor_limit();
    payload_prepare(options->write_size > BUFFER ? options->write_size : BUFFER);
    header = (struct header){.magic = MAGIC, .mode = options->receive ? MODE_SOURCE : MODE_SINK};
    epoll = net_epoll();
    struct flow *flows = allocate(options->flows, sizeof *flows);
    if (options->warmup > 0)
        run(options, flows, 0, options->warmup);
    uint64_t total = run(options, flows, options->skip, options->seconds);
    if (total == 0)
        die("no byte arrived: measure for longer");
    report_stream(total);
    return 0;
}
