/*
 * Arguments that are wrong, or at the edge, to the calls of the kernel and to those of the native interface: prints what each gave, and errno. The two
 * lists are compared (tests/programs/datagrams.rs). Pointers are null or good: a bad one ends a program that uses the library.
 *
 *   native_arguments kernel|toe
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <toe.h>
#include <unistd.h>

#include "checks.h"

/* All calls there are, by either. */
#define CALLS(X)                                                                                                       \
    X(int, socket, (int a, int b, int c), (a, b, c))                                                                   \
    X(int, bind, (int a, const struct sockaddr *b, socklen_t c), (a, b, c))                                            \
    X(int, listen, (int a, int b), (a, b))                                                                             \
    X(int, accept4, (int a, struct sockaddr *b, socklen_t *c, int d), (a, b, c, d))                                    \
    X(int, connect, (int a, const struct sockaddr *b, socklen_t c), (a, b, c))                                         \
    X(ssize_t, send, (int a, const void *b, size_t c, int d), (a, b, c, d))                                            \
    X(ssize_t, write, (int a, const void *b, size_t c), (a, b, c))                                                     \
    X(ssize_t, writev, (int a, const struct iovec *b, int c), (a, b, c))                                               \
    X(ssize_t, recv, (int a, void *b, size_t c, int d), (a, b, c, d))                                                  \
    X(ssize_t, read, (int a, void *b, size_t c), (a, b, c))                                                            \
    X(ssize_t, readv, (int a, const struct iovec *b, int c), (a, b, c))                                                \
    X(ssize_t, sendto, (int a, const void *b, size_t c, int d, const struct sockaddr *e, socklen_t f),                 \
      (a, b, c, d, e, f))                                                                                              \
    X(ssize_t, recvfrom, (int a, void *b, size_t c, int d, struct sockaddr *e, socklen_t *f), (a, b, c, d, e, f))      \
    X(ssize_t, sendmsg, (int a, const struct msghdr *b, int c), (a, b, c))                                             \
    X(ssize_t, recvmsg, (int a, struct msghdr *b, int c), (a, b, c))                                                   \
    X(int, sendmmsg, (int a, struct mmsghdr *b, unsigned c, int d), (a, b, c, d))                                      \
    X(int, recvmmsg, (int a, struct mmsghdr *b, unsigned c, int d, struct timespec *e), (a, b, c, d, e))               \
    X(int, shutdown, (int a, int b), (a, b))                                                                           \
    X(int, close, (int a), (a))                                                                                        \
    X(int, getsockname, (int a, struct sockaddr *b, socklen_t *c), (a, b, c))                                          \
    X(int, getpeername, (int a, struct sockaddr *b, socklen_t *c), (a, b, c))                                          \
    X(int, setsockopt, (int a, int b, int c, const void *d, socklen_t e), (a, b, c, d, e))                             \
    X(int, getsockopt, (int a, int b, int c, void *d, socklen_t *e), (a, b, c, d, e))                                  \
    X(int, poll, (struct pollfd * a, nfds_t b, int c), (a, b, c))                                                      \
    X(int, epoll_create, (int a), (a))                                                                                 \
    X(int, epoll_create1, (int a), (a))                                                                                \
    X(int, epoll_ctl, (int a, int b, int c, struct epoll_event *d), (a, b, c, d))                                      \
    X(int, epoll_wait, (int a, struct epoll_event *b, int c, int d), (a, b, c, d))

static int by_toe;
#define CALL(type, name, parameters, arguments)                                                                        \
    static type my_##name parameters { return by_toe ? toe_##name arguments : name arguments; }
CALLS(CALL)

/* The number of a descriptor is nobody's business. */
static int said(const char *what, long result, int is_fd) {
    int error = errno;
    printf("%s: %s%ld %s\n", what, is_fd && result >= 0 ? "fd " : "", is_fd && result >= 0 ? 0L : result,
           result < 0 ? strerrorname_np(error) : "");
    errno = 0;
    return (int)result;
}
#define SAY(call) said(#call, (long)my_##call, 0)
#define MAKE(call) said(#call, (long)my_##call, 1)

static char bytes[200];
static struct iovec many[1100];
static const struct sockaddr *const NOWHERE = NULL;

static struct sockaddr_in local(int family, int port) {
    return (struct sockaddr_in){
        .sin_family = family, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void sockets(void) {
    MAKE(socket(AF_INET, SOCK_STREAM | 0x40000000, 0));
    MAKE(socket(AF_INET, SOCK_DGRAM | 0x100, 0));
    MAKE(socket(12345, SOCK_STREAM, 0));
    MAKE(socket(-1, SOCK_STREAM, 0));
    MAKE(socket(AF_INET, 0, 0));
    MAKE(socket(AF_INET, SOCK_RDM, 0));
    MAKE(socket(AF_INET, SOCK_SEQPACKET, 0));
    MAKE(socket(AF_INET, 11, 0));
    MAKE(socket(AF_INET, 15, 0));
    MAKE(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
    MAKE(socket(AF_INET, SOCK_DGRAM, IPPROTO_TCP));
    MAKE(socket(AF_INET, SOCK_STREAM, -1));
    MAKE(socket(AF_INET, SOCK_STREAM, 300));
}

/* Descriptors that are none, or no sockets. */
static void wrong(int fd) {
    struct sockaddr_in name = local(AF_INET, 9);
    struct sockaddr *at = (void *)&name;
    socklen_t len = sizeof name;
    struct msghdr message = {0};
    struct mmsghdr messages[1] = {0};
    int value = 0;
    SAY(bind(fd, at, len));
    SAY(listen(fd, 1));
    SAY(accept4(fd, NULL, NULL, 0));
    SAY(accept4(fd, NULL, NULL, -1));
    SAY(connect(fd, at, len));
    SAY(send(fd, bytes, 1, 0));
    SAY(recv(fd, bytes, 1, MSG_DONTWAIT));
    SAY(recv(fd, bytes, 0, MSG_DONTWAIT));
    SAY(sendto(fd, bytes, 1, 0, at, len));
    SAY(recvfrom(fd, bytes, 1, MSG_DONTWAIT, at, &len));
    SAY(sendmsg(fd, &message, 0));
    SAY(recvmsg(fd, &message, MSG_DONTWAIT));
    SAY(sendmmsg(fd, messages, 1, 0));
    SAY(sendmmsg(fd, messages, 0, 0));
    SAY(sendmmsg(fd, NULL, 1, 0));
    SAY(recvmmsg(fd, messages, 1, MSG_DONTWAIT, NULL));
    SAY(recvmmsg(fd, messages, 0, MSG_DONTWAIT, NULL));
    SAY(shutdown(fd, SHUT_RD));
    SAY(shutdown(fd, 9));
    SAY(getsockname(fd, at, &len));
    SAY(getpeername(fd, at, &len));
    SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value));
    SAY(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &len));
}

static void names(int fd, int other) {
    struct sockaddr_in name = local(AF_INET, 0), of_another = local(AF_INET6, 0);
    struct sockaddr *at = (void *)&name;
    socklen_t len, huge = (socklen_t)-1;
    SAY(bind(fd, NOWHERE, 16));
    SAY(bind(fd, NOWHERE, 0));
    SAY(bind(fd, at, 0));
    SAY(bind(fd, at, 15));
    SAY(bind(fd, at, 129));
    SAY(bind(fd, at, huge));
    SAY(bind(fd, (void *)&of_another, 16));
    SAY(connect(fd, NOWHERE, 16));
    SAY(connect(fd, at, 0));
    SAY(connect(fd, at, 129));
    SAY(connect(fd, at, huge));
    SAY(connect(fd, (void *)&of_another, 16));
    len = sizeof name;
    SAY(getpeername(fd, at, &len));
    for (int room = 0; room < 20; room += 8) {
        len = room;
        memset(&name, 0, sizeof name);
        SAY(getsockname(other, at, &len));
        printf("%d: %d %d\n", room, len, name.sin_family);
    }
    len = huge;
    SAY(getsockname(other, at, &len));
    SAY(getsockname(other, at, NULL));
    len = 16;
    SAY(getsockname(other, NULL, &len));
    len = 0;
    SAY(getsockname(other, NULL, &len));
}

static void options(int fd) {
    int value = 1;
    char large[64] = {0};
    socklen_t len = sizeof value, huge = (socklen_t)-1;
    SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, 3));
    SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, 0));
    SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, NULL, 0));
    SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, NULL, 4));
    SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, huge));
    SAY(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, large, sizeof large));
    SAY(setsockopt(fd, SOL_SOCKET, 12345, &value, sizeof value));
    SAY(setsockopt(fd, SOL_SOCKET, 12345, NULL, 4));
    SAY(setsockopt(fd, 12345, 1, &value, sizeof value));
    SAY(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof value));
    SAY(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, NULL, &len));
    SAY(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, NULL));
    SAY(getsockopt(fd, SOL_SOCKET, 12345, NULL, &len));
    SAY(getsockopt(fd, 12345, 1, &value, &len));
    for (int room = 0; room < 12; room += 3) {
        len = room;
        SAY(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len));
        printf("%d: %d\n", room, len);
    }
    len = 0;
    SAY(getsockopt(fd, SOL_SOCKET, SO_TYPE, NULL, &len));
    len = huge;
    SAY(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len));
}

/* Nothing is on its way to it. */
static void data(int one) {
    struct iovec vector = {bytes, 1}, none = {NULL, 0}, negative = {bytes, (size_t)-1};
    struct mmsghdr messages[2] = {0};
    SAY(read(one, bytes, 0));
    SAY(read(one, NULL, 0));
    SAY(readv(one, &none, 1));
    SAY(readv(one, NULL, 0));
    SAY(readv(one, &vector, -1));
    SAY(readv(one, &vector, 1025));
    SAY(readv(one, many, 1025));
    SAY(readv(one, NULL, 1));
    SAY(readv(one, &negative, 1));
    SAY(writev(one, &vector, -1));
    SAY(writev(one, many, 1025));
    SAY(writev(one, NULL, 1));
    SAY(writev(one, &negative, 1));
    SAY(recv(one, bytes, 1, MSG_DONTWAIT));
    SAY(sendmmsg(one, messages, 0, 0));
    SAY(sendmmsg(one, NULL, 1, 0));
    SAY(recvmmsg(one, messages, 0, MSG_DONTWAIT, NULL));
    SAY(recvmmsg(one, NULL, 1, MSG_DONTWAIT, NULL));
}

static void datagrams(void) {
    int one = MAKE(socket(AF_INET, SOCK_DGRAM, 0)), two = MAKE(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in name = local(AF_INET, 0), to, of_none, of_another, from;
    socklen_t len = sizeof to, huge = (socklen_t)-1;
    CHECK(my_bind(two, (void *)&name, sizeof name) == 0 && my_getsockname(two, (void *)&to, &len) == 0);
    names(one, two);
    options(one);
    SAY(listen(one, 1));
    SAY(accept4(one, NULL, NULL, 0));
    SAY(send(one, bytes, 1, 0));
    SAY(write(one, bytes, 0));
    of_none = of_another = to;
    of_none.sin_family = AF_UNSPEC;
    of_another.sin_family = AF_INET6;
    struct sockaddr *at = (void *)&to;
    SAY(sendto(one, bytes, 1, 0, at, 0));
    SAY(sendto(one, bytes, 1, 0, at, 15));
    SAY(sendto(one, bytes, 1, 0, at, 129));
    SAY(sendto(one, bytes, 1, 0, at, huge));
    SAY(sendto(one, bytes, 1, 0, NOWHERE, 16));
    SAY(sendto(one, bytes, 1, 0, (void *)&of_another, 16));
    struct sockaddr_in no_port = local(AF_INET, 0);
    SAY(sendto(one, bytes, 1, 0, (void *)&no_port, 16));
    SAY(sendto(one, bytes, 100000, 0, at, 16));
    /* These go, in this order. */
    SAY(sendto(one, bytes, 1, 0, (void *)&of_none, 16));
    SAY(sendto(one, NULL, 0, 0, at, 16));
    SAY(sendto(one, bytes, 2, 0, at, 16));
    SAY(sendto(one, bytes, 3, 0, at, 16));
    SAY(sendto(one, bytes, 4, 0, at, 16));
    SAY(read(two, bytes, 0));
    SAY(recv(two, bytes, 10, 0));
    SAY(recv(two, NULL, 0, 0));
    len = sizeof from;
    SAY(recvfrom(two, bytes, 10, 0, (void *)&from, &len));
    printf("%d %d\n", len, from.sin_family);
    len = 4;
    SAY(recvfrom(two, bytes, 10, 0, (void *)&from, &len));
    printf("%d\n", len);
    len = huge;
    SAY(recvfrom(two, bytes, 10, 0, (void *)&from, &len));
    SAY(recvfrom(two, bytes, 10, MSG_DONTWAIT, (void *)&from, NULL));
    SAY(sendto(one, bytes, 5, 0, at, 16));
    SAY(recvfrom(two, bytes, 10, 0, (void *)&from, NULL));
    SAY(recv(two, bytes, 10, MSG_DONTWAIT));

    struct iovec vector = {bytes, 1};
    struct msghdr message = {.msg_name = at, .msg_namelen = 16, .msg_iov = &vector, .msg_iovlen = 1};
    SAY(sendmsg(one, NULL, 0));
    SAY(recvmsg(one, NULL, MSG_DONTWAIT));
    message.msg_namelen = huge;
    SAY(sendmsg(one, &message, 0));
    SAY(recvmsg(two, &message, MSG_DONTWAIT));
    message.msg_namelen = 0;
    SAY(sendmsg(one, &message, 0));
    message.msg_namelen = 16;
    message.msg_iov = many;
    message.msg_iovlen = 1025;
    SAY(sendmsg(one, &message, 0));
    SAY(recvmsg(two, &message, MSG_DONTWAIT));
    message.msg_iovlen = 1024;
    SAY(sendmsg(one, &message, 0));
    message.msg_iovlen = 0;
    SAY(sendmsg(one, &message, 0));
    SAY(recv(two, bytes, 10, 0));
    SAY(recv(two, bytes, 10, 0));
    message.msg_iov = NULL;
    message.msg_iovlen = 1;
    SAY(sendmsg(one, &message, 0));

    struct mmsghdr messages[3] = {0};
    for (int i = 0; i < 3; i++)
        messages[i].msg_hdr = (struct msghdr){.msg_name = at, .msg_namelen = 16, .msg_iov = &vector, .msg_iovlen = 1};
    messages[1].msg_hdr.msg_namelen = 3;
    SAY(sendmmsg(one, messages, 3, 0));
    SAY(sendmmsg(one, messages + 1, 2, 0));
    for (int i = 0; i < 3; i++)
        messages[i].msg_hdr.msg_name = NULL;
    struct timespec limit = {.tv_nsec = 1000000000};
    SAY(recvmmsg(two, messages, 3, MSG_DONTWAIT, &limit));
    limit = (struct timespec){.tv_sec = -1};
    SAY(recvmmsg(two, messages, 3, MSG_DONTWAIT, &limit));
    limit = (struct timespec){.tv_sec = LONG_MAX};
    SAY(recvmmsg(two, messages, 3, MSG_DONTWAIT, &limit));
    SAY(recvmmsg(two, messages, 3, MSG_DONTWAIT, &limit));
    limit = (struct timespec){.tv_sec = 100};
    SAY(sendto(one, bytes, 1, 0, at, 16));
    SAY(recvmmsg(two, messages, 1, 0, &limit));
    printf("%d\n", limit.tv_sec == 99);

    CHECK(my_connect(one, at, 16) == 0);
    SAY(connect(one, at, 3));
    SAY(connect(one, NOWHERE, 16));
    SAY(connect(one, (void *)&of_another, 16));
    SAY(send(one, bytes, 1, 0));
    data(two);
    SAY(shutdown(one, 3));
    SAY(shutdown(one, -1));
    SAY(shutdown(two, SHUT_RD));
    SAY(close(one));
    SAY(close(one));
    wrong(one);
    SAY(close(two));
}

static void streams(void) {
    int listener = MAKE(socket(AF_INET, SOCK_STREAM, 0)), fresh = MAKE(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in name = local(AF_INET, 0), to;
    socklen_t len = sizeof to;
    names(fresh, listener);
    options(fresh);
    SAY(shutdown(fresh, SHUT_WR));
    SAY(shutdown(fresh, 9));
    SAY(accept4(fresh, NULL, NULL, 0));
    SAY(accept4(fresh, NULL, NULL, 1));
    SAY(read(fresh, bytes, 0));
    SAY(close(fresh));
    CHECK(my_bind(listener, (void *)&name, sizeof name) == 0);
    SAY(listen(listener, -1));
    CHECK(my_getsockname(listener, (void *)&to, &len) == 0);
    SAY(connect(listener, (void *)&to, sizeof to));
    int one = MAKE(socket(AF_INET, SOCK_STREAM, 0));
    SAY(connect(one, (void *)&to, sizeof to));
    SAY(connect(one, (void *)&to, sizeof to));
    int two = MAKE(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
    SAY(listen(two, 1));
    data(one);
    struct iovec null = {NULL, 1};
    SAY(writev(one, &null, 1));
    SAY(send(one, NULL, 1, 0));
    SAY(sendto(one, bytes, 1, 0, (void *)&to, 129));
    SAY(write(one, NULL, 0));
    SAY(write(one, bytes, 3));
    struct pollfd polled = {.fd = two, .events = POLLIN};
    SAY(poll(&polled, 1, -1));
    struct sockaddr_in from;
    len = sizeof from;
    SAY(recvfrom(two, bytes, 1, 0, (void *)&from, &len));
    printf("%d\n", len);
    SAY(recvfrom(two, bytes, 1, 0, (void *)&from, NULL));
    SAY(recv(two, bytes, 0, 0));
    SAY(recv(two, bytes, 10, 0));
    SAY(shutdown(one, -1));
    SAY(close(two));
    SAY(close(two));
    wrong(two);
    SAY(close(one));
    SAY(close(listener));
}

static void readiness(void) {
    MAKE(epoll_create(0));
    MAKE(epoll_create(-1));
    MAKE(epoll_create1(1));
    int set = MAKE(epoll_create1(0)), fd = MAKE(socket(AF_INET, SOCK_DGRAM, 0)), tcp = MAKE(socket(AF_INET, SOCK_STREAM, 0));
    struct epoll_event event = {.events = EPOLLIN};
    int fds[] = {fd, tcp};
    for (int i = 0; i < 2; i++) {
        SAY(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], NULL));
        SAY(epoll_ctl(set, EPOLL_CTL_MOD, fds[i], &event));
        SAY(epoll_ctl(set, EPOLL_CTL_DEL, fds[i], NULL));
        SAY(epoll_ctl(set, 9, fds[i], &event));
        SAY(epoll_ctl(fds[i], EPOLL_CTL_ADD, fds[i], &event));
        SAY(epoll_ctl(fds[i], EPOLL_CTL_ADD, fds[!i], &event));
        SAY(epoll_ctl(-1, EPOLL_CTL_ADD, fds[i], &event));
        SAY(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event));
        SAY(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &event));
        SAY(epoll_ctl(set, EPOLL_CTL_DEL, fds[i], NULL));
    }
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, set, &event));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, -1, &event));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, 12345, &event));
    SAY(epoll_wait(set, &event, 0, 0));
    SAY(epoll_wait(set, &event, -1, 0));
    SAY(epoll_wait(set, &event, INT_MAX, 0));
    SAY(epoll_wait(-1, &event, 1, 0));
    SAY(epoll_wait(fd, &event, 1, 0));
    SAY(epoll_wait(tcp, &event, 1, 0));
    SAY(epoll_wait(set, &event, 1, 0));
    struct pollfd none[2] = {{.fd = -1}, {.fd = 12345}};
    SAY(poll(none, 2, 0));
    printf("%d %d\n", none[0].revents, none[1].revents);
    SAY(poll(NULL, 1, 0));
    SAY(poll(NULL, 0, 0));
    SAY(poll(none, (nfds_t)-1, 0));
}

int main(int count, char **words) {
    CHECK(count == 2);
    by_toe = strcmp(words[1], "toe") == 0;
    for (int i = 0; i < 1100; i++)
        many[i] = (struct iovec){bytes, i == 0};
    sockets();
    int file = open("/dev/null", O_RDWR);
    wrong(-1);
    wrong(file);
    datagrams();
    streams();
    readiness();
    return 0;
}
