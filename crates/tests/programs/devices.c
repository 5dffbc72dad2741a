/* Transfers by the native interface from and to block devices and pipes; both ends are in this process.
 *
 *     devices PORT DEVICE
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
#include <toe.h>
#include <unistd.h>

#include "checks.h"

enum { LENGTH = 300000 };

static int ends[2];
static unsigned char content[LENGTH], got[LENGTH];

static void connect_ends(uint16_t port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int listener = toe_socket(AF_INET, SOCK_STREAM, 0), on = 1, most = 4 * LENGTH;
    CHECK(listener >= 0 && toe_setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(toe_bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && toe_listen(listener, 8) == 0);
    CHECK((ends[0] = toe_socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(toe_setsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &most, sizeof most) == 0);
    CHECK(toe_connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    CHECK((ends[1] = toe_accept(listener, NULL, NULL)) >= 0);
    toe_close(listener);
}

static void comes(const unsigned char *from, size_t length) {
    for (size_t have = 0; have < length;) {
        ssize_t n = toe_recv(ends[1], got + have, length - have, 0);
        CHECK(n > 0);
        have += (size_t)n;
    }
    CHECK(memcmp(got, from, length) == 0);
}

static void send_all(const unsigned char *from, size_t length) { CHECK(toe_send(ends[0], from, length, 0) == (ssize_t)length); }

static void block_device(const char *path, int how) {
    static const struct {
        off_t from;
        size_t length;
    } parts[] = {{0, 1}, {4095, 2}, {511, 70000}, {4096, 8192}, {12345, 200001}};
    int device = open(path, O_RDWR | how), usual = open(path, O_RDONLY);
    CHECK(device >= 0 && usual >= 0);
    send_all(content, LENGTH);
    CHECK(toe_directread(ends[1], device, 0, 100001) == 100001);
    CHECK(toe_directread(ends[1], device, 100001, LENGTH - 100001) == LENGTH - 100001);
    CHECK(pread(usual, got, LENGTH, 0) == LENGTH && memcmp(got, content, LENGTH) == 0);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        CHECK(toe_directwrite(device, ends[0], parts[i].from, parts[i].length) == (ssize_t)parts[i].length);
        comes(content + parts[i].from, parts[i].length);
    }
    /* Up to where it ends. */
    off_t size = lseek(device, 0, SEEK_END);
    CHECK(size > LENGTH);
    send_all(content, 100);
    CHECK(toe_directread(ends[1], device, size - 40, 100) == 40);
    FAILS(toe_directread(ends[1], device, size, 60), ENOSPC);
    comes(content + 40, 60);
    CHECK(toe_directwrite(device, ends[0], size - 40, TOE_ALL) == 40);
    comes(content, 40);
    CHECK(toe_directwrite(device, ends[0], size, TOE_ALL) == 0);
    close(device);
    close(usual);
    printf("a block device, %s the page cache\n", how == O_DIRECT ? "past" : "by");
}

static int pipes[2];

static void *read_pipe(void *unused) {
    for (size_t have = 0; have < LENGTH;) {
        ssize_t n = read(pipes[0], got + have, LENGTH - have);
        CHECK(n > 0);
        have += (size_t)n;
    }
    return unused;
}

static void into_pipes(void) {
    CHECK(pipe2(pipes, O_NONBLOCK) == 0);
    send_all(content, LENGTH);
    /* What it has no room for stays. */
    size_t done = 0;
    ssize_t n;
    while ((n = toe_directread(ends[1], pipes[1], -1, LENGTH)) > 0)
        done += (size_t)n;
    CHECK(n == -1 && errno == EAGAIN && done > 0 && done < LENGTH);
    CHECK(read(pipes[0], got, done) == (ssize_t)done && memcmp(got, content, done) == 0);
    comes(content + done, LENGTH - done);
    close(pipes[0]);
    close(pipes[1]);
    pthread_t reader;
    CHECK(pipe(pipes) == 0 && pthread_create(&reader, NULL, read_pipe, NULL) == 0);
    struct toe_transfer *transfer = toe_directread_begin(ends[1], pipes[1], -1, LENGTH);
    CHECK(transfer != NULL);
    send_all(content, LENGTH);
    CHECK(toe_transfer_end(transfer, &done) == 0 && done == LENGTH);
    CHECK(pthread_join(reader, NULL) == 0 && memcmp(got, content, LENGTH) == 0);
    puts("into a pipe that is full, and one that is read");
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    for (size_t i = 0; i < LENGTH; i++)
        content[i] = (unsigned char)(1 + i * 7 % 251);
    connect_ends((uint16_t)atoi(argv[1]));
    into_pipes();
    if (strcmp(argv[2], "-") != 0) {
        block_device(argv[2], 0);
        block_device(argv[2], O_DIRECT);
    }
    puts("all");
    return 0;
}
