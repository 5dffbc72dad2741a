/* sendfile and splice from a slow file and from one that fails in the middle, by plain calls: what is said here is the same on any stack.
 *
 *     odd_sendfile PORT FOLDER SIZE
 *
 * FOLDER is odd_disk's, with files of SIZE bytes.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checks.h"

static int listener;
static struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {0}};

/* Counts what comes, and looks whether it is the beginning of a file. */
static void *receive(void *came) {
    static unsigned char got[100000];
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    ssize_t n;
    while ((n = recv(fd, got, sizeof got, 0)) > 0)
        for (ssize_t i = 0; i < n; i++, ++*(size_t *)came)
            CHECK(got[i] == 1 + *(size_t *)came * 7 % 251);
    CHECK(n == 0);
    close(fd);
    return NULL;
}

static ssize_t by_sendfile(int file, int fd, off_t *from, size_t most) { return sendfile(fd, file, from, most); }

static ssize_t by_splice(int file, int fd, off_t *from, size_t most) {
    static int pipes[2] = {-1, -1};
    if (pipes[0] < 0)
        CHECK(pipe(pipes) == 0);
    loff_t place = *from;
    ssize_t put = splice(file, &place, pipes[1], NULL, most < 65536 ? most : 65536, 0);
    for (ssize_t left = put; left > 0;) {
        ssize_t n = splice(pipes[0], NULL, fd, NULL, (size_t)left, 0);
        CHECK(n > 0);
        left -= n;
    }
    *from += put > 0 ? put : 0;
    return put;
}

static void goes(const char *folder, const char *name, const char *how,
                 ssize_t (*send)(int file, int fd, off_t *from, size_t most), size_t size) {
    char path[4096];
    pthread_t receiver;
    size_t came = 0;
    off_t sent = 0;
    ssize_t n;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_RDONLY), fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(file >= 0 && fd >= 0 && pthread_create(&receiver, NULL, receive, &came) == 0);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    errno = 0;
    while ((n = send(file, fd, &sent, size)) > 0) {
    }
    int error = errno;
    close(fd);
    CHECK(pthread_join(receiver, NULL) == 0 && came == (size_t)sent);
    printf("%s by %s: %zu bytes, then %s\n", name, how, came, n == 0 ? "its end" : strerror(error));
    close(file);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    size_t size = strtoull(argv[3], NULL, 10);
    int on = 1;
    at.sin_port = htons((uint16_t)atoi(argv[1]));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    static const char *const files[] = {"plain", "failing"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        goes(argv[2], files[i], "sendfile", by_sendfile, size);
        goes(argv[2], files[i], "splice", by_splice, size);
    }
    puts("all");
    return 0;
}
