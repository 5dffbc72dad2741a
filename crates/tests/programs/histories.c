/* One of four processes that connect, accept, send, look and close at random, and write down when each call began and had returned. What
 * the histories say is checked elsewhere: crates/tests/tests/histories. The same on every stack.
 *
 *     histories FILE NUMBER SEED CALLS BASE_PORT ADDRESS_0 ADDRESS_1 OTHER_0 OTHER_1
 *
 * FILE is shared by the four: a page of marks, then four logs. Process n listens on BASE_PORT + n and on BASE_PORT + 4 + n. Processes 0
 * and 1 are on one side, 2 and 3 on the other; ADDRESS_n is where the side n is met from the other one, and OTHER_n at the second listener.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "checks.h"

enum { PROCESSES = 4, SLOTS = 8, LONG_SLOTS = 4, LISTENERS = 2, UNREAD_MAX = 8192, SEND_MIN = 150, SEND_MAX = 2000, EVENTS_PER_CALL = 8, LIMIT_S = 600 };
/* Which of a connection's ends, or that a listener is meant. */
enum { CLIENT, SERVER, LISTENER };
enum { CONNECT, ACCEPT, SEND, RECV, POLL, EPOLL, UNREAD, STATE, SHUTDOWN, CLOSE };

/* As crates/tests/tests/histories/history.rs reads it. `connection`: SLOTS times a generation, plus the slot. `result`: what the call
 * returned, or -errno; of a poll the events, of TCP_INFO the state. Of a listener's look `connection` is the listener. */
struct event {
    uint64_t begin, end;
    uint32_t connection;
    int32_t result;
    uint8_t call, side, pad[6];
};

/* A connection's place: one client and one server use it again and again. */
struct slot {
    _Atomic uint32_t generation, port, client_open, server_open, expected;
    _Atomic uint64_t sent[2], read[2];
};

struct marks {
    _Atomic uint32_t listening, done;
    struct slot slots[SLOTS];
};

struct log {
    uint64_t count;
    struct event events[];
};

struct held {
    int fd, side;
    uint32_t connection;
    int is_shut;
};

static struct marks *marks;
static struct log *log_;
static struct held held[SLOTS];
static int listeners[LISTENERS], set, self;
static uint64_t state, events_max, made;
static char bytes[SEND_MAX];

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t beginning(void) {
    made++;
    return now();
}

static uint32_t below(uint32_t bound) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state >> 20) % bound);
}

static int client_of(int slot) { return slot % PROCESSES; }
static int server_of(int slot) { return (slot + 1 + slot / PROCESSES) % PROCESSES; }
/* The last two of the slots go to the second listener, which a policy may leave to the kernel's stack. */
static int listener_of(int slot) { return slot >= SLOTS - 2; }

static void note(uint64_t begin, uint64_t end, int call, int side, uint32_t connection, int64_t result) {
    CHECK(log_->count < events_max);
    log_->events[log_->count++] = (struct event){.begin = begin, .end = end, .connection = connection, .result = (int32_t)result, .call = (uint8_t)call, .side = (uint8_t)side};
}

static int64_t came_of(int64_t result) { return result < 0 ? -errno : result; }

/* Sleeps a little until `mark` is `wanted`, for the marks' sake alone. */
static void await(_Atomic uint32_t *mark, uint32_t wanted) {
    for (uint64_t limit = now() + LIMIT_S * 1000000000ull; atomic_load(mark) != wanted; sched_yield())
        CHECK(now() < limit);
}

static void watch(int fd, uint32_t data) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u32 = data};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

static void hold(int slot, int fd, int side, uint32_t connection) {
    int one = 1;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    held[slot] = (struct held){.fd = fd, .side = side, .connection = connection};
    watch(fd, (uint32_t)slot);
}

static void do_connect(int slot, uint16_t port, const char *const *sides) {
    struct slot *at = &marks->slots[slot];
    if (held[slot].fd >= 0 || atomic_load(&at->server_open) || atomic_load(&at->expected))
        return;
    int server = server_of(slot), same_side = server / 2 == self / 2;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)(port + 4 * listener_of(slot) + server))};
    CHECK(inet_pton(AF_INET, same_side ? "127.0.0.1" : sides[2 * listener_of(slot) + server / 2], &to.sin_addr) == 1);
    uint32_t generation = atomic_load(&at->generation) + 1, connection = SLOTS * generation + (uint32_t)slot;
    atomic_store(&at->port, 0);
    for (int side = 0; side < 2; side++) {
        atomic_store(&at->sent[side], 0);
        atomic_store(&at->read[side], 0);
    }
    atomic_store(&at->generation, generation);
    atomic_store(&at->expected, 1);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    uint64_t begin = beginning();
    int64_t came = came_of(connect(fd, (struct sockaddr *)&to, sizeof to));
    note(begin, now(), CONNECT, CLIENT, connection, came);
    CHECK(came == 0);
    struct sockaddr_in own;
    socklen_t length = sizeof own;
    CHECK(getsockname(fd, (struct sockaddr *)&own, &length) == 0);
    atomic_store(&at->client_open, 1);
    atomic_store(&at->port, ntohs(own.sin_port));
    hold(slot, fd, CLIENT, connection);
}

/* The slot whose client says that it connected from `port`: it may be about to. */
static int slot_of(int listener, uint32_t port) {
    for (uint64_t limit = now() + LIMIT_S * 1000000000ull;; sched_yield()) {
        for (int slot = 0; slot < SLOTS; slot++)
            if (server_of(slot) == self && listener_of(slot) == listener && atomic_load(&marks->slots[slot].expected) && atomic_load(&marks->slots[slot].port) == port)
                return slot;
        CHECK(now() < limit);
    }
}

static void do_accept(int listener) {
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    uint32_t name = (uint32_t)(PROCESSES * listener + self);
    uint64_t begin = beginning();
    int64_t fd = came_of(accept4(listeners[listener], (struct sockaddr *)&from, &length, 0));
    uint64_t end = now();
    if (fd < 0) {
        note(begin, end, ACCEPT, LISTENER, name, fd);
        return;
    }
    int slot = slot_of(listener, ntohs(from.sin_port));
    struct slot *at = &marks->slots[slot];
    uint32_t connection = SLOTS * atomic_load(&at->generation) + (uint32_t)slot;
    note(begin, end, ACCEPT, SERVER, connection, 0);
    atomic_store(&at->server_open, 1);
    atomic_store(&at->expected, 0);
    hold(slot, (int)fd, SERVER, connection);
}

static void do_send(int slot) {
    struct held *own = &held[slot];
    struct slot *at = &marks->slots[slot];
    size_t length = SEND_MIN + below(below(2) ? 100 : SEND_MAX - SEND_MIN);
    uint64_t sent = atomic_load(&at->sent[own->side]);
    if (own->is_shut || sent + length > atomic_load(&at->read[own->side]) + UNREAD_MAX)
        return;
    uint64_t begin = beginning();
    int64_t came = came_of(send(own->fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL));
    note(begin, now(), SEND, own->side, own->connection, came);
    if (came > 0)
        atomic_store(&at->sent[own->side], sent + (uint64_t)came);
}

static void do_recv(int slot) {
    struct held *own = &held[slot];
    static char into[SEND_MAX];
    uint64_t begin = beginning();
    int64_t came = came_of(recv(own->fd, into, 1 + below(SEND_MAX), MSG_DONTWAIT));
    note(begin, now(), RECV, own->side, own->connection, came);
    if (came > 0)
        atomic_fetch_add(&marks->slots[slot].read[1 - own->side], (uint64_t)came);
}

static void do_look(int slot) {
    struct held *own = &held[slot];
    struct pollfd polled = {.fd = own->fd, .events = POLLIN | POLLRDHUP};
    struct tcp_info info;
    socklen_t length = sizeof info;
    int unread = 0, call = below(3) ? POLL : below(2) ? UNREAD : STATE;
    uint64_t begin = beginning();
    int64_t came = came_of(call == POLL ? poll(&polled, 1, 0) : call == UNREAD ? ioctl(own->fd, FIONREAD, &unread) : getsockopt(own->fd, IPPROTO_TCP, TCP_INFO, &info, &length));
    uint64_t end = now();
    CHECK(came >= 0);
    note(begin, end, call, own->side, own->connection, call == POLL ? polled.revents : call == UNREAD ? unread : info.tcpi_state);
}

static void do_poll_listener(int listener) {
    struct pollfd polled = {.fd = listeners[listener], .events = POLLIN};
    uint64_t begin = beginning();
    CHECK(poll(&polled, 1, 0) >= 0);
    note(begin, now(), POLL, LISTENER, (uint32_t)(PROCESSES * listener + self), polled.revents);
}

static void do_epoll(void) {
    struct epoll_event told[SLOTS + LISTENERS];
    uint32_t events[SLOTS + LISTENERS] = {0};
    uint64_t begin = beginning();
    int count = epoll_wait(set, told, SLOTS + LISTENERS, 0);
    uint64_t end = now();
    CHECK(count >= 0);
    for (int i = 0; i < count; i++)
        events[told[i].data.u32] = told[i].events;
    for (int slot = 0; slot < SLOTS; slot++)
        if (held[slot].fd >= 0)
            note(begin, end, EPOLL, held[slot].side, held[slot].connection, events[slot]);
    for (int listener = 0; listener < LISTENERS; listener++)
        note(begin, end, EPOLL, LISTENER, (uint32_t)(PROCESSES * listener + self), events[SLOTS + listener]);
}

static void do_shutdown(int slot) {
    struct held *own = &held[slot];
    if (own->is_shut)
        return;
    uint64_t begin = beginning();
    int64_t came = came_of(shutdown(own->fd, SHUT_WR));
    note(begin, now(), SHUTDOWN, own->side, own->connection, came);
    own->is_shut = 1;
}

static void do_close(int slot) {
    struct held *own = &held[slot];
    uint64_t begin = beginning();
    int64_t came = came_of(close(own->fd));
    note(begin, now(), CLOSE, own->side, own->connection, came);
    own->fd = -1;
    atomic_store(own->side == CLIENT ? &marks->slots[slot].client_open : &marks->slots[slot].server_open, 0);
}

/* One call, if there is something to make it on. */
static void step(uint16_t port, const char *const *sides) {
    int slot = (int)below(SLOTS), dice = (int)below(100);
    /* Old connections stay until all is over, nearly. */
    int may_end = slot >= LONG_SLOTS || below(500) == 0;
    if (dice < 8)
        do_epoll();
    else if (dice < 14)
        do_accept((int)below(LISTENERS));
    else if (dice < 17)
        do_poll_listener((int)below(LISTENERS));
    else if (held[slot].fd < 0)
        client_of(slot) == self ? do_connect(slot, port, sides) : (void)0;
    else if (dice < 45)
        do_send(slot);
    else if (dice < 75)
        do_recv(slot);
    else if (dice < 90)
        do_look(slot);
    else if (dice < 93)
        may_end ? do_shutdown(slot) : (void)0;
    else if (may_end)
        do_close(slot);
}

static int listening(uint16_t port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 64) == 0);
    return fd;
}

static void share(const char *path, uint64_t calls) {
    long page = sysconf(_SC_PAGESIZE);
    events_max = EVENTS_PER_CALL * (calls + 1000);
    size_t log_size = sizeof(struct log) + events_max * sizeof(struct event);
    int fd = open(path, O_RDWR | O_CREAT, 0666);
    CHECK(fd >= 0 && sizeof *marks <= (size_t)page && ftruncate(fd, page + (off_t)(PROCESSES * log_size)) == 0);
    char *all = mmap(NULL, (size_t)page + PROCESSES * log_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(all != MAP_FAILED && close(fd) == 0);
    marks = (struct marks *)all;
    log_ = (struct log *)(all + page + (size_t)self * log_size);
}

int main(int count, char **args) {
    CHECK(count == 10);
    self = atoi(args[2]);
    state = (strtoull(args[3], NULL, 10) * PROCESSES + (uint64_t)self + 1) * 0x9E3779B97F4A7C15;
    uint64_t calls = strtoull(args[4], NULL, 10);
    uint16_t port = (uint16_t)atoi(args[5]);
    const char *const sides[] = {args[6], args[7], args[8], args[9]};
    share(args[1], calls);
    CHECK((set = epoll_create1(0)) >= 0);
    for (int slot = 0; slot < SLOTS; slot++)
        held[slot].fd = -1;
    for (int listener = 0; listener < LISTENERS; listener++) {
        listeners[listener] = listening((uint16_t)(port + 4 * listener + self));
        watch(listeners[listener], (uint32_t)(SLOTS + listener));
    }
    atomic_fetch_add(&marks->listening, 1);
    await(&marks->listening, PROCESSES);
    while (made < calls)
        step(port, sides);
    atomic_fetch_add(&marks->done, 1);
    await(&marks->done, PROCESSES);
    return 0;
}
