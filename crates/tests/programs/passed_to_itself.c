/* A process closes its descriptor of a connection while another is on its way to it, in a message of its own. What had come by then, and what comes
 * until it takes that one out, is there to be read. Exits with 0 if all that was sent has come, once and in its order.
 *
 *     passed_to_itself ROUNDS
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checks.h"

/* Bytes of a round: read before the message, before the close, and after it; sent before the message, before the close, after it, and last. */
enum { READ_FIRST = 2, READ_BEFORE_CLOSE = 1, PIECE = 4, ROUND = 4 * PIECE };

static char next_sent, next_read;

static void put(int to) {
    char bytes[PIECE];
    for (int i = 0; i < PIECE; i++) bytes[i] = next_sent++;
    CHECK(send(to, bytes, PIECE, MSG_NOSIGNAL) == PIECE);
}

static void take(int from, int count) {
    char bytes[ROUND];
    CHECK(recv(from, bytes, (size_t)count, MSG_WAITALL) == count);
    for (int i = 0; i < count; i++) CHECK(bytes[i] == next_read++);
}

/* Messages with one descriptor. */
static ssize_t pass(int by, int *fd, ssize_t (*call)(int, struct msghdr *)) {
    char byte = 0, control[CMSG_SPACE(sizeof *fd)] = {0};
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    *rights = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof *fd)};
    memcpy(CMSG_DATA(rights), fd, sizeof *fd);
    ssize_t done = call(by, &message);
    memcpy(fd, CMSG_DATA(rights), sizeof *fd);
    return done;
}

static ssize_t send_it(int by, struct msghdr *message) { return sendmsg(by, message, 0); }
static ssize_t take_it(int by, struct msghdr *message) { return recvmsg(by, message, 0); }

int main(int argc, char **argv) {
    CHECK(argc == 2);
    /* Bytes that are lost are waited for. */
    alarm(60);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0), way[2];
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &size) == 0 && connect(client, (struct sockaddr *)&at, size) == 0);
    int server = accept(listener, NULL, NULL);
    CHECK(server >= 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, way) == 0);
    for (int round = 0; round < atoi(argv[1]); round++) {
        put(client);
        take(server, READ_FIRST);
        int passed = server;
        CHECK(pass(way[0], &passed, send_it) == 1);
        put(client);
        take(server, READ_BEFORE_CLOSE);
        CHECK(close(server) == 0);
        put(client);
        /* The client looks at what there is for it, and with that its library at what has come for the server. */
        CHECK(poll(&(struct pollfd){.fd = client, .events = POLLIN}, 1, 0) == 0);
        CHECK(pass(way[1], &server, take_it) == 1);
        put(client);
        take(server, ROUND - READ_FIRST - READ_BEFORE_CLOSE);
    }
    puts("all");
    return 0;
}
