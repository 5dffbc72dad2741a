/* A file by a pipe to a connection, and from there by a pipe to a file, as proxies and copiers do it: in odd parts, with pipes and sockets that are
 * full. Checks itself; the same on every stack.
 *
 *     splice PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checks.h"

enum { SIZE = 8 << 20 };
static int ends[2], from, to;
static uint32_t state = 99;

static size_t part(size_t most) {
    state = state * 1664525 + 1013904223;
    return 1 + (state >> 8) % most;
}

static void connect_ends(uint16_t port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    CHECK(listener >= 0 && setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    CHECK((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
    close(listener);
}

static void *into_file(void *unused) {
    int pipes[2];
    ssize_t came;
    CHECK(pipe(pipes) == 0);
    while ((came = splice(ends[1], NULL, pipes[1], NULL, 50000, SPLICE_F_MOVE | SPLICE_F_MORE)) > 0)
        while (came > 0) {
            ssize_t put = splice(pipes[0], NULL, to, NULL, (size_t)came, SPLICE_F_MOVE);
            CHECK(put > 0);
            came -= put;
        }
    CHECK(came == 0);
    return unused;
}

static void all_of_a_file(void) {
    pthread_t receiver;
    int pipes[2];
    loff_t at = 0;
    CHECK(pthread_create(&receiver, NULL, into_file, NULL) == 0 && pipe(pipes) == 0);
    while (at < SIZE) {
        ssize_t in = splice(from, &at, pipes[1], NULL, part(100000), SPLICE_F_MOVE);
        CHECK(in > 0);
        while (in > 0) {
            ssize_t out = splice(pipes[0], NULL, ends[0], NULL, part((size_t)in), SPLICE_F_MOVE | SPLICE_F_MORE);
            CHECK(out > 0);
            in -= out;
        }
    }
    CHECK(shutdown(ends[0], SHUT_WR) == 0 && pthread_join(receiver, NULL) == 0);
    void *a = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, from, 0), *b = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, to, 0);
    CHECK(lseek(to, 0, SEEK_END) == SIZE && memcmp(a, b, SIZE) == 0);
    puts("a file, there and back into one");
}

/* What does not go stays in the pipe, in its order. */
static void what_is_full(void) {
    static unsigned char bytes[SIZE], got[SIZE];
    int pipes[2];
    size_t put = 0, taken = 0;
    CHECK(pread(from, bytes, SIZE, 0) == SIZE && pipe(pipes) == 0);
    CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    for (;;) {
        size_t in = part(60000);
        if (put + in > SIZE)
            break;
        CHECK(write(pipes[1], bytes + put, in) == (ssize_t)in);
        put += in;
        ssize_t out;
        while (in > 0 && (out = splice(pipes[0], NULL, ends[0], NULL, in, 0)) > 0)
            in -= (size_t)out;
        if (in > 0) {
            CHECK(out == -1 && errno == EAGAIN);
            break;
        }
    }
    /* The receiving end's pipe gets full, too. */
    int full[2];
    CHECK(pipe(full) == 0 && fcntl(full[1], F_SETPIPE_SZ, 4096) > 0);
    while (splice(ends[1], NULL, full[1], NULL, 3000, SPLICE_F_NONBLOCK) > 0)
        ;
    CHECK(errno == EAGAIN);
    int left = fcntl(full[1], F_GETPIPE_SZ);
    ssize_t n = read(full[0], got, (size_t)left);
    CHECK(n > 0);
    taken += (size_t)n;
    /* The rest goes when there is room. */
    close(pipes[1]);
    for (;;) {
        ssize_t out = splice(pipes[0], NULL, ends[0], NULL, 10000, SPLICE_F_NONBLOCK);
        if (out == 0)
            break;
        CHECK(out > 0 || errno == EAGAIN);
        while (taken < put && (n = recv(ends[1], got + taken, put - taken, MSG_DONTWAIT)) > 0)
            taken += (size_t)n;
    }
    while (taken < put) {
        CHECK((n = recv(ends[1], got + taken, put - taken, 0)) > 0);
        taken += (size_t)n;
    }
    CHECK(memcmp(got, bytes, put) == 0 && recv(ends[1], got, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    puts("what does not go stays in the pipe");
}

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    from = memfd_create("from", 0);
    to = memfd_create("to", 0);
    CHECK(from >= 0 && to >= 0 && ftruncate(from, SIZE) == 0);
    uint32_t *words = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, from, 0);
    for (size_t i = 0; i < SIZE / 4; i++)
        words[i] = (uint32_t)i * 2654435761u;
    connect_ends((uint16_t)atoi(argv[1]));
    all_of_a_file();
    close(ends[0]);
    close(ends[1]);
    connect_ends((uint16_t)atoi(argv[1]));
    what_is_full();
    puts("all");
    return 0;
}
