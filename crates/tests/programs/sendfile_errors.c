/* What sendfile says of what cannot be, by plain calls: what is printed is the same on any stack.
 *
 *     sendfile_errors PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checks.h"

static int ends[2];

static void say_to(int to, const char *what, int file, off_t from, size_t count) {
    off_t place = from;
    ssize_t sent = sendfile(to, file, &place, count);
    printf("%s: %zd (%s), from %jd", what, sent, sent < 0 ? strerror(errno) : "so many", (intmax_t)place);
    sent = sendfile(to, file, NULL, count);
    printf(", where it stands %zd (%s)\n", sent, sent < 0 ? strerror(errno) : "so many");
}

static void say(const char *what, int file, off_t from, size_t count) { say_to(ends[0], what, file, from, count); }

int main(int argc, char **argv) {
    CHECK(argc == 2);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    at.sin_port = htons((uint16_t)atoi(argv[1]));
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, pipes[2];
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    CHECK((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
    int file = memfd_create("some", 0);
    CHECK(file >= 0 && ftruncate(file, 1000) == 0 && pipe(pipes) == 0);
    say("all there is", file, 0, 5000);
    say("more than any call moves", file, 0, SIZE_MAX);
    say("just so many", file, 0, SSIZE_MAX);
    say("past the last position", file, INT64_MAX - 10, 11);
    say("before the first", file, -1, 10);
    say("the writing end of a pipe", pipes[1], 0, 10);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    say("a file that is open for writing", open(path, O_WRONLY), 0, 10);
    say("a folder", open("/", O_RDONLY), 0, 10);
    say("a path", open("/", O_PATH), 0, 10);
    say("no file", 12345, 0, 10);
    int set = epoll_create1(0);
    for (size_t count = 0; count < 2; count++) {
        say("an epoll set", set, 0, count);
        say_to(listener, "an epoll set to a listener", set, 0, count);
        say_to(listener, "the writing end of a pipe to a listener", pipes[1], 0, count);
        say_to(listener, "a folder to a listener", open("/", O_RDONLY), 0, count);
    }
    puts("all");
    return 0;
}
