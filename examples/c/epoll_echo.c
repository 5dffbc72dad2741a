/* An echo server on epoll, edge-triggered: what it reads it writes back. An ordinary program with toe_ before its socket
 * and epoll calls.
 *
 *   cc -Wall -Wextra -Werror -Iinclude examples/c/epoll_echo.c -Ltarget/release -ltoe -o epoll_echo
 *   ./epoll_echo 7777
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "toe.h"

enum { EVENTS = 64, BUFFER = 16 * 1024 };

/* A connection and the bytes that it still has to write. */
struct connection {
    int fd;
    size_t start, end;
    bool peer_done;
    char buffer[BUFFER];
};

static void die(const char *what)
{
    perror(what);
    exit(EXIT_FAILURE);
}

static void finish(struct connection *c)
{
    toe_close(c->fd);
    free(c);
}

/* Writes what waits. Returns -1 when the connection is over, 1 when the peer takes no more for now, else 0. */
static int flush(struct connection *c)
{
    while (c->start < c->end) {
        ssize_t n = toe_send(c->fd, c->buffer + c->start, c->end - c->start, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return errno == EAGAIN ? 1 : -1;
        }
        c->start += (size_t)n;
    }
    c->start = c->end = 0;
    return 0;
}

/* Echoes until one side blocks. Returns false when the connection is over. */
static bool serve(struct connection *c)
{
    for (;;) {
        int state = flush(c);
        if (state != 0)
            return state > 0;
        if (c->peer_done)
            return false;
        ssize_t n = toe_read(c->fd, c->buffer, sizeof c->buffer);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            return errno == EAGAIN;
        }
        if (n == 0)
            c->peer_done = true;
        c->end = (size_t)n;
    }
}

static void welcome(int epoll, int listener)
{
    for (;;) {
        int fd = toe_accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED)
                continue;
            if (errno == EAGAIN)
                return;
            die("accept");
        }
        struct connection *c = calloc(1, sizeof *c);
        if (c == NULL)
            die("calloc");
        c->fd = fd;
        struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
        if (toe_epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) < 0)
            die("epoll_ctl");
    }
}

static int listen_at(int port)
{
    int listener = toe_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0)
        die("socket");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    if (toe_bind(listener, (struct sockaddr *)&address, sizeof address) < 0)
        die("bind");
    if (toe_listen(listener, SOMAXCONN) < 0)
        die("listen");
    return listener;
}

int main(int argc, char **argv)
{
    int port = argc == 2 ? atoi(argv[1]) : 0;
    if (port <= 0 || port > 65535) {
        fprintf(stderr, "usage: %s PORT\n", argv[0]);
        return EXIT_FAILURE;
    }
    if (toe_init() < 0)
        die("toe_init");
    int listener = listen_at(port);
    int epoll = toe_epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        die("epoll_create1");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (toe_epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) < 0)
        die("epoll_ctl");
    printf("listening on %d\n", port);
    fflush(stdout);

    struct epoll_event events[EVENTS];
    for (;;) {
        int ready = toe_epoll_wait(epoll, events, EVENTS, -1);
        if (ready < 0) {
            if (errno == EINTR)
                continue;
            die("epoll_wait");
        }
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (c == NULL)
                welcome(epoll, listener);
            else if (!serve(c))
                finish(c);
        }
    }
}
