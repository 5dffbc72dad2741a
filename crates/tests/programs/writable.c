/* What poll, select and epoll call writable takes something of the next write: whole sends, small and large, to a process that reads slowly,
 * and edges that come whenever there is room again after a write that was refused. The same on every stack.
 *
 *     writable PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "checks.h"

/* No wait for room lasts so long while the reader reads. */
enum { LONG_MS = 20000 };
enum how { POLL, SELECT, LEVEL, EDGE, BLOCKING };
static const char *const names[] = {"poll", "select", "epoll", "edge", "blocking"};
static char block[1 << 18];
static int set = -1;

/* The other end: reads `chunk` bytes at a time with pauses between, until the end. Its exit code tells whether it had them all. */
static pid_t reader(uint16_t port, size_t total, size_t chunk, long pause_us) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0)
        return child;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    char *into = malloc(chunk);
    ssize_t came;
    size_t had = 0;
    CHECK(into);
    while ((came = read(fd, into, chunk)) > 0) {
        had += (size_t)came;
        struct timespec pause = {.tv_nsec = pause_us * 1000};
        nanosleep(&pause, NULL);
    }
    CHECK(came == 0 && had == total);
    _exit(0);
}

/* Whether it is said to be writable, after at most LONG_MS. */
static int is_writable(int fd, enum how how) {
    if (how == POLL) {
        struct pollfd polled = {.fd = fd, .events = POLLOUT | POLLIN | POLLRDHUP};
        return poll(&polled, 1, LONG_MS) == 1 && polled.revents == POLLOUT;
    }
    if (how == SELECT) {
        struct timeval within = {.tv_sec = LONG_MS / 1000};
        fd_set writable;
        FD_ZERO(&writable);
        FD_SET(fd, &writable);
        return select(fd + 1, NULL, &writable, NULL, &within) == 1 && FD_ISSET(fd, &writable);
    }
    struct epoll_event event = {0};
    return epoll_wait(set, &event, 1, LONG_MS) == 1 && event.events == EPOLLOUT;
}

/* One write. 0: refused for now. */
static size_t give(int fd, size_t size, size_t left) {
    ssize_t taken = write(fd, block, size < left ? size : left);
    CHECK(taken > 0 || (taken == -1 && errno == EAGAIN));
    return taken > 0 ? (size_t)taken : 0;
}

/* How many times it was writable and took nothing. */
static long send_all(int fd, enum how how, size_t size, size_t total) {
    long refused = 0;
    for (size_t sent = 0; sent < total;) {
        if (how != BLOCKING)
            CHECK(is_writable(fd, how));
        size_t taken = give(fd, size, total - sent);
        refused += taken == 0;
        sent += taken;
        /* Only what was refused is told of again. */
        while (how == EDGE && taken > 0 && sent < total) {
            taken = give(fd, size, total - sent);
            sent += taken;
        }
    }
    return refused;
}

static void one(int listener, uint16_t port, enum how how, size_t size, size_t total, size_t chunk, long pause_us) {
    pid_t child = reader(port, total, chunk, pause_us);
    int fd = accept(listener, NULL, NULL), status = 0;
    CHECK(fd >= 0);
    if (how == BLOCKING) {
        struct timeval within = {.tv_sec = LONG_MS / 1000};
        CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &within, sizeof within) == 0);
    } else {
        CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    }
    if (how == LEVEL || how == EDGE) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLOUT | (how == EDGE ? (uint32_t)EPOLLET : 0)};
        CHECK((set = epoll_create1(0)) >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    long refused = send_all(fd, how, size, total);
    if (set >= 0)
        close(set);
    set = -1;
    close(fd);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    /* An edge may come of what happened before the last write. */
    printf("%s %zu: %s\n", names[how], size, refused == 0 || how == EDGE ? "taken" : "writable, and refused");
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    uint16_t port = (uint16_t)atoi(argv[1]);
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    at.sin_port = htons(port);
    CHECK(listener >= 0 && setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 9) == 0);
    for (enum how how = POLL; how <= BLOCKING; how++) {
        one(listener, port, how, 100, 300000, 1000, 500);
        one(listener, port, how, 1000, 1000000, 1 << 16, 500);
        one(listener, port, how, 16384, 5000000, 1 << 16, 500);
        one(listener, port, how, sizeof block, 8000000, 1 << 17, 500);
    }
    printf("all\n");
    return 0;
}
