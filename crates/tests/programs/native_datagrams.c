/*
 * UDP by the native interface, towards a peer of the kernel's that sends back what it gets (tests/programs/datagrams.py), and between two
 * sockets of this program. Ends with "all" if all was as it should be.
 *
 *   native_datagrams OWN_ADDR PEER_ADDR PEER_PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <toe.h>
#include <unistd.h>

#include "checks.h"

static struct sockaddr_in own, peer;
static char in[70000];

static struct sockaddr_in at(const char *addr, int port) {
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK(inet_pton(AF_INET, addr, &name.sin_addr) == 1);
    return name;
}

static int is(const struct sockaddr_in *a, const struct sockaddr_in *b) {
    return a->sin_addr.s_addr == b->sin_addr.s_addr && a->sin_port == b->sin_port;
}

static int make(int flags) {
    int fd = toe_socket(AF_INET, SOCK_DGRAM | flags, 0);
    CHECK(fd >= 0);
    struct timeval limit = {.tv_sec = 20};
    CHECK(toe_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    return fd;
}

static void unconnected(void) {
    int fd = make(0);
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    /* A name of the program's choice at an address that only the engine has. */
    CHECK(toe_bind(fd, (void *)&own, sizeof own) == 0);
    CHECK(toe_bind(fd, (void *)&own, sizeof own) == -1 && errno == EINVAL);
    CHECK(toe_getsockname(fd, (void *)&from, &len) == 0 && from.sin_addr.s_addr == own.sin_addr.s_addr && from.sin_port != 0);
    CHECK(toe_getpeername(fd, (void *)&from, &len) == -1 && errno == ENOTCONN);
    CHECK(toe_send(fd, "x", 1, 0) == -1 && errno == EDESTADDRREQ);
    for (int n = 0; n < 200; n++) {
        CHECK(toe_sendto(fd, "hello", 5, 0, (void *)&peer, sizeof peer) == 5);
        len = sizeof from;
        CHECK(toe_recvfrom(fd, in, sizeof in, 0, (void *)&from, &len) == 5 && memcmp(in, "hello", 5) == 0);
        CHECK(len == sizeof from && is(&from, &peer));
    }
    /* Cut off, looked at, told of. */
    CHECK(toe_sendto(fd, "truncated", 9, 0, (void *)&peer, sizeof peer) == 9);
    CHECK(toe_recv(fd, in, 4, MSG_PEEK) == 4);
    CHECK(toe_recv(fd, in, 4, MSG_TRUNC) == 9 && memcmp(in, "trun", 4) == 0);
    CHECK(toe_recv(fd, in, 4, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    CHECK(toe_poll(&polled, 1, 0) == 0);
    CHECK(toe_sendto(fd, "", 0, 0, (void *)&peer, sizeof peer) == 0);
    CHECK(toe_poll(&polled, 1, 20000) == 1 && polled.revents == POLLIN);
    CHECK(toe_read(fd, in, sizeof in) == 0);
    CHECK(toe_close(fd) == 0);
}

static void connected(void) {
    int fd = make(SOCK_NONBLOCK), set = toe_epoll_create1(0);
    struct sockaddr_in name;
    socklen_t len = sizeof name;
    CHECK(toe_connect(fd, (void *)&peer, sizeof peer) == 0);
    CHECK(toe_getsockname(fd, (void *)&name, &len) == 0 && name.sin_addr.s_addr == own.sin_addr.s_addr && name.sin_port != 0);
    CHECK(toe_getpeername(fd, (void *)&name, &len) == 0 && is(&name, &peer));
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    CHECK(toe_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(toe_epoll_wait(set, &event, 1, 0) == 0);
    for (int n = 0; n < 200; n++) {
        struct iovec parts[2] = {{.iov_base = "to", .iov_len = 2}, {.iov_base = "gether", .iov_len = 6}};
        CHECK(toe_writev(fd, parts, 2) == 8);
        CHECK(toe_epoll_wait(set, &event, 1, 20000) == 1 && event.data.fd == fd);
        struct iovec into[2] = {{.iov_base = in, .iov_len = 3}, {.iov_base = in + 10, .iov_len = 100}};
        CHECK(toe_readv(fd, into, 2) == 8 && memcmp(in, "tog", 3) == 0 && memcmp(in + 10, "ether", 5) == 0);
        CHECK(toe_recv(fd, in, 1, 0) == -1 && errno == EAGAIN);
    }
    /* A copy is the same socket; what nobody hears is told. */
    int copy = toe_fcntl(fd, F_DUPFD, 0);
    CHECK(copy >= 0 && toe_close(fd) == 0);
    CHECK(toe_fcntl(copy, F_SETFL, 0) >= 0);
    CHECK(toe_write(copy, "copy", 4) == 4 && toe_recv(copy, in, sizeof in, 0) == 4);
    struct sockaddr_in nobody = peer;
    nobody.sin_port = htons(ntohs(peer.sin_port) + 7);
    CHECK(toe_connect(copy, (void *)&nobody, sizeof nobody) == 0);
    CHECK(toe_send(copy, "x", 1, 0) == 1);
    CHECK(toe_recv(copy, in, 1, 0) == -1 && errno == ECONNREFUSED);
    struct sockaddr_in none = {.sin_family = AF_UNSPEC};
    CHECK(toe_connect(copy, (void *)&none, sizeof none) == 0);
    CHECK(toe_send(copy, "x", 1, 0) == -1 && errno == EDESTADDRREQ);
    CHECK(toe_close(copy) == 0 && toe_close(set) == 0);
}

enum { SEVERAL = 8 };

static void several(void) {
    int fd = make(0), on = 1;
    CHECK(toe_connect(fd, (void *)&peer, sizeof peer) == 0);
    CHECK(toe_setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof on) == 0);
    char out[SEVERAL][4], back[SEVERAL][8];
    union {
        char bytes[64];
        struct cmsghdr header;
    } control[SEVERAL];
    struct iovec vectors[SEVERAL];
    struct mmsghdr messages[SEVERAL] = {0};
    for (int n = 0; n < SEVERAL; n++) {
        snprintf(out[n], sizeof out[n], "m%d", n);
        vectors[n] = (struct iovec){.iov_base = out[n], .iov_len = 2};
        messages[n].msg_hdr = (struct msghdr){.msg_iov = &vectors[n], .msg_iovlen = 1};
    }
    CHECK(toe_sendmmsg(fd, messages, SEVERAL, 0) == SEVERAL && messages[SEVERAL - 1].msg_len == 2);
    int came = 0;
    while (came < SEVERAL) {
        for (int n = came; n < SEVERAL; n++) {
            vectors[n] = (struct iovec){.iov_base = back[n], .iov_len = sizeof back[n]};
            messages[n].msg_hdr = (struct msghdr){.msg_iov = &vectors[n], .msg_iovlen = 1, .msg_control = &control[n],
                                                  .msg_controllen = sizeof control[n]};
        }
        int more = toe_recvmmsg(fd, messages + came, SEVERAL - came, MSG_WAITFORONE, NULL);
        CHECK(more > 0);
        came += more;
    }
    for (int n = 0; n < SEVERAL; n++) {
        CHECK(messages[n].msg_len == 2 && memcmp(back[n], out[n], 2) == 0);
        struct cmsghdr *header = CMSG_FIRSTHDR(&messages[n].msg_hdr);
        CHECK(header != NULL && header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_PKTINFO);
        struct in_pktinfo info;
        memcpy(&info, CMSG_DATA(header), sizeof info);
        CHECK(info.ipi_addr.s_addr == own.sin_addr.s_addr);
    }
    /* A super-segment goes as four. */
    char large[400];
    memset(large, 'L', sizeof large);
    union {
        char bytes[CMSG_SPACE(sizeof(uint16_t))];
        struct cmsghdr header;
    } segments = {.header = {.cmsg_len = CMSG_LEN(sizeof(uint16_t)), .cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT}};
    uint16_t size = 100;
    memcpy(CMSG_DATA(&segments.header), &size, sizeof size);
    struct iovec whole = {.iov_base = large, .iov_len = sizeof large};
    struct msghdr message = {.msg_iov = &whole, .msg_iovlen = 1, .msg_control = &segments, .msg_controllen = sizeof segments};
    CHECK(toe_sendmsg(fd, &message, 0) == sizeof large);
    for (int n = 0; n < 4; n++)
        CHECK(toe_recv(fd, in, sizeof in, 0) == 100 && in[99] == 'L');
    CHECK(toe_close(fd) == 0);
}

/* Two sockets of this machine: by the kernel, and by a lane when that was asked for. */
static void local(void) {
    int a = make(0), b = make(0);
    struct sockaddr_in home = at("127.0.0.1", 0), name, from;
    socklen_t len = sizeof name;
    CHECK(toe_bind(a, (void *)&home, sizeof home) == 0 && toe_bind(b, (void *)&home, sizeof home) == 0);
    CHECK(toe_getsockname(b, (void *)&name, &len) == 0);
    for (int n = 0; n < 2000; n++) {
        CHECK(toe_sendto(a, &n, sizeof n, 0, (void *)&name, sizeof name) == sizeof n);
        int got = -1;
        len = sizeof from;
        CHECK(toe_recvfrom(b, &got, sizeof got, 0, (void *)&from, &len) == sizeof got && got == n);
        CHECK(from.sin_addr.s_addr == home.sin_addr.s_addr);
    }
    CHECK(toe_close(a) == 0 && toe_close(b) == 0);
}

int main(int count, char **args) {
    if (count != 4)
        return 2;
    own = at(args[1], 0);
    peer = at(args[2], atoi(args[3]));
    CHECK(toe_socket(AF_INET, SOCK_DGRAM, IPPROTO_TCP) == -1 && errno == EPROTONOSUPPORT);
    unconnected();
    connected();
    several();
    local();
    puts("all");
    return 0;
}
