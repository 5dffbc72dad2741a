/* What a process is told of a connection that a child has taken over by exec, at its first look after that: what is printed is the
 * same on any stack.
 *
 *     looks_after_exec PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.h"

/* The child: ends reading, says so, and stays until its input ends. */
static int take_over(int connection) {
    CHECK(shutdown(connection, SHUT_RD) == 0);
    char byte = 0;
    CHECK(write(1, &byte, 1) == 1);
    return (int)read(0, &byte, 1);
}

static int count_of(int connection, unsigned long request) {
    int count = -1;
    CHECK(ioctl(connection, request, &count) == 0);
    return count;
}

static int look(const char *kind, int connection) {
    struct sockaddr_in peer;
    socklen_t size = sizeof peer;
    struct pollfd polled = {.fd = connection, .events = POLLIN | POLLRDHUP};
    char bytes[200];
    switch (kind[0]) {
    case 'F':
        return count_of(connection, FIONREAD);
    case 'O':
        return count_of(connection, SIOCOUTQ);
    case 'P':
        return getpeername(connection, (struct sockaddr *)&peer, &size);
    case 'E': {
        int error = -1;
        socklen_t error_size = sizeof error;
        CHECK(getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &error_size) == 0);
        return error;
    }
    case 'W':
        poll(&polled, 1, 0);
        return polled.revents;
    default:
        return (int)recv(connection, bytes, sizeof bytes, MSG_DONTWAIT);
    }
}

int main(int argc, char **argv) {
    if (argc == 3) return take_over(atoi(argv[2]));
    CHECK(argc == 2);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    at.sin_port = htons((uint16_t)atoi(argv[1]));
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    static const char *const kinds[] = {"FIONREAD", "OUTQ", "PEER", "ERROR", "WAIT", "RECV"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int ends[2], to_child[2], from_child[2];
        CHECK((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
        CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
        char bytes[100] = "";
        CHECK(write(ends[0], bytes, sizeof bytes) == sizeof bytes);
        struct pollfd polled = {.fd = ends[1], .events = POLLIN};
        CHECK(poll(&polled, 1, 5000) == 1);
        CHECK(pipe(to_child) == 0 && pipe(from_child) == 0);
        pid_t child = fork();
        if (child == 0) {
            CHECK(dup2(to_child[0], 0) == 0 && dup2(from_child[1], 1) == 1);
            close(to_child[1]);
            char number[16];
            snprintf(number, sizeof number, "%d", ends[1]);
            execl("/proc/self/exe", argv[0], "child", number, (char *)NULL);
            _exit(99);
        }
        close(from_child[1]);
        CHECK(read(from_child[0], bytes, 1) == 1);
        printf("%s: %d\n", kinds[i], look(kinds[i], ends[1]));
        fflush(stdout);
        close(to_child[0]), close(to_child[1]), close(from_child[0]);
        CHECK(waitpid(child, NULL, 0) == child);
        close(ends[0]), close(ends[1]);
    }
    puts("all");
    return 0;
}
