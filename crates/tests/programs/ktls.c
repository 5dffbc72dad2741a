/* TLS records on a socket (linux/tls.h), with fixed keys at both ends: prints "all" when everything was as Documentation/networking/tls.rst and the
 * kernel's self-tests (tools/testing/selftests/net/tls.c) say.
 *
 *     ktls PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.h"

/* As <linux/tls.h> has them. */
enum { SOL_TLS_ = 282, TLS_TX_ = 1, TLS_RX_ = 2, TLS_TX_ZEROCOPY_RO_ = 3, SET_TYPE = 1, GET_TYPE = 2, TLS_12 = 0x303, TLS_13 = 0x304 };
enum { GCM_128 = 51, GCM_256 = 52, CCM_128 = 53, CHACHA = 54, ALERT = 21, HANDSHAKE = 22, DATA = 23 };

static uint16_t port;
static int ends[2];
static unsigned char out[1 << 20], in[1 << 20];

static void connect_ends(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener, on = 1;
    CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    CHECK((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
    close(listener);
}

static void close_ends(void) {
    close(ends[0]);
    close(ends[1]);
}

/* struct tls12_crypto_info_*: all bytes but the head are `fill`, the record's number is 0. */
static socklen_t info(unsigned char *into, uint16_t version, uint16_t cipher, unsigned char fill) {
    socklen_t length = cipher == GCM_128 ? 40 : 56;
    memset(into, fill, length);
    memcpy(into, &version, 2);
    memcpy(into + 2, &cipher, 2);
    memset(into + length - 8, 0, 8);
    return length;
}

static int set_key(int fd, int direction, uint16_t version, uint16_t cipher, unsigned char fill) {
    unsigned char bytes[64];
    socklen_t length = info(bytes, version, cipher, fill);
    return setsockopt(fd, SOL_TLS_, direction, bytes, length);
}

static void join(int fd) { CHECK(setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof "tls") == 0); }

/* Keys at both ends, for both directions. */
static void secure(uint16_t version, uint16_t cipher) {
    for (int end = 0; end < 2; end++) {
        join(ends[end]);
        CHECK(set_key(ends[end], TLS_TX_, version, cipher, (unsigned char)(1 + end)) == 0);
        CHECK(set_key(ends[end], TLS_RX_, version, cipher, (unsigned char)(2 - end)) == 0);
    }
}

static void start(uint16_t version, uint16_t cipher) {
    connect_ends();
    secure(version, cipher);
}

static void take(int fd, size_t count) {
    for (size_t have = 0; have < count;) {
        ssize_t n = recv(fd, in + have, count - have, 0);
        CHECK(n > 0);
        have += (size_t)n;
    }
}

static ssize_t send_type(int fd, unsigned char type, const void *bytes, size_t length, int flags) {
    char control[CMSG_SPACE(1)] = {0};
    struct iovec part = {.iov_base = (void *)bytes, .iov_len = length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_TLS_;
    head->cmsg_type = SET_TYPE;
    head->cmsg_len = CMSG_LEN(1);
    *CMSG_DATA(head) = type;
    return sendmsg(fd, &message, flags);
}

/* The type of what was received, -1 if none was told. */
static ssize_t recv_type(int fd, void *into, size_t length, int flags, int *type) {
    char control[CMSG_SPACE(1)] = {0};
    struct iovec part = {.iov_base = into, .iov_len = length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(fd, &message, flags);
    struct cmsghdr *head = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
    *type = head && head->cmsg_level == SOL_TLS_ && head->cmsg_type == GET_TYPE ? *CMSG_DATA(head) : -1;
    return got;
}

static short ready(int fd) {
    struct pollfd polled = {.fd = fd, .events = POLLIN | POLLOUT};
    CHECK(poll(&polled, 1, 0) >= 0);
    return polled.revents;
}

/* Waits for what must come. */
static void wait_readable(int fd) {
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    CHECK(poll(&polled, 1, 10000) == 1);
}

static void options(void) {
    unsigned char bytes[64], back[64];
    char name[16];
    socklen_t length = sizeof name;
    connect_ends();
    int fd = ends[0];
    FAILS(set_key(fd, TLS_TX_, TLS_13, GCM_128, 1), ENOPROTOOPT);
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_ULP, name, &length) == 0 && length == 0);
    join(fd);
    FAILS(setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", 4), EEXIST);
    length = sizeof name;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_ULP, name, &length) == 0 && strcmp(name, "tls") == 0);
    /* Until there are keys it is as before. */
    CHECK(send(fd, "plain", 5, 0) == 5);
    take(ends[1], 5);
    CHECK(memcmp(in, "plain", 5) == 0);
    length = 40;
    FAILS(getsockopt(fd, SOL_TLS_, TLS_TX_, back, &length), EBUSY);
    FAILS(set_key(fd, TLS_TX_, 0x302, GCM_128, 1), EINVAL);
    FAILS(set_key(fd, TLS_TX_, TLS_13, CCM_128, 1), EINVAL);
    FAILS(setsockopt(fd, SOL_TLS_, TLS_TX_, bytes, 3), EINVAL);
    FAILS(setsockopt(fd, SOL_TLS_, TLS_TX_, bytes, info(bytes, TLS_13, GCM_256, 1) - 1), EINVAL);
    CHECK(set_key(fd, TLS_TX_, TLS_12, GCM_256, 1) == 0);
    FAILS(set_key(fd, TLS_TX_, TLS_12, GCM_256, 1), EBUSY);
    FAILS(set_key(fd, TLS_RX_, TLS_12, GCM_128, 1), EINVAL);
    FAILS(set_key(fd, TLS_RX_, TLS_13, GCM_256, 1), EINVAL);
    length = 4;
    CHECK(getsockopt(fd, SOL_TLS_, TLS_TX_, back, &length) == 0 && back[2] == GCM_256);
    length = info(bytes, TLS_12, GCM_256, 1);
    CHECK(getsockopt(fd, SOL_TLS_, TLS_TX_, back, &length) == 0 && memcmp(back, bytes, length) == 0);
    CHECK(send(fd, "x", 1, 0) == 1);
    CHECK(getsockopt(fd, SOL_TLS_, TLS_TX_, back, &length) == 0 && back[length - 1] == 1);
    length = 50;
    FAILS(getsockopt(fd, SOL_TLS_, TLS_TX_, back, &length), EINVAL);
    unsigned int on = 1;
    CHECK(setsockopt(fd, SOL_TLS_, TLS_TX_ZEROCOPY_RO_, &on, sizeof on) == 0);
    on = 2;
    FAILS(setsockopt(fd, SOL_TLS_, TLS_TX_ZEROCOPY_RO_, &on, sizeof on), EINVAL);
    length = sizeof on;
    CHECK(getsockopt(fd, SOL_TLS_, TLS_TX_ZEROCOPY_RO_, &on, &length) == 0 && on == 1);
    FAILS(setsockopt(fd, SOL_TLS_, 99, &on, sizeof on), ENOPROTOOPT);
    CHECK((fcntl(fd, F_GETFL) & (O_NOATIME | O_APPEND)) == 0);
    close_ends();
}

/* On the wire there is the record that RFC 8446 says, and no byte of the program's. */
static void wire(void) {
    connect_ends();
    join(ends[0]);
    CHECK(set_key(ends[0], TLS_TX_, TLS_13, GCM_128, 1) == 0);
    CHECK(send(ends[0], "secret", 6, 0) == 6);
    take(ends[1], 5 + 6 + 1 + 16);
    CHECK(in[0] == DATA && in[1] == 3 && in[2] == 3 && in[3] == 0 && in[4] == 23);
    CHECK(memmem(in, 28, "secret", 6) == NULL);
    close_ends();
}

static void calls(void) {
    int type;
    struct iovec parts[3] = {{.iov_base = out, .iov_len = 1}, {.iov_base = out + 1, .iov_len = 0}, {.iov_base = out + 1, .iov_len = 40000}};
    CHECK(writev(ends[0], parts, 3) == 40001);
    take(ends[1], 40001);
    CHECK(memcmp(in, out, 40001) == 0);
    /* A read gets several records, a peek looks at one. */
    CHECK(send(ends[0], "test_read_peek", 14, 0) == 14 && send(ends[0], "_mult_recs", 10, 0) == 10);
    CHECK(recv(ends[1], in, 14, MSG_PEEK) == 14 && memcmp(in, "test_read_peek", 14) == 0);
    CHECK(recv(ends[1], in, 24, MSG_WAITALL) == 24 && memcmp(in, "test_read_peek_mult_recs", 24) == 0);
    /* A record of which a part was read is still there, though nothing is left on the connection. */
    CHECK(send(ends[0], "abcdef", 6, 0) == 6);
    take(ends[1], 2);
    CHECK(ready(ends[1]) & POLLIN);
    CHECK(recv(ends[1], in, 9, MSG_DONTWAIT) == 4 && memcmp(in, "cdef", 4) == 0);
    CHECK(!(ready(ends[1]) & POLLIN));
    FAILS(recv(ends[1], in, 9, MSG_DONTWAIT), EAGAIN);
    /* With more to come there is no record yet. */
    CHECK(send(ends[0], "one ", 4, MSG_MORE) == 4);
    CHECK(!(ready(ends[1]) & POLLIN));
    CHECK(send(ends[0], "two", 3, 0) == 3);
    wait_readable(ends[1]);
    CHECK(recv(ends[1], in, 99, 0) == 7 && memcmp(in, "one two", 7) == 0);
    FAILS(send(ends[0], "x", 1, MSG_OOB), EOPNOTSUPP);
    /* Types. */
    CHECK(send(ends[0], "data", 4, 0) == 4 && send_type(ends[0], ALERT, "\1\0", 2, 0) == 2 && send(ends[0], "more", 4, 0) == 4);
    FAILS(send_type(ends[0], ALERT, "\1\0", 2, MSG_MORE), EINVAL);
    CHECK(recv(ends[1], in, 99, 0) == 4 && memcmp(in, "data", 4) == 0);
    wait_readable(ends[1]);
    FAILS(recv(ends[1], in, 99, 0), EIO);
    FAILS(read(ends[1], in, 99), EIO);
    CHECK(recv_type(ends[1], in, 99, MSG_PEEK, &type) == 2 && type == ALERT);
    CHECK(recv_type(ends[1], in, 99, 0, &type) == 2 && type == ALERT && in[0] == 1 && in[1] == 0);
    CHECK(recv_type(ends[1], in, 99, 0, &type) == 4 && type == DATA && memcmp(in, "more", 4) == 0);
    /* dup: the same connection, the same keys. */
    int copy = dup(ends[0]);
    CHECK(copy >= 0 && send(copy, "by copy", 7, 0) == 7 && close(copy) == 0 && send(ends[0], "!", 1, 0) == 1);
    take(ends[1], 8);
    CHECK(memcmp(in, "by copy!", 8) == 0);
}

static void files(void) {
    int file = memfd_create("bytes", 0), pipes[2];
    off_t at = 3;
    CHECK(file >= 0 && write(file, out, 300000) == 300000);
    CHECK(sendfile(ends[0], file, &at, 65536) == 65536 && at == 65539);
    take(ends[1], 65536);
    CHECK(memcmp(in, out + 3, 65536) == 0);
    /* Out of a pipe and into one. */
    CHECK(pipe(pipes) == 0 && write(pipes[1], out, 5000) == 5000);
    CHECK(splice(pipes[0], NULL, ends[0], NULL, 5000, 0) == 5000);
    for (size_t have = 0; have < 5000;) {
        ssize_t n = splice(ends[1], NULL, pipes[1], NULL, 5000 - have, 0);
        CHECK(n > 0 && read(pipes[0], in + have, (size_t)n) == n);
        have += (size_t)n;
    }
    CHECK(memcmp(in, out, 5000) == 0);
    close(pipes[0]);
    close(pipes[1]);
    close(file);
}

/* More than there is room for, without waiting: what is said to be sent arrives. */
static void full(void) {
    size_t sent = 0, got = 0;
    for (;;) {
        ssize_t n = send(ends[0], out + sent % 65536, 50000, MSG_DONTWAIT);
        if (n < 0) {
            CHECK(errno == EAGAIN && !(ready(ends[0]) & POLLOUT));
            break;
        }
        sent += (size_t)n;
        CHECK(sent < 1u << 30);
        /* The next call goes on where this one stopped. */
        if (n < 50000)
            break;
    }
    CHECK(sent > 50000);
    while (got < sent) {
        ssize_t n = recv(ends[1], in, sizeof in < sent - got ? sizeof in : sent - got, 0);
        CHECK(n > 0);
        got += (size_t)n;
    }
    FAILS(recv(ends[1], in, 1, MSG_DONTWAIT), EAGAIN);
    struct pollfd polled = {.fd = ends[0], .events = POLLOUT};
    CHECK(poll(&polled, 1, 10000) == 1);
}

static void rekey(uint16_t version, uint16_t cipher) {
    int type;
    if (version == TLS_12) {
        FAILS(set_key(ends[1], TLS_RX_, version, cipher, 9), EBUSY);
        return;
    }
    CHECK(send_type(ends[0], HANDSHAKE, "\30\0\0\1\0", 5, 0) == 5);
    CHECK(set_key(ends[0], TLS_TX_, version, cipher, 9) == 0);
    CHECK(send(ends[0], "new", 3, 0) == 3);
    CHECK(recv_type(ends[1], in, 99, 0, &type) == 5 && type == HANDSHAKE);
    FAILS(recv(ends[1], in, 99, 0), EKEYEXPIRED);
    CHECK(set_key(ends[1], TLS_RX_, version, cipher, 9) == 0);
    CHECK(recv(ends[1], in, 99, 0) == 3 && memcmp(in, "new", 3) == 0);
}

/* What a child does with the connection fails, and the parent goes on. */
static void forks(void) {
    CHECK(send(ends[0], "unread by then", 14, 0) == 14);
    wait_readable(ends[1]);
    take(ends[1], 7);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        FAILS(send(ends[0], "no", 2, MSG_NOSIGNAL), EOPNOTSUPP);
        FAILS(recv(ends[1], in, 9, 0), EOPNOTSUPP);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    take(ends[1], 7);
    CHECK(memcmp(in, "by then", 7) == 0);
    CHECK(send(ends[0], "still", 5, 0) == 5);
    take(ends[1], 5);
    CHECK(memcmp(in, "still", 5) == 0);
    /* One that another process may have gets no keys. */
    int was[2] = {ends[0], ends[1]};
    connect_ends();
    if ((child = fork()) == 0)
        _exit(0);
    CHECK(waitpid(child, &status, 0) == child);
    FAILS(setsockopt(ends[0], IPPROTO_TCP, TCP_ULP, "tls", 4), ENOENT);
    close_ends();
    ends[0] = was[0], ends[1] = was[1];
}

/* A program that was executed has the descriptor, and no keys. */
static void executes(const char *self) {
    char number[16];
    snprintf(number, sizeof number, "%d", ends[0]);
    pid_t child = fork();
    if (child == 0) {
        execl(self, self, "use", number, NULL);
        _exit(99);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(send(ends[0], "mine", 4, 0) == 4);
    take(ends[1], 4);
    CHECK(memcmp(in, "mine", 4) == 0);
}

static void ends_of_it(uint16_t version, uint16_t cipher) {
    /* An open record goes out before the end. */
    CHECK(send(ends[0], "last", 4, MSG_MORE) == 4 && shutdown(ends[0], SHUT_WR) == 0);
    CHECK(recv(ends[1], in, 99, 0) == 4 && memcmp(in, "last", 4) == 0);
    CHECK(recv(ends[1], in, 99, 0) == 0);
    CHECK(send(ends[1], "back", 4, 0) == 4 && recv(ends[0], in, 99, 0) == 4);
    close_ends();
    /* A record that somebody has changed: EBADMSG, and it stays. */
    connect_ends();
    join(ends[1]);
    CHECK(set_key(ends[1], TLS_RX_, version, cipher, 1) == 0);
    CHECK(send(ends[0], "\27\3\3\0\50 these are not the bytes of a record of ours", 46, 0) == 46);
    wait_readable(ends[1]);
    FAILS(recv(ends[1], in, 99, 0), EBADMSG);
    FAILS(recv(ends[1], in, 99, 0), EBADMSG);
    close_ends();
    /* Part of a record is not readable; the end in the middle of it is the end. */
    connect_ends();
    join(ends[1]);
    CHECK(set_key(ends[1], TLS_RX_, version, cipher, 1) == 0);
    CHECK(send(ends[0], "\27\3\3\0\50 a", 7, 0) == 7);
    FAILS(recv(ends[1], in, 99, MSG_DONTWAIT), EAGAIN);
    /* It may have come since. How long a record is, is known to who has looked at its header. */
    if (ready(ends[1]) & POLLIN)
        FAILS(recv(ends[1], in, 99, MSG_DONTWAIT), EAGAIN);
    CHECK(!(ready(ends[1]) & POLLIN));
    CHECK(shutdown(ends[0], SHUT_WR) == 0);
    wait_readable(ends[1]);
    CHECK(recv(ends[1], in, 99, 0) == 0);
    close_ends();
}

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525u + 1013904223u, *state >> 8; }

/* Two processes, everything at random, with epoll on one side. Connections that last leave the engine, and come back when a child is made. */
static void stream(uint16_t version, uint16_t cipher, uint32_t seed, size_t total) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener, on = 1, status;
    CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(listener);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
        join(fd);
        CHECK(set_key(fd, TLS_TX_, version, cipher, 1) == 0 && set_key(fd, TLS_RX_, version, cipher, 2) == 0);
        uint32_t random = seed;
        for (size_t sent = 0; sent < total;) {
            size_t length = 1 + next_random(&random) % (next_random(&random) % 4 ? 3000 : 200000);
            if (length > total - sent)
                length = total - sent;
            int more = sent + length < total && next_random(&random) % 8 == 0 ? MSG_MORE : 0;
            CHECK(send(fd, out + sent % 251, length, more) == (ssize_t)length);
            sent += length;
            if (!more && next_random(&random) % 16 == 0) {
                /* An answer: until now all has arrived. */
                CHECK(send_type(fd, HANDSHAKE, &sent, sizeof sent, 0) == sizeof sent);
                size_t back;
                CHECK(recv(fd, &back, sizeof back, MSG_WAITALL) == sizeof back && back == sent);
            }
            if (next_random(&random) % 64 == 0) {
                pid_t other = fork();
                if (other == 0)
                    _exit(0);
                CHECK(waitpid(other, &status, 0) == other && status == 0);
            }
        }
        CHECK(shutdown(fd, SHUT_WR) == 0 && recv(fd, in, 1, 0) == 0);
        _exit(0);
    }
    int fd = accept(listener, NULL, NULL), set = epoll_create1(0);
    CHECK(fd >= 0 && set >= 0);
    close(listener);
    join(fd);
    CHECK(set_key(fd, TLS_TX_, version, cipher, 2) == 0 && set_key(fd, TLS_RX_, version, cipher, 1) == 0);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    struct epoll_event event = {.events = EPOLLIN | (seed & 1 ? EPOLLET : 0)};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    uint32_t random = ~seed;
    for (size_t got = 0;;) {
        int type;
        size_t room = 1 + next_random(&random) % (next_random(&random) % 3 ? 5000 : 300000);
        ssize_t n = recv_type(fd, in, room < 8 ? 8 : room, 0, &type);
        if (n < 0) {
            CHECK(errno == EAGAIN);
            CHECK(epoll_wait(set, &event, 1, 20000) == 1);
            continue;
        }
        if (n == 0) {
            CHECK(got == total);
            break;
        }
        if (type == HANDSHAKE) {
            size_t said;
            memcpy(&said, in, sizeof said);
            CHECK(n == sizeof said && said == got);
            CHECK(send(fd, &said, sizeof said, 0) == sizeof said);
            continue;
        }
        CHECK(type == DATA && got + (size_t)n <= total);
        for (ssize_t at_byte = 0; at_byte < n; at_byte++)
            CHECK(in[at_byte] == (unsigned char)((got + (size_t)at_byte) % 251));
        got += (size_t)n;
    }
    close(fd);
    close(set);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "use") == 0) {
        int fd = atoi(arguments[2]);
        FAILS(send(fd, "not mine", 8, MSG_NOSIGNAL), EOPNOTSUPP);
        return 0;
    }
    CHECK(count >= 2);
    port = (uint16_t)atoi(arguments[1]);
    for (size_t n = 0; n < sizeof out; n++)
        out[n] = (unsigned char)(n % 251);
    options();
    wire();
    uint16_t versions[] = {TLS_12, TLS_13}, ciphers[] = {GCM_128, GCM_256, CHACHA};
    for (int version = 0; version < 2; version++)
        for (int cipher = 0; cipher < 3; cipher++) {
            uint16_t v = versions[version], c = ciphers[cipher];
            start(v, c);
            calls();
            files();
            full();
            forks();
            executes(arguments[0]);
            rekey(v, c);
            ends_of_it(v, c);
            stream(v, c, (uint32_t)(version * 3 + cipher), 6u << 20);
        }
    printf("all\n");
    return 0;
}
