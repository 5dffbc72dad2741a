/* What the library keeps of the program's files while a transfer goes on: that nothing of it is left when the transfer is over, nor in a child,
 * nor costs the program its locks. By the native interface, both ends in this process: checks itself, and prints what it checked.
 *
 *     kept_files PORT FOLDER
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <toe.h>
#include <unistd.h>

#include "checks.h"
#include "descriptors.h"

enum { LARGE = 300000, PIECE = 1000, ROUNDS = 100 };

static int ends[2], listener;
static struct sockaddr_in at = {.sin_family = AF_INET};
static unsigned char content[LARGE], got[LARGE];

static void connect_ends(void) {
    CHECK((ends[0] = toe_socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(toe_connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    CHECK((ends[1] = toe_accept(listener, NULL, NULL)) >= 0);
}

static void close_ends(void) {
    toe_close(ends[0]);
    toe_close(ends[1]);
}

static void send_all(size_t bytes) { CHECK(toe_send(ends[0], content, bytes, 0) == (ssize_t)bytes); }

static void fork_one_that_ends(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, NULL, 0) == child);
}

/* A full pipe, and a child that has the connection for a moment: all comes through once the pipe is read. */
static void a_fork_beside_a_full_pipe(void) {
    for (int round = 0; round < 5; round++) {
        int pipes[2], there = 0;
        size_t done, have = 0;
        connect_ends();
        CHECK(pipe(pipes) == 0);
        struct toe_transfer *transfer = toe_directread_begin(ends[1], pipes[1], -1, LARGE);
        CHECK(transfer != NULL);
        send_all(LARGE);
        while (there < fcntl(pipes[1], F_GETPIPE_SZ) / 2)
            CHECK(ioctl(pipes[0], FIONREAD, &there) == 0);
        fork_one_that_ends();
        for (ssize_t n; have < LARGE; have += (size_t)n)
            CHECK((n = read(pipes[0], got + have, LARGE - have)) > 0);
        CHECK(toe_transfer_end(transfer, &done) == 0 && done == LARGE);
        CHECK(memcmp(got, content, LARGE) == 0);
        close(pipes[0]);
        close(pipes[1]);
        close_ends();
    }
    puts("a fork beside a full pipe");
}

/* Children come and go while bytes trickle in: each time the connection is another process's for a moment, with what nobody has read. */
static void forks_beside_a_file(void) {
    for (int round = 0; round < 5; round++) {
        int memory = memfd_create("into", 0);
        size_t done;
        connect_ends();
        struct toe_transfer *transfer = toe_directread_begin(ends[1], memory, 0, TOE_ALL);
        CHECK(memory >= 0 && transfer != NULL);
        for (size_t sent = 0; sent < LARGE; sent += PIECE) {
            CHECK(toe_send(ends[0], content + sent, PIECE, 0) == PIECE);
            if (sent / PIECE % 10 == 0)
                fork_one_that_ends();
        }
        CHECK(toe_shutdown(ends[0], SHUT_WR) == 0);
        CHECK(toe_transfer_end(transfer, &done) == 0 && done == LARGE);
        CHECK(pread(memory, got, LARGE, 0) == LARGE && memcmp(got, content, LARGE) == 0);
        close(memory);
        close_ends();
    }
    puts("forks beside a file");
}

/* Once it is over nobody else has the file: the reader of a pipe sees the end. */
static void nothing_is_kept_when_it_is_over(void) {
    connect_ends();
    for (int round = 0; round < ROUNDS; round++) {
        int pipes[2];
        size_t done;
        CHECK(pipe2(pipes, O_NONBLOCK) == 0);
        struct toe_transfer *transfer = toe_directread_begin(ends[1], pipes[1], -1, PIECE);
        CHECK(transfer != NULL && close(pipes[1]) == 0);
        send_all(PIECE);
        CHECK(toe_transfer_end(transfer, &done) == 0 && done == PIECE);
        CHECK(read(pipes[0], got, LARGE) == PIECE && read(pipes[0], got, 1) == 0);
        close(pipes[0]);
    }
    close_ends();
    puts("nothing is kept when it is over");
}

static void a_child_keeps_nothing(void) {
    int pipes[2], lives[2], until[2];
    size_t done;
    connect_ends();
    CHECK(pipe2(pipes, O_NONBLOCK) == 0 && pipe(lives) == 0 && pipe(until) == 0);
    struct toe_transfer *transfer = toe_directread_begin(ends[1], pipes[1], -1, PIECE);
    CHECK(transfer != NULL && close(pipes[1]) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* It lives, with nothing of the program's but this. */
        close(pipes[0]);
        close(until[1]);
        toe_close(ends[0]);
        toe_close(ends[1]);
        CHECK(write(lives[1], "", 1) == 1);
        _exit((int)read(until[0], got, 1));
    }
    CHECK(read(lives[0], got, 1) == 1);
    send_all(PIECE);
    CHECK(toe_transfer_end(transfer, &done) == 0 && done == PIECE);
    CHECK(read(pipes[0], got, LARGE) == PIECE && read(pipes[0], got, 1) == 0);
    close(until[1]);
    CHECK(waitpid(child, NULL, 0) == child);
    close(until[0]);
    close(lives[0]);
    close(lives[1]);
    close(pipes[0]);
    close_ends();
    puts("a child keeps nothing");
}

/* Another process is let in where this one has a lock no more. */
static int has_lock(const char *path) {
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK};
        _exit(fcntl(open(path, O_RDWR), F_SETLK, &lock) == -1 && errno == EAGAIN);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return WEXITSTATUS(status);
}

static int descriptors(void) {
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    CHECK(all != NULL);
    while (readdir(all) != NULL)
        count++;
    closedir(all);
    return count;
}

static void locks_stay(const char *folder) {
    char path[4096];
    size_t done;
    struct flock lock = {.l_type = F_WRLCK};
    snprintf(path, sizeof path, "%s/locked", folder);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0 && write(file, content, LARGE) == LARGE && fcntl(file, F_SETLK, &lock) == 0);
    connect_ends();
    int before = descriptors();
    struct toe_transfer *transfer = toe_directwrite_begin(file, ends[0], 0, PIECE);
    CHECK(transfer != NULL && toe_transfer_end(transfer, &done) == 0 && done == PIECE);
    CHECK(has_lock(path));
    CHECK((transfer = toe_directread_begin(ends[1], file, 0, PIECE)) != NULL);
    CHECK(toe_transfer_end(transfer, &done) == 0 && done == PIECE);
    CHECK(has_lock(path));
    /* Bytes that are no whole block, so that they go by the page cache. */
    int unbuffered = open(path, O_RDWR | O_DIRECT);
    if (unbuffered >= 0) {
        CHECK(fcntl(file, F_SETLK, &lock) == 0);
        send_all(PIECE);
        CHECK(toe_directread(ends[1], unbuffered, 0, PIECE) == PIECE);
        CHECK(has_lock(path));
        close(unbuffered);
    }
    lock.l_type = F_UNLCK;
    CHECK(fcntl(file, F_SETLK, &lock) == 0);
    /* What was kept for the lock's sake goes with it. */
    while (descriptors() > before)
        sched_yield();
    close(file);
    close_ends();
    puts("locks stay");
}

static int open_locked(const char *path) {
    struct flock lock = {.l_type = F_WRLCK};
    int file = open(path, O_RDWR);
    CHECK(file >= 0 && fcntl(file, F_SETLK, &lock) == 0);
    return file;
}

/* Until there are so many at most. The thread that carried a transfer out closes its copy a moment after it has said that it is done. */
static void await_descriptors_of(const char *path, int most) {
    while (descriptors_of(path) > most)
        sched_yield();
}

static void transfer_a_piece(int file) {
    size_t done;
    struct toe_transfer *transfer = toe_directwrite_begin(file, ends[0], 0, PIECE);
    CHECK(transfer != NULL && toe_transfer_end(transfer, &done) == 0 && done == PIECE);
    for (size_t have = 0; have < PIECE;) {
        ssize_t n = toe_recv(ends[1], got, PIECE - have, 0);
        CHECK(n > 0);
        have += (size_t)n;
    }
}

/* A process whose locks come and go, so that the kernel's list of them is another one each moment. */
static pid_t others_that_come_and_go(void) {
    enum { LOCKS = 8 };
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int file = memfd_create("another", 0);
        CHECK(file >= 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        for (int i = 0;; i++) {
            struct flock lock = {.l_type = i / LOCKS % 2 ? F_UNLCK : F_WRLCK, .l_start = i % LOCKS * 2, .l_len = 1};
            CHECK(fcntl(file, F_SETLK, &lock) == 0);
        }
    }
    return child;
}

/* A thousandth transfer leaves no more than the first, whoever has locks of the file. */
static void locks_cost_nothing(const char *path) {
    int tell[2], until[2], file = open(path, O_RDWR);
    pid_t busy = others_that_come_and_go();
    connect_ends();
    CHECK(file >= 0 && pipe(tell) == 0 && pipe(until) == 0);
    for (int kind = 0; kind < 3; kind++) {
        pid_t other = fork();
        CHECK(other >= 0);
        if (other == 0) {
            struct flock lock = {.l_type = kind == 1 ? F_RDLCK : F_WRLCK};
            CHECK(kind == 2 || fcntl(open(path, O_RDWR), F_SETLK, &lock) == 0);
            CHECK(write(tell[1], "", 1) == 1);
            _exit((int)read(until[0], got, 1) - 1);
        }
        CHECK(read(tell[0], got, 1) == 1);
        struct flock lock = {.l_type = kind == 1 ? F_RDLCK : F_WRLCK};
        CHECK(kind == 0 || fcntl(file, F_SETLK, &lock) == 0);
        for (int round = 0; round < ROUNDS; round++)
            transfer_a_piece(file);
        await_descriptors_of(path, 1);
        CHECK(kind == 0 || has_lock(path));
        lock.l_type = F_UNLCK;
        CHECK(fcntl(file, F_SETLK, &lock) == 0 && write(until[1], "", 1) == 1 && waitpid(other, NULL, 0) == other);
    }
    CHECK(kill(busy, SIGKILL) == 0 && waitpid(busy, NULL, 0) == busy);
    /* One that takes whole blocks only is opened once more, not once a call. */
    int unbuffered = open(path, O_RDWR | O_DIRECT);
    if (unbuffered >= 0) {
        struct flock lock = {.l_type = F_WRLCK};
        CHECK(fcntl(file, F_SETLK, &lock) == 0);
        for (int round = 0; round < ROUNDS; round++) {
            send_all(PIECE);
            CHECK(toe_directread(ends[1], unbuffered, 0, PIECE) == PIECE);
        }
        await_descriptors_of(path, 2 + 1);
        CHECK(has_lock(path));
        lock.l_type = F_UNLCK;
        CHECK(fcntl(file, F_SETLK, &lock) == 0);
        await_descriptors_of(path, 2);
        close(unbuffered);
    }
    for (int side = 0; side < 2; side++)
        CHECK(close(tell[side]) == 0 && close(until[side]) == 0);
    close(file);
    close_ends();
    puts("locks cost nothing");
}

static void a_lock_that_comes_later_stays(const char *path) {
    size_t done;
    connect_ends();
    int file = open(path, O_RDWR);
    struct toe_transfer *transfer = toe_directread_begin(ends[1], file, 0, PIECE);
    struct flock lock = {.l_type = F_WRLCK};
    CHECK(transfer != NULL && fcntl(file, F_SETLK, &lock) == 0);
    send_all(PIECE);
    CHECK(toe_transfer_end(transfer, &done) == 0 && done == PIECE && has_lock(path));
    lock.l_type = F_UNLCK;
    CHECK(fcntl(file, F_SETLK, &lock) == 0);
    while (descriptors_of(path) > 1)
        sched_yield();
    close(file);
    close_ends();
    puts("a lock that comes later stays");
}

/* The locks go with the program's own descriptor; what gets its number is not written to. */
static void a_locked_file_that_is_closed(const char *path) {
    size_t done;
    connect_ends();
    int file = open_locked(path), memory = memfd_create("another", 0);
    struct toe_transfer *transfer = toe_directread_begin(ends[1], file, 0, PIECE);
    CHECK(transfer != NULL && memory >= 0 && dup2(memory, file) == file);
    send_all(PIECE);
    CHECK(toe_transfer_end(transfer, &done) == -1 && errno == EBADF && done == 0);
    CHECK(lseek(memory, 0, SEEK_END) == 0);
    CHECK(toe_recv(ends[1], got, PIECE, MSG_WAITALL) == PIECE && memcmp(got, content, PIECE) == 0);
    close(memory);
    close(file);
    close_ends();
    puts("a locked file that is closed");
}

/* A program that has been executed has the locks of the one before. */
static void locks_stay_over_exec(const char *path) {
    int status;
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        connect_ends();
        transfer_a_piece(open_locked(path));
        execl("/proc/self/exe", "kept_files", "locked", path, NULL);
        _exit(2);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    puts("locks stay over exec");
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    if (strcmp(argv[1], "locked") == 0)
        return !has_lock(argv[2]);
    /* Whoever waits in vain is told how far it came. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    uint32_t state = 54321;
    for (size_t i = 0; i < LARGE; i++)
        content[i] = (unsigned char)((state = state * 1664525 + 1013904223) >> 24);
    at.sin_port = htons((uint16_t)atoi(argv[1]));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK((listener = toe_socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(toe_bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && toe_listen(listener, 8) == 0);
    a_fork_beside_a_full_pipe();
    forks_beside_a_file();
    nothing_is_kept_when_it_is_over();
    a_child_keeps_nothing();
    locks_stay(argv[2]);
    char path[4096];
    snprintf(path, sizeof path, "%s/locked", argv[2]);
    locks_cost_nothing(path);
    a_lock_that_comes_later_stays(path);
    a_locked_file_that_is_closed(path);
    locks_stay_over_exec(path);
    puts("all");
    return 0;
}
