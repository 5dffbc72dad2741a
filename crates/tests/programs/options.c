/*
 * Every socket option and ioctl, in every state that a TCP socket can be in: what getsockopt and setsockopt answer to good
 * values, values at the bounds and beyond, and values that are too short or too long. The same program runs on the kernel's
 * stack and on the engine (crates/tests/tests/options). Each line of output is one state and option:
 *
 *     state level name | get: room=errno or length:bytes … | set: length/value=errno:value read back …
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { VALUE_MAX = 512, TOLD_MAX = 16 };

enum state { NEW, BOUND, LISTENING, ESTABLISHED, ACCEPTED, PEER_CLOSED, CLOSED, RESET, STATES };

static const char *const state_names[STATES] = {
    "new", "bound", "listening", "established", "accepted", "peer-closed", "closed", "reset",
};

/* A socket in a state, and what it takes to have it there. */
struct scene {
    int fd, peer, listener;
};

static int family = AF_INET;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static socklen_t loopback(struct sockaddr_storage *place)
{
    memset(place, 0, sizeof *place);
    if (family == AF_INET) {
        struct sockaddr_in *in = (void *)place;
        in->sin_family = AF_INET;
        in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        return sizeof *in;
    }
    struct sockaddr_in6 *in6 = (void *)place;
    in6->sin6_family = AF_INET6;
    /* An engine of 127.0.0.0/8 has IPv4 alone, which a socket of AF_INET6 can have, too. */
    inet_pton(AF_INET6, "::ffff:127.0.0.1", &in6->sin6_addr);
    return sizeof *in6;
}

static int tcp_socket(void)
{
    int fd = socket(family, SOCK_STREAM, 0);
    if (fd < 0)
        fail("socket");
    return fd;
}

static int bound(void)
{
    struct sockaddr_storage addr;
    socklen_t length = loopback(&addr);
    int fd = tcp_socket();
    if (bind(fd, (void *)&addr, length) != 0)
        fail("bind");
    return fd;
}

static void pause_ms(long ms)
{
    struct timespec time = {0, ms * 1000000};
    nanosleep(&time, NULL);
}

static int state_of(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? info.tcpi_state : 0;
}

static void wait_for_state(int fd, int state)
{
    for (int tries = 0; state_of(fd) != state; tries++) {
        if (tries > 5000) {
            fprintf(stderr, "state %d instead of %d\n", state_of(fd), state);
            exit(1);
        }
        pause_ms(1);
    }
}

static void end(int fd)
{
    struct linger abort = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
    close(fd);
}

static struct scene connected(int listener)
{
    struct sockaddr_storage addr;
    socklen_t length = sizeof addr;
    getsockname(listener, (void *)&addr, &length);
    struct scene scene = {tcp_socket(), -1, -1};
    if (connect(scene.fd, (void *)&addr, length) != 0)
        fail("connect");
    scene.peer = accept(listener, NULL, NULL);
    if (scene.peer < 0)
        fail("accept");
    wait_for_state(scene.fd, TCP_ESTABLISHED);
    wait_for_state(scene.peer, TCP_ESTABLISHED);
    return scene;
}

static struct scene set_up(enum state state, int listener)
{
    struct scene scene = {-1, -1, -1};
    switch (state) {
    case NEW:
        scene.fd = tcp_socket();
        return scene;
    case BOUND:
        scene.fd = bound();
        return scene;
    case LISTENING:
        scene.fd = bound();
        if (listen(scene.fd, 5) != 0)
            fail("listen");
        return scene;
    default:
        break;
    }
    scene = connected(listener);
    if (state == ACCEPTED) {
        int peer = scene.fd;
        scene.fd = scene.peer;
        scene.peer = peer;
    } else if (state == PEER_CLOSED) {
        shutdown(scene.peer, SHUT_WR);
        wait_for_state(scene.fd, TCP_CLOSE_WAIT);
    } else if (state == CLOSED) {
        /* The peer closes first, so that its end waits and this one does not. */
        shutdown(scene.peer, SHUT_WR);
        wait_for_state(scene.fd, TCP_CLOSE_WAIT);
        shutdown(scene.fd, SHUT_WR);
        wait_for_state(scene.fd, TCP_CLOSE);
    } else if (state == RESET) {
        end(scene.peer);
        scene.peer = -1;
        wait_for_state(scene.fd, TCP_CLOSE);
    }
    return scene;
}

static void tear_down(struct scene scene)
{
    end(scene.fd);
    if (scene.peer >= 0)
        end(scene.peer);
}

/* What one getsockopt answers: its errno, or the length and the bytes. */
static void tell_get(int fd, int level, int name, long room, int with_value)
{
    unsigned char place[VALUE_MAX];
    memset(place, 0xee, sizeof place);
    socklen_t length = (socklen_t)room;
    if (getsockopt(fd, level, name, place, &length) != 0) {
        printf("%s", strerrorname_np(errno));
        return;
    }
    printf("%u", length);
    if (!with_value)
        return;
    putchar(':');
    for (socklen_t at = 0; at < length && at < TOLD_MAX; at++)
        printf("%02x", place[at]);
}

static const long rooms[] = {4, 0, 1, 3, 8, 16, VALUE_MAX, -1};
static const int lengths[] = {0, 1, 2, 3, 8, 12, 16};
static const int values[] = {1,     0,     -1,    2,     3,     5,          7,          8,      16,       60,        88,
                             119,   120,   127,   128,   255,   256,        1000,       2304,   4608,     32767,     32768,
                             65535, 65536, 65537, 70000, 90000, 1000000,    0x7fffffff, -2147483647};

/* Bytes of the value are ints, the first of which is `value`; of a struct timeval or linger the second counts, too. */
static void tell_set(int fd, int level, int name, int length, int value, int with_value)
{
    int place[16] = {value, 0, value};
    int result = setsockopt(fd, level, name, place, (socklen_t)length);
    printf(" %d/%d=%s", length, value, result == 0 ? "ok" : strerrorname_np(errno));
    if (result == 0 && length >= 4) {
        putchar(':');
        tell_get(fd, level, name, 4, with_value);
    }
}

static void option(enum state state, int listener, int level, int name, int with_value)
{
    struct scene scene = set_up(state, listener);
    printf("%s %d %d | get:", state_names[state], level, name);
    for (size_t at = 0; at < sizeof rooms / sizeof *rooms; at++) {
        printf(" %ld=", rooms[at]);
        tell_get(scene.fd, level, name, rooms[at], with_value);
    }
    printf(" | set:");
    for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++)
        tell_set(scene.fd, level, name, lengths[at], 1, with_value);
    for (size_t at = 0; at < sizeof values / sizeof *values; at++)
        tell_set(scene.fd, level, name, sizeof(int), values[at], with_value);
    putchar('\n');
    tear_down(scene);
}

static void request(enum state state, int listener, unsigned long number)
{
    struct scene scene = set_up(state, listener);
    unsigned char place[VALUE_MAX];
    memset(place, 0, sizeof place);
    int result = ioctl(scene.fd, number, place);
    printf("%s ioctl %lu | %s", state_names[state], number, result >= 0 ? "ok" : strerrorname_np(errno));
    if (result >= 0)
        printf(":%02x%02x%02x%02x", place[0], place[1], place[2], place[3]);
    putchar('\n');
    tear_down(scene);
}

/* The family, inet or inet6, and a file of questions: "level name with_value" or "ioctl number", a line each. */
int main(int argc, char **argv)
{
    char line[128];
    if (argc != 3) {
        fprintf(stderr, "usage: options inet|inet6 FILE\n");
        return 2;
    }
    if (strcmp(argv[1], "inet6") == 0)
        family = AF_INET6;
    FILE *asked = fopen(argv[2], "r");
    if (asked == NULL)
        fail(argv[2]);
    int listener = bound();
    if (listen(listener, 16) != 0)
        fail("listen");
    while (fgets(line, sizeof line, asked) != NULL) {
        int level, name, with_value;
        unsigned long number;
        for (enum state state = NEW; state < STATES; state++) {
            if (sscanf(line, "ioctl %lu", &number) == 1)
                request(state, listener, number);
            else if (sscanf(line, "%d %d %d", &level, &name, &with_value) == 3)
                option(state, listener, level, name, with_value);
        }
        fflush(stdout);
    }
    return 0;
}
