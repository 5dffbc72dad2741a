/* Sockets and readiness: non-blocking, TCP_NODELAY, level-triggered epoll. */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Handshakes in progress at once: fewer than any listener's queue, so that none is dropped there. */
enum { OPENING_MAX = 128 };

/* An address as it was given, for messages. */
static const char *shown(const struct sockaddr_in *address)
{
    static char text[INET_ADDRSTRLEN + sizeof ":65535"];
    inet_ntop(AF_INET, &address->sin_addr, text, INET_ADDRSTRLEN);
    size_t length = strlen(text);
    snprintf(text + length, sizeof text - length, ":%u", ntohs(address->sin_port));
    return text;
}

void net_no_delay(int fd)
{
    int on = 1;
    /* EINVAL: the peer has reset the connection already, which the next call on it will tell. */
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0 && errno != EINVAL)
        die_errno("TCP_NODELAY");
}

static int stream_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 && errno == EMFILE)
        die("no descriptor left: raise the hard limit (ulimit -Hn) or ask for fewer connections");
    if (fd < 0)
        die_errno("socket");
    net_no_delay(fd);
    return fd;
}

int net_listen(const struct sockaddr_in *address, bool shared)
{
    int fd = stream_socket(), on = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0)
        die_errno("SO_REUSEADDR");
    if (shared && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) < 0)
        die_errno("SO_REUSEPORT");
    if (bind(fd, (const struct sockaddr *)address, sizeof *address) < 0)
        die_errno("bind to %s", shown(address));
    if (listen(fd, SOMAXCONN) < 0)
        die_errno("listen at %s", shown(address));
    return fd;
}

static _Noreturn void die_unconnected(const struct options *options)
{
    switch (errno) {
    case ECONNREFUSED:
        die_errno("connect to %s (does `toe-load serve` listen there, on this stack?)", shown(&options->connect));
    case EADDRNOTAVAIL:
        die_errno("connect to %s: no address or no free port (widen net.ipv4.ip_local_port_range, set "
                  "net.ipv4.tcp_tw_reuse to 1, or measure for a shorter time)",
                  shown(&options->connect));
    default:
        die_errno("connect to %s", shown(&options->connect));
    }
}

int net_connect(const struct options *options, bool *connected)
{
    int fd = stream_socket();
    if (options->has_source) {
        /* The port is then chosen with the peer known, so that one port can serve several peers. */
        int on = 1;
        if (setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on) < 0 && errno != ENOPROTOOPT)
            die_errno("IP_BIND_ADDRESS_NO_PORT");
        if (bind(fd, (const struct sockaddr *)&options->source, sizeof options->source) < 0)
            die_errno("bind to the source %s", shown(&options->source));
    }
    *connected = connect(fd, (const struct sockaddr *)&options->connect, sizeof options->connect) == 0;
    /* An interrupted connect(2) goes on by itself. */
    if (!*connected && errno != EINPROGRESS && errno != EINTR)
        die_unconnected(options);
    return fd;
}

bool net_connected(int fd, const struct options *options)
{
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) < 0)
        die_errno("SO_ERROR");
    if (error == EINPROGRESS || error == EALREADY)
        return false;
    if (error != 0) {
        errno = error;
        die_unconnected(options);
    }
    return true;
}

void net_open_all(const struct options *options, int *fds, uint32_t count)
{
    int epoll = net_epoll();
    uint32_t begun = 0, complete = 0;
    uint64_t deadline = now_ns() + PATIENCE_NS;
    while (complete < count) {
        while (begun < count && begun - complete < OPENING_MAX) {
            bool connected;
            fds[begun] = net_connect(options, &connected);
            if (connected)
                complete++;
            else
                net_watch(epoll, EPOLL_CTL_ADD, fds[begun], EPOLLOUT, begun);
            begun++;
        }
        if (begun == complete)
            continue;
        struct epoll_event events[EVENTS];
        int ready = net_wait(epoll, events, deadline);
        for (int i = 0; i < ready; i++) {
            int fd = fds[events[i].data.u64];
            if (!net_connected(fd, options))
                continue;
            net_watch(epoll, EPOLL_CTL_DEL, fd, 0, 0);
            complete++;
            deadline = now_ns() + PATIENCE_NS;
        }
        if (ready == 0 && now_ns() >= deadline)
            die("connect to %s: %u of %u connections are complete, and no more became so in time",
                shown(&options->connect), complete, count);
    }
    close(epoll);
}

int net_epoll(void)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        die_errno("epoll_create1");
    return epoll;
}

void net_watch(int epoll, int operation, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    if (epoll_ctl(epoll, operation, fd, &event) < 0)
        die_errno("epoll_ctl (operation %d)", operation);
}

int net_wait(int epoll, struct epoll_event *events, uint64_t until)
{
    for (;;) {
        uint64_t now = now_ns();
        /* Upwards, so that the loop does not spin for the last part of a millisecond. */
        int timeout = now < until ? (int)((until - now + 999999) / 1000000) : 0;
        int ready = epoll_wait(epoll, events, EVENTS, timeout);
        if (ready >= 0)
            return ready;
        if (errno != EINTR)
            die_errno("epoll_wait");
    }
}

int net_wait_interruptibly(int epoll, struct epoll_event *events)
{
    sigset_t none;
    sigemptyset(&none);
    int ready = epoll_pwait(epoll, events, EVENTS, -1, &none);
    if (ready < 0 && errno != EINTR)
        die_errno("epoll_pwait");
    return ready < 0 ? 0 : ready;
}

ssize_t net_send(int fd, const void *from, size_t count)
{
    ssize_t n;
    do
        n = send(fd, from, count, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n;
}

ssize_t net_receive(int fd, void *to, size_t room)
{
    ssize_t n;
    do
        n = recv(fd, to, room, 0);
    while (n < 0 && errno == EINTR);
    return n;
}

bool net_is_blocked(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK;
}
