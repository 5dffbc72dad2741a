/* Transfers between files and connections by the native interface, both ends in this process: checks itself, and prints what it checked.
 *
 *     files PORT FOLDER
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <toe.h>
#include <unistd.h>

#include "checks.h"

enum { LARGE = 6 << 20 };

static int ends[2];
static unsigned char content[LARGE], got[LARGE];

/* A connection of two ends, which holds less than the file when nobody receives. */
static void connect_ends(uint16_t port) {
    static int listener = -1;
    int most = 256 << 10;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    if (listener < 0) {
        CHECK((listener = toe_socket(AF_INET, SOCK_STREAM, 0)) >= 0);
        CHECK(toe_bind(listener, (struct sockaddr *)&at, sizeof at) == 0);
        CHECK(toe_setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &most, sizeof most) == 0);
        CHECK(toe_listen(listener, 8) == 0);
    }
    CHECK((ends[0] = toe_socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(toe_setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &most, sizeof most) == 0);
    CHECK(toe_connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    CHECK((ends[1] = toe_accept(listener, NULL, NULL)) >= 0);
}

static void close_ends(void) {
    toe_close(ends[0]);
    toe_close(ends[1]);
}

/* Receives so many bytes at the second end. */
static void receive(size_t bytes) {
    for (size_t have = 0; have < bytes;) {
        ssize_t n = toe_recv(ends[1], got + have, bytes - have, 0);
        CHECK(n > 0);
        have += (size_t)n;
    }
}

static void send_all(const unsigned char *from, size_t bytes) { CHECK(toe_send(ends[0], from, bytes, 0) == (ssize_t)bytes); }

static size_t size_of(int file) {
    struct stat stat;
    CHECK(fstat(file, &stat) == 0);
    return (size_t)stat.st_size;
}

static void sets_blocking(int fd, int blocks) {
    int flags = toe_fcntl(fd, F_GETFL, 0);
    CHECK(toe_fcntl(fd, F_SETFL, blocks ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) == 0);
}

static void from_file(int file) {
    static const struct {
        off_t from;
        size_t length, sent;
    } cases[] = {{0, 1, 1}, {0, 100, 100}, {4095, 70000, 70000}, {LARGE - 5, TOE_ALL, 5}, {LARGE - 5, 100, 5},
                 {LARGE, TOE_ALL, 0}, {LARGE + 100, 10, 0}, {17, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(toe_directwrite(file, ends[0], cases[i].from, cases[i].length) == (ssize_t)cases[i].sent);
        receive(cases[i].sent);
        CHECK(memcmp(got, content + cases[i].from, cases[i].sent) == 0);
    }
    CHECK(lseek(file, 0, SEEK_CUR) == 0);
    /* The whole of it, beside us. */
    struct toe_transfer *transfer = toe_directwrite_begin(file, ends[0], 3, TOE_ALL);
    CHECK(transfer != NULL);
    receive(LARGE - 3);
    CHECK(memcmp(got, content + 3, LARGE - 3) == 0);
    struct pollfd over = {.fd = toe_transfer_fd(transfer), .events = POLLIN};
    CHECK(poll(&over, 1, 10000) == 1);
    size_t done = 0;
    CHECK(toe_transfer_done(transfer) == LARGE - 3 && toe_transfer_end(transfer, &done) == 0 && done == LARGE - 3);
    /* One that does not block takes what fits, then nothing. */
    sets_blocking(ends[0], 0);
    size_t sent = 0;
    ssize_t n;
    while ((n = toe_directwrite(file, ends[0], (off_t)sent, TOE_ALL)) > 0)
        sent += (size_t)n;
    CHECK(n == -1 && errno == EAGAIN && sent > 0 && sent < LARGE);
    receive(sent);
    CHECK(memcmp(got, content, sent) == 0);
    sets_blocking(ends[0], 1);
    puts("from a file: parts, all, beside the program, as much as fits");
}

static void into_file(int file) {
    CHECK(ftruncate(file, 0) == 0);
    send_all(content, 100000);
    CHECK(toe_directread(ends[1], file, 50, 60000) == 60000);
    CHECK(toe_directread(ends[1], file, 60050, 40000) == 40000);
    CHECK(size_of(file) == 100050 && pread(file, got, 100000, 50) == 100000 && memcmp(got, content, 100000) == 0);
    /* Where it stands, and at the end of what is open for appending. */
    CHECK(lseek(file, 100050, SEEK_SET) == 100050);
    send_all(content + 7, 10);
    CHECK(toe_directread(ends[1], file, -1, 10) == 10 && lseek(file, 0, SEEK_CUR) == 100060);
    CHECK(fcntl(file, F_SETFL, O_APPEND) == 0);
    send_all(content + 9, 10);
    CHECK(toe_directread(ends[1], file, -1, 10) == 10 && size_of(file) == 100070);
    CHECK(fcntl(file, F_SETFL, 0) == 0);
    CHECK(pread(file, got, 20, 100050) == 20 && memcmp(got, content + 7, 10) == 0 && memcmp(got + 10, content + 9, 10) == 0);
    /* All that the peer sends, beside us. */
    CHECK(ftruncate(file, 0) == 0);
    struct toe_transfer *in = toe_directread_begin(ends[1], file, 0, TOE_ALL);
    CHECK(in != NULL);
    send_all(content, LARGE);
    CHECK(toe_shutdown(ends[0], SHUT_WR) == 0);
    size_t done = 0;
    CHECK(toe_transfer_end(in, &done) == 0 && done == LARGE && size_of(file) == LARGE);
    CHECK(pread(file, got, LARGE, 0) == LARGE && memcmp(got, content, LARGE) == 0);
    CHECK(toe_directread(ends[1], file, 0, TOE_ALL) == 0);
    puts("into a file: parts, where it stands, appended, all that comes");
}

static void what_cannot_be(int file, const char *folder) {
    char path[4096];
    int pipes[2], full, read_only, write_only, directory;
    snprintf(path, sizeof path, "%s/other", folder);
    CHECK((write_only = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600)) >= 0);
    CHECK((read_only = open(path, O_RDONLY)) >= 0 && (directory = open(folder, O_RDONLY)) >= 0);
    CHECK(pipe(pipes) == 0 && (full = open("/dev/full", O_WRONLY)) >= 0);
    FAILS(toe_directwrite(write_only, ends[0], 0, 10), EBADF);
    FAILS(toe_directwrite(directory, ends[0], 0, 10), EISDIR);
    FAILS(toe_directwrite(pipes[0], ends[0], 0, 10), ESPIPE);
    FAILS(toe_directwrite(file, ends[0], -1, 10), EINVAL);
    FAILS(toe_directwrite(-1, ends[0], 0, 10), EBADF);
    FAILS(toe_directwrite(file, file, 0, 10), ENOTSOCK);
    CHECK(toe_directwrite_begin(file, -1, 0, 10) == NULL && errno == EBADF);
    /* What the file does not take is there to be received. */
    send_all(content, 300000);
    FAILS(toe_directread(ends[1], full, 0, 1000), ENOSPC);
    FAILS(toe_directread(ends[1], read_only, 0, 300000), EBADF);
    receive(10);
    FAILS(toe_directread(ends[1], full, -1, 100000), ENOSPC);
    struct toe_transfer *transfer = toe_directread_begin(ends[1], full, 0, TOE_ALL);
    size_t done = 1;
    FAILS(toe_transfer_end(transfer, &done), ENOSPC);
    CHECK(done == 0);
    /* Up to a limit of size. */
    struct rlimit before, limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    limit = before;
    limit.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(toe_directread(ends[1], write_only, 0, 5000) == 1000);
    FAILS(toe_directread(ends[1], write_only, 1000, 5000), EFBIG);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    memcpy(got, content, 10);
    CHECK(pread(read_only, got + 10, 1000, 0) == 1000);
    for (size_t have = 1010; have < 300000;) {
        ssize_t n = toe_recv(ends[1], got + have, 300000 - have, 0);
        CHECK(n > 0);
        have += (size_t)n;
    }
    CHECK(memcmp(got, content, 300000) == 0);
    puts("what cannot be is told, and nothing is lost");
}

/* Until the library's thread that moves the bytes sleeps: of this process it is the only one of its name. */
static void until_it_sleeps(void) {
    for (;;) {
        DIR *threads = opendir("/proc/self/task");
        CHECK(threads != NULL);
        for (struct dirent *entry; (entry = readdir(threads)) != NULL;) {
            char path[300], line[300] = "";
            snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
            FILE *stat = fopen(path, "r");
            if (stat == NULL)
                continue;
            int sleeps = fgets(line, sizeof line, stat) != NULL && strstr(line, "(toe-file) S") != NULL;
            fclose(stat);
            if (sleeps) {
                closedir(threads);
                return;
            }
        }
        closedir(threads);
        sched_yield();
    }
}

/* A transfer whose peer reads nothing is cancelled while it waits; then one whose file is cut short. */
static void ends_early(int file) {
    struct toe_transfer *transfer = toe_directwrite_begin(file, ends[0], 0, TOE_ALL);
    CHECK(transfer != NULL);
    struct pollfd over = {.fd = toe_transfer_fd(transfer), .events = POLLIN};
    CHECK(toe_recv(ends[1], got, 1, MSG_PEEK) == 1);
    CHECK(poll(&over, 1, 0) == 0);
    /* What wakes it within seconds is the cancelling. */
    while (toe_transfer_done(transfer) == 0)
        sched_yield();
    until_it_sleeps();
    toe_transfer_cancel(transfer);
    CHECK(poll(&over, 1, 3000) == 1);
    size_t done = 0;
    FAILS(toe_transfer_end(transfer, &done), ECANCELED);
    CHECK(done > 0 && done < LARGE);
    receive(done);
    CHECK(memcmp(got, content, done) == 0);
    CHECK(toe_recv(ends[1], got, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);

    CHECK((transfer = toe_directwrite_begin(file, ends[0], 0, TOE_ALL)) != NULL);
    CHECK(toe_recv(ends[1], got, 1, MSG_PEEK) == 1);
    CHECK(ftruncate(file, LARGE - (1 << 20)) == 0);
    receive(LARGE - (1 << 20));
    CHECK(toe_transfer_end(transfer, &done) == 0 && done == LARGE - (1 << 20));
    CHECK(memcmp(got, content, done) == 0);
    puts("cancelled, and cut short: what is said to have gone has");
}

/* Disks that take whole blocks only: bytes that begin and end anywhere go there and come from there all the same. */
static void unbuffered(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/content", folder);
    int direct = open(path, O_RDONLY | O_DIRECT);
    if (direct < 0) {
        puts("no O_DIRECT here");
        return;
    }
    static const struct {
        off_t from;
        size_t length;
    } parts[] = {{0, 5000}, {4095, 2}, {12345, 200001}, {1 << 20, 8192}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        CHECK(toe_directwrite(direct, ends[0], parts[i].from, parts[i].length) == (ssize_t)parts[i].length);
        receive(parts[i].length);
        CHECK(memcmp(got, content + parts[i].from, parts[i].length) == 0);
    }
    close(direct);
    snprintf(path, sizeof path, "%s/unbuffered", folder);
    CHECK((direct = open(path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0600)) >= 0);
    send_all(content, 150000);
    CHECK(toe_directread(ends[1], direct, 7, 100000) == 100000);
    CHECK(lseek(direct, 100007, SEEK_SET) == 100007 && toe_directread(ends[1], direct, -1, 50000) == 50000);
    CHECK(lseek(direct, 0, SEEK_CUR) == 150007 && fcntl(direct, F_SETFL, 0) == 0);
    CHECK(pread(direct, got, 150000, 7) == 150000 && memcmp(got, content, 150000) == 0);
    close(direct);
    puts("past the page cache");
}

static void *send_content(void *unused) {
    send_all(content, LARGE);
    return unused;
}

/* More waits than is taken in one go, and nobody else comes to say so. */
static void at_full_speed(uint16_t port, int memory) {
    pthread_t sender;
    for (int round = 0; round < 5; round++) {
        int usual = 4 << 20, is_tight = round % 2;
        connect_ends(port);
        if (!is_tight) {
            CHECK(toe_setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &usual, sizeof usual) == 0);
            CHECK(toe_setsockopt(ends[1], SOL_SOCKET, SO_RCVBUF, &usual, sizeof usual) == 0);
        }
        CHECK(ftruncate(memory, 0) == 0 && pthread_create(&sender, NULL, send_content, NULL) == 0);
        CHECK(toe_directread(ends[1], memory, 0, LARGE) == LARGE);
        CHECK(pthread_join(sender, NULL) == 0);
        CHECK(pread(memory, got, LARGE, 0) == LARGE && memcmp(got, content, LARGE) == 0);
        close_ends();
    }
    puts("as fast as it comes");
}

static void *receive_all(void *unused) {
    receive(LARGE);
    return unused;
}

/* Threads, close and fork while transfers are under way: those that were begun go on, whatever the program does with its descriptors. */
static void meanwhile(uint16_t port, int file, int memory) {
    for (int round = 0; round < 20; round++) {
        pthread_t receiver;
        size_t done = 0;
        connect_ends(port);
        int copy = dup(file);
        struct toe_transfer *out = toe_directwrite_begin(copy, ends[0], 0, TOE_ALL), *in = NULL;
        CHECK(copy >= 0 && out != NULL);
        close(copy);
        if (round % 2 == 0)
            CHECK(pthread_create(&receiver, NULL, receive_all, NULL) == 0);
        else
            CHECK(ftruncate(memory, 0) == 0 && (in = toe_directread_begin(ends[1], memory, 0, LARGE)) != NULL);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0)
            /* It has both ends and uses neither; they are closed with it. */
            _exit(0);
        if (round % 3 == 0)
            toe_close(ends[0]);
        CHECK(toe_transfer_end(out, &done) == 0 && done == LARGE);
        if (round % 3 != 0)
            toe_close(ends[0]);
        if (round % 2 == 0) {
            CHECK(pthread_join(receiver, NULL) == 0);
        } else {
            CHECK(toe_transfer_end(in, &done) == 0 && done == LARGE);
            CHECK(pread(memory, got, LARGE, 0) == LARGE);
        }
        CHECK(memcmp(got, content, LARGE) == 0);
        CHECK(waitpid(child, NULL, 0) == child);
        CHECK(toe_recv(ends[1], got, 1, 0) == 0);
        toe_close(ends[1]);
    }
    puts("whatever the program does meanwhile");
}

struct into_pipe {
    int pipe, error;
    volatile int thread;
    ssize_t result;
};

static void *directread_into(void *of) {
    struct into_pipe *into = of;
    into->thread = gettid();
    into->result = toe_directread(ends[1], into->pipe, -1, TOE_ALL);
    into->error = errno;
    return NULL;
}

static void on_signal(int number) { (void)number; }

/* Until the thread of that number sleeps in the kernel. */
static void until_asleep(int thread) {
    for (int quiet = 0; quiet < 20;) {
        char path[64], text[512] = "";
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
        int stat = open(path, O_RDONLY);
        CHECK(stat >= 0 && read(stat, text, sizeof text - 1) > 0);
        close(stat);
        char *state = strrchr(text, ')');
        quiet = state && state[2] == 'S' ? quiet + 1 : 0;
        usleep(200);
    }
}

/* As splice(2): a signal ends the wait for room in a pipe, with what has gone until then. */
static void a_full_pipe(void) {
    enum { ROOM = 4096, REST = 904 };
    int pipes[2];
    struct sigaction action = {.sa_handler = on_signal};
    CHECK(pipe(pipes) == 0 && fcntl(pipes[1], F_SETPIPE_SZ, ROOM) == ROOM);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    send_all(content, ROOM + REST);
    for (int turn = 0; turn < 2; turn++) {
        pthread_t thread;
        struct into_pipe into = {.pipe = pipes[1]};
        int there = 0;
        CHECK(pthread_create(&thread, NULL, directread_into, &into) == 0);
        while (there < ROOM || !into.thread)
            CHECK(ioctl(pipes[0], FIONREAD, &there) == 0);
        until_asleep(into.thread);
        CHECK(pthread_kill(thread, SIGUSR1) == 0 && pthread_join(thread, NULL) == 0);
        CHECK(turn == 0 ? into.result == ROOM : into.result == -1 && into.error == EINTR);
    }
    CHECK(read(pipes[0], got, ROOM) == ROOM && memcmp(got, content, ROOM) == 0);
    receive(REST);
    CHECK(memcmp(got, content + ROOM, REST) == 0);
    close(pipes[0]);
    close(pipes[1]);
    puts("a full pipe");
}

/* Beside the program: into a pipe that has room for some of what is there, whose reader does not come, it can be cancelled. */
static void a_full_pipe_beside(void) {
    enum { ROOM = 8192, REST = 4096 };
    int pipes[2], there = 0;
    size_t done;
    CHECK(pipe(pipes) == 0 && fcntl(pipes[1], F_SETPIPE_SZ, ROOM) == ROOM);
    CHECK(write(pipes[1], content, 1) == 1);
    send_all(content, ROOM + REST);
    struct toe_transfer *transfer = toe_directread_begin(ends[1], pipes[1], -1, TOE_ALL);
    CHECK(transfer != NULL);
    struct pollfd over = {.fd = toe_transfer_fd(transfer), .events = POLLIN};
    while (there <= ROOM / 2)
        CHECK(ioctl(pipes[0], FIONREAD, &there) == 0);
    until_it_sleeps();
    toe_transfer_cancel(transfer);
    CHECK(poll(&over, 1, 3000) == 1);
    FAILS(toe_transfer_end(transfer, &done), ECANCELED);
    CHECK(ioctl(pipes[0], FIONREAD, &there) == 0 && (size_t)there == done + 1);
    CHECK(read(pipes[0], got, ROOM) == there && memcmp(got + 1, content, done) == 0);
    receive(ROOM + REST - done);
    CHECK(memcmp(got, content + done, ROOM + REST - done) == 0);
    close(pipes[0]);
    close(pipes[1]);
    puts("a full pipe, beside the program");
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    char path[4096];
    uint32_t state = 12345;
    for (size_t i = 0; i < LARGE; i++)
        content[i] = (unsigned char)((state = state * 1664525 + 1013904223) >> 24);
    snprintf(path, sizeof path, "%s/content", argv[2]);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0 && write(file, content, LARGE) == LARGE && lseek(file, 0, SEEK_SET) == 0);
    int memory = memfd_create("into", 0);
    CHECK(memory >= 0);
    uint16_t port = (uint16_t)atoi(argv[1]);
    connect_ends(port);
    from_file(file);
    what_cannot_be(file, argv[2]);
    into_file(memory);
    close_ends();
    connect_ends(port);
    a_full_pipe();
    a_full_pipe_beside();
    close_ends();
    connect_ends(port);
    unbuffered(argv[2]);
    close_ends();
    at_full_speed(port, memory);
    meanwhile(port, file, memory);
    connect_ends(port);
    ends_early(file);
    /* The peer is gone. */
    signal(SIGPIPE, SIG_IGN);
    toe_close(ends[1]);
    ssize_t n;
    do
        n = toe_directwrite(file, ends[0], 0, 4096);
    while (n > 0);
    CHECK(n == -1 && (errno == EPIPE || errno == ECONNRESET));
    toe_close(ends[0]);
    /* A reset is not taken for the end of what the peer sends, though bytes came before it. */
    struct linger abort = {.l_onoff = 1, .l_linger = 0};
    connect_ends(port);
    send_all(content, 1000);
    CHECK(toe_recv(ends[1], got, 1, MSG_PEEK) == 1);
    CHECK(toe_setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &abort, sizeof abort) == 0 && toe_close(ends[0]) == 0);
    n = toe_directread(ends[1], memory, 0, TOE_ALL);
    if (n > 0)
        n = toe_directread(ends[1], memory, n, TOE_ALL);
    CHECK(n == -1 && errno == ECONNRESET);
    toe_close(ends[1]);
    puts("all");
    return 0;
}
