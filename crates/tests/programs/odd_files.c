/* Transfers by the native interface from and to files that read short, fail in the middle and are full: a clear errno with the count done,
 * and nothing lost. Both ends are in this process.
 *
 *     odd_files PORT FOLDER SIZE
 *
 * FOLDER is odd_disk's, with files of SIZE bytes.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <toe.h>
#include <unistd.h>

#include "checks.h"

enum { MOST = 3 << 20 };

static int ends[2];
static size_t size;
static unsigned char content[MOST], got[MOST];
static const char *folder;

static void connect_ends(uint16_t port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    /* Room for all of a file: nobody receives meanwhile. */
    int listener = toe_socket(AF_INET, SOCK_STREAM, 0), on = 1, most = 2 * MOST;
    CHECK(listener >= 0 && toe_setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(toe_bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && toe_listen(listener, 8) == 0);
    CHECK((ends[0] = toe_socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(toe_setsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &most, sizeof most) == 0);
    CHECK(toe_connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    CHECK((ends[1] = toe_accept(listener, NULL, NULL)) >= 0);
    toe_close(listener);
}

static int opened(const char *name, int flags) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, flags);
    CHECK(file >= 0);
    return file;
}

/* The next bytes that come are those of the content from here on. */
static void comes(size_t from, size_t length) {
    for (size_t have = 0; have < length;) {
        ssize_t n = toe_recv(ends[1], got + have, length - have, 0);
        CHECK(n > 0);
        have += (size_t)n;
    }
    CHECK(memcmp(got, content + from, length) == 0);
}

static void nothing_comes(void) { FAILS(toe_recv(ends[1], got, 1, MSG_DONTWAIT), EAGAIN); }

static void from_one_that_reads_short(void) {
    int file = opened("short", O_RDONLY);
    CHECK(toe_directwrite(file, ends[0], 5, size - 5) == (ssize_t)size - 5);
    comes(5, size - 5);
    size_t done = 0;
    struct toe_transfer *transfer = toe_directwrite_begin(file, ends[0], 0, TOE_ALL);
    CHECK(transfer != NULL && toe_transfer_end(transfer, &done) == 0 && done == size);
    comes(0, size);
    close(file);
    puts("from a file that reads short");
}

static void from_one_that_fails(void) {
    int file = opened("failing", O_RDONLY);
    size_t half = size / 2, done = 0;
    CHECK(toe_directwrite(file, ends[0], 0, TOE_ALL) == (ssize_t)half);
    FAILS(toe_directwrite(file, ends[0], (off_t)half, TOE_ALL), EIO);
    FAILS(toe_directwrite(file, ends[0], (off_t)half, 10), EIO);
    comes(0, half);
    nothing_comes();
    for (size_t at = 0; at < half;) {
        ssize_t n = toe_directwrite(file, ends[0], (off_t)at, 30000);
        CHECK(n > 0);
        at += (size_t)n;
    }
    comes(0, half);
    struct toe_transfer *transfer = toe_directwrite_begin(file, ends[0], 100, TOE_ALL);
    CHECK(transfer != NULL);
    FAILS(toe_transfer_end(transfer, &done), EIO);
    CHECK(done == half - 100);
    comes(100, half - 100);
    nothing_comes();
    close(file);
    puts("from a file that fails in the middle");
}

/* What such a one takes is in it, and the rest is still to be received. */
static void into_one_that_takes_half(const char *name, int error) {
    int file = opened(name, O_RDWR);
    size_t half = size / 2, done = 0;
    CHECK(toe_send(ends[0], content, size, 0) == (ssize_t)size);
    CHECK(toe_directread(ends[1], file, 0, size) == (ssize_t)half);
    FAILS(toe_directread(ends[1], file, (off_t)half, size - half), error);
    CHECK(pread(file, got, half, 0) == (ssize_t)half && memcmp(got, content, half) == 0);
    comes(half, size - half);
    CHECK(toe_send(ends[0], content, size, 0) == (ssize_t)size);
    struct toe_transfer *transfer = toe_directread_begin(ends[1], file, 0, size);
    CHECK(transfer != NULL);
    FAILS(toe_transfer_end(transfer, &done), error);
    CHECK(done == half);
    comes(half, size - half);
    nothing_comes();
    close(file);
    printf("into a file that takes half of it, and then says %s\n", strerror(error));
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    folder = argv[2];
    size = strtoull(argv[3], NULL, 10);
    CHECK(size <= MOST);
    for (size_t i = 0; i < size; i++)
        content[i] = (unsigned char)(1 + i * 7 % 251);
    connect_ends((uint16_t)atoi(argv[1]));
    from_one_that_reads_short();
    from_one_that_fails();
    into_one_that_takes_half("full", EDQUOT);
    into_one_that_takes_half("broken", EIO);
    puts("all");
    return 0;
}
