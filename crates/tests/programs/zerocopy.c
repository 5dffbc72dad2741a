/* MSG_ZEROCOPY and its completions on the error queue, over one connection of this process: prints what came, the same on every stack but for
 * how ranges were cut, of which it prints the sum.
 *
 *     zerocopy IP PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checks.h"

enum { SIZE = 40000 };
static unsigned char bytes[SIZE], got[SIZE];
static int ends[2], is_v6;

static void connect_ends(const char *ip, const char *port, int before) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    struct sockaddr_in6 at6 = {.sin6_family = AF_INET6, .sin6_port = at.sin_port};
    is_v6 = inet_pton(AF_INET, ip, &at.sin_addr) != 1;
    CHECK(!is_v6 || inet_pton(AF_INET6, ip, &at6.sin6_addr) == 1);
    struct sockaddr *address = is_v6 ? (struct sockaddr *)&at6 : (struct sockaddr *)&at;
    socklen_t length = is_v6 ? sizeof at6 : sizeof at;
    int listener, on = 1;
    CHECK((listener = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(listener, address, length) == 0 && listen(listener, 1) == 0);
    CHECK((ends[0] = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0)) >= 0);
    if (before)
        CHECK(setsockopt(ends[0], SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0);
    CHECK(connect(ends[0], address, length) == 0);
    CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
    close(listener);
}

static void take(size_t count) {
    for (size_t have = 0; have < count;) {
        ssize_t n = recv(ends[1], got + have, count - have, 0);
        CHECK(n > 0);
        have += (size_t)n;
    }
    CHECK(memcmp(got, bytes, count) == 0);
}

/* One completion: adds its calls to `next`, where it has to begin. Returns -1 and errno if there is none. */
static int completed(uint32_t *next, int *copied) {
    char control[128];
    struct iovec none = {0};
    struct sockaddr_in6 name;
    struct msghdr message = {.msg_iov = &none, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control,
                             .msg_name = &name, .msg_namelen = sizeof name};
    ssize_t n = recvmsg(ends[0], &message, MSG_ERRQUEUE);
    if (n < 0)
        return -1;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    CHECK(n == 0 && head != NULL && message.msg_flags == MSG_ERRQUEUE && message.msg_namelen == 0);
    CHECK(head->cmsg_level == (is_v6 ? SOL_IPV6 : SOL_IP) && head->cmsg_type == (is_v6 ? IPV6_RECVERR : IP_RECVERR));
    CHECK(head->cmsg_len ==
          CMSG_LEN(sizeof(struct sock_extended_err) + (is_v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in))));
    CHECK(CMSG_NXTHDR(&message, head) == NULL);
    struct sock_extended_err error;
    memcpy(&error, CMSG_DATA(head), sizeof error);
    CHECK(error.ee_errno == 0 && error.ee_origin == SO_EE_ORIGIN_ZEROCOPY && error.ee_type == 0);
    CHECK(error.ee_info == *next && error.ee_data >= error.ee_info);
    *copied = error.ee_code == SO_EE_CODE_ZEROCOPY_COPIED;
    *next = error.ee_data + 1;
    return 0;
}

static void all_completed(uint32_t *next, uint32_t until) {
    int copied = 0;
    struct pollfd polled = {.fd = ends[0]};
    while (*next < until) {
        /* Nothing was asked for: an error is told all the same. */
        CHECK(poll(&polled, 1, 10000) == 1 && polled.revents == POLLERR);
        CHECK(completed(next, &copied) == 0 && copied);
    }
    CHECK(*next == until);
    CHECK(poll(&polled, 1, 0) == 0);
    CHECK(completed(next, &copied) == -1 && errno == EAGAIN);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (unsigned char)(i * 7 + i / 251);
    uint32_t next = 0;
    int on = 1, off = 0, two = 2, value = -1, copied;
    socklen_t length = sizeof value;
    connect_ends(argv[1], argv[2], 0);
    /* Not asked for: sent as ever, and nothing is told. */
    CHECK(getsockopt(ends[0], SOL_SOCKET, SO_ZEROCOPY, &value, &length) == 0 && value == 0);
    CHECK(send(ends[0], bytes, SIZE, MSG_ZEROCOPY) == SIZE);
    take(SIZE);
    CHECK(completed(&next, &copied) == -1 && errno == EAGAIN);
    CHECK(setsockopt(ends[0], SOL_SOCKET, SO_ZEROCOPY, &two, sizeof two) == -1 && errno == EINVAL);
    CHECK(setsockopt(ends[0], SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0);
    CHECK(getsockopt(ends[0], SOL_SOCKET, SO_ZEROCOPY, &value, &length) == 0 && value == 1);
    /* Calls of all kinds are numbered one after another; one of nothing, and one without the flag, are not. */
    struct iovec parts[] = {{bytes, 10}, {bytes + 10, SIZE - 10}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    CHECK(send(ends[0], bytes, SIZE, MSG_ZEROCOPY) == SIZE);
    take(SIZE);
    CHECK(sendmsg(ends[0], &message, MSG_ZEROCOPY) == SIZE);
    take(SIZE);
    CHECK(send(ends[0], bytes, 0, MSG_ZEROCOPY) == 0 && send(ends[0], bytes, 5, 0) == 5);
    take(5);
    CHECK(sendto(ends[0], bytes, 1, MSG_ZEROCOPY, NULL, 0) == 1);
    take(1);
    all_completed(&next, 3);
    printf("told of %u calls, copied\n", next);
    /* An epoll set hears of it, once on an edge; recv takes one, too. */
    struct epoll_event event = {.events = EPOLLET};
    int epoll = epoll_create1(0);
    CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0);
    CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
    CHECK(send(ends[0], bytes, 100, MSG_ZEROCOPY) == 100);
    take(100);
    CHECK(epoll_wait(epoll, &event, 1, 10000) == 1 && event.events == EPOLLERR);
    CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
    CHECK(recv(ends[0], got, sizeof got, MSG_ERRQUEUE) == 0);
    CHECK(recv(ends[0], got, sizeof got, MSG_ERRQUEUE) == -1 && errno == EAGAIN);
    next++;
    /* It is no error of the connection's. */
    CHECK(send(ends[0], bytes, 100, MSG_ZEROCOPY) == 100);
    take(100);
    CHECK(getsockopt(ends[0], SOL_SOCKET, SO_ERROR, &value, &length) == 0 && value == 0);
    CHECK(send(ends[1], bytes, 100, 0) == 100 && recv(ends[0], got, 100, MSG_WAITALL) == 100);
    all_completed(&next, 5);
    CHECK(setsockopt(ends[0], SOL_SOCKET, SO_ZEROCOPY, &off, sizeof off) == 0);
    CHECK(send(ends[0], bytes, 100, MSG_ZEROCOPY) == 100);
    take(100);
    all_completed(&next, 5);
    /* Said before there is a connection. */
    close(ends[0]);
    close(ends[1]);
    connect_ends(argv[1], argv[2], 1);
    next = 0;
    CHECK(send(ends[0], bytes, SIZE, MSG_ZEROCOPY) == SIZE);
    take(SIZE);
    all_completed(&next, 1);
    puts("all");
    return 0;
}
