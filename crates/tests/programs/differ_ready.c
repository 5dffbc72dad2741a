/* poll, select, epoll; and `look`, by which the driver sees that both stacks have come to rest. */
#define _GNU_SOURCE
#include "differ.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>

enum { ASKED_MAX = 10, EVENTS_MAX = 16 };

static struct timespec duration(long milliseconds)
{
    return (struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000};
}

/* Numbers from `first` on are pairs: a descriptor and what is asked. */
static nfds_t asked(const struct call *call, int first, struct pollfd *fds)
{
    nfds_t count = 0;
    for (int i = first; i + 1 < call->count && count < ASKED_MAX; i += 2)
        fds[count++] = (struct pollfd){(int)call->n[i], (short)call->n[i + 1], 0};
    return count;
}

static void say_ready(const struct pollfd *fds, nfds_t count)
{
    for (nfds_t i = 0; i < count; i++)
        value("re", fds[i].revents);
}

static void op_poll(const struct call *call)
{
    struct pollfd fds[ASKED_MAX];
    nfds_t count = asked(call, 1, fds);
    answer(poll(fds, count, (int)call->n[0]));
    say_ready(fds, count);
}

static void op_ppoll(const struct call *call)
{
    struct pollfd fds[ASKED_MAX];
    nfds_t count = asked(call, 1, fds);
    struct timespec time = duration(call->n[0]);
    answer(ppoll(fds, count, &time, NULL));
    say_ready(fds, count);
}

/* For select a descriptor is asked for by POLLIN, POLLOUT and POLLPRI. */
static int put_sets(const struct call *call, fd_set sets[3])
{
    static const short kinds[] = {POLLIN, POLLOUT, POLLPRI};
    int highest = -1;
    for (int set = 0; set < 3; set++)
        FD_ZERO(&sets[set]);
    for (int i = 1; i + 1 < call->count; i += 2)
        for (int set = 0; set < 3; set++)
            if (call->n[i] >= 0 && call->n[i] < FD_SETSIZE && (call->n[i + 1] & kinds[set])) {
                FD_SET((int)call->n[i], &sets[set]);
                highest = call->n[i] > highest ? (int)call->n[i] : highest;
            }
    return highest + 1;
}

static void say_sets(const struct call *call, const fd_set sets[3])
{
    for (int i = 1; i + 1 < call->count; i += 2) {
        long in = 0;
        for (int set = 0; set < 3; set++)
            if (call->n[i] >= 0 && call->n[i] < FD_SETSIZE && FD_ISSET((int)call->n[i], &sets[set]))
                in |= 1 << set;
        value("in", in);
    }
}

static void op_select(const struct call *call)
{
    fd_set sets[3];
    int count = put_sets(call, sets);
    struct timeval time = {call->n[0] / 1000, call->n[0] % 1000 * 1000};
    answer(select(count, &sets[0], &sets[1], &sets[2], &time));
    say_sets(call, sets);
}

static void op_pselect(const struct call *call)
{
    fd_set sets[3];
    int count = put_sets(call, sets);
    struct timespec time = duration(call->n[0]);
    answer(pselect(count, &sets[0], &sets[1], &sets[2], &time, NULL));
    say_sets(call, sets);
}

static void op_epoll_create(const struct call *call)
{
    answer(call->count > 1 ? epoll_create((int)call->n[1]) : epoll_create1((int)call->n[0]));
}

/* Set, operation, descriptor, events, data. Events -1: a null pointer. */
static void op_epoll_ctl(const struct call *call)
{
    struct epoll_event event = {(uint32_t)call->n[3], {.u64 = (uint64_t)call->n[4]}};
    answer(epoll_ctl((int)call->n[0], (int)call->n[1], (int)call->n[2], call->n[3] == -1 ? NULL : &event));
}

static int by_data(const void *one, const void *other)
{
    uint64_t a = ((const struct epoll_event *)one)->data.u64, b = ((const struct epoll_event *)other)->data.u64;
    return (a > b) - (a < b);
}

/* The order of events is no promise of Linux's: they are told by their data. */
static void say_events(struct epoll_event *events, int count)
{
    if (count > 0)
        qsort(events, (size_t)count, sizeof *events, by_data);
    for (int i = 0; i < count; i++) {
        value("data", (long)events[i].data.u64);
        value("events", (long)events[i].events);
    }
}

/* Set, room, time, and which of the three calls. */
static void op_epoll_wait(const struct call *call)
{
    struct epoll_event events[EVENTS_MAX];
    struct timespec time = duration(call->n[2]);
    int set = (int)call->n[0], room = call->n[1] > EVENTS_MAX ? EVENTS_MAX : (int)call->n[1], count;
    if (call->n[3] == 0)
        count = epoll_wait(set, events, room, (int)call->n[2]);
    else if (call->n[3] == 1)
        count = epoll_pwait(set, events, room, (int)call->n[2], NULL);
    else
        count = epoll_pwait2(set, events, room, &time, NULL);
    answer(count);
    say_events(events, count);
}

/* Of a connection its state of RFC 9293, by Linux's numbers, and the path's MTU, by which it shows on which stack it is; else zeros. */
static struct tcp_info tcp_info(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? info : (struct tcp_info){0};
}

/* In the place of a TCP socket's state, of a UDP socket. */
enum { DATAGRAMS = 100 };

static int is_udp(int fd)
{
    int protocol = 0;
    socklen_t length = sizeof protocol;
    return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 && protocol == IPPROTO_UDP;
}

typedef int name_call(int, struct sockaddr *, socklen_t *);

static int port(name_call get, int fd)
{
    struct sockaddr_in address = {0};
    socklen_t length = sizeof address;
    if (get(fd, (struct sockaddr *)&address, &length) < 0 || address.sin_family != AF_INET)
        return 0;
    return ntohs(address.sin_port);
}

static int own_name(int fd, struct sockaddr *address, socklen_t *length)
{
    return getsockname(fd, address, length);
}

static int peer_name(int fd, struct sockaddr *address, socklen_t *length)
{
    return getpeername(fd, address, length);
}

/*
 * Of every open descriptor: what poll says, how much can be read, the status flags; of a TCP or UDP socket its
 * state and both ports, of a connection the path's MTU. Changes nothing.
 */
static void op_look(const struct call *call)
{
    struct pollfd fds[TEST_FDS];
    (void)call;
    for (int fd = 0; fd < TEST_FDS; fd++)
        fds[fd] = (struct pollfd){fd < 3 ? -1 : fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0};
    answer(poll(fds, TEST_FDS, 0) < 0 ? -1 : 0);
    for (int fd = 3; fd < TEST_FDS; fd++) {
        if (fds[fd].revents & POLLNVAL)
            continue;
        struct tcp_info info = tcp_info(fd);
        int unread = 0, state = info.tcpi_state;
        if (state == 0 && is_udp(fd))
            state = DATAGRAMS;
        if (ioctl(fd, FIONREAD, &unread) < 0)
            unread = -errno;
        seen(fd, (const int[]){state, fds[fd].revents, unread, fcntl(fd, F_GETFL), state ? port(own_name, fd) : 0,
                               state ? port(peer_name, fd) : 0, (int)info.tcpi_pmtu});
    }
}

const struct operation ready_operations[] = {
    {"poll", op_poll},
    {"ppoll", op_ppoll},
    {"select", op_select},
    {"pselect", op_pselect},
    {"epoll_create", op_epoll_create},
    {"epoll_ctl", op_epoll_ctl},
    {"epoll_wait", op_epoll_wait},
    {"look", op_look},
    {NULL, NULL},
};
