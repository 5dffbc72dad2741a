/* Transfers between files and connections by the native interface, whose ends are killed, close, reset and cancel, and whose files are cut
 * short and full, at random but by a seed: what is at the other end is always a beginning of what was to come, and nothing is lost that was
 * not killed.
 *
 *     transfers PORT FOLDER SEED COUNT
 *
 * The process that is started keeps two others: the mover has the files, the peer the other end of each connection. What each transfer is
 * like follows from the seed and its number, so that both know it. They tell each other how far they are by memory that all three
 * share, and nobody sleeps to let others come somewhere.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <toe.h>
#include <unistd.h>

#define CHECK(what)                                                                                                  \
    do {                                                                                                             \
        if (!(what)) {                                                                                               \
            fprintf(stderr, "transfer %u, line %d: %s does not hold (errno %d, %s)\n", now.number, __LINE__, #what,     \
                    errno, strerror(errno));                                                                          \
            show();                                                                                                  \
            exit(1);                                                                                                 \
        }                                                                                                            \
    } while (0)

enum { LENGTH_MAX = 2 << 20, OFFSET_MAX = 100000, PART = 50000 };

enum method { ALL, PARTS, WHAT_FITS, BESIDE, METHODS };
enum fault { NONE, CUT, PEER_ENDS, PEER_RESETS, CANCEL, FULL, MOVER_DIES, PEER_DIES };
static const char *const faults[] = {"none", "cut", "peer ends", "peer resets", "cancel", "full", "mover dies", "peer dies"};

/* What a transfer is like. */
static struct plan {
    uint32_t number;
    int receives;
    enum method method;
    enum fault fault;
    size_t offset, length;
    /* Bytes after which the fault comes. */
    size_t when;
} now;

/* What all three know. */
static struct shared {
    /* The transfer that the mover has begun, and the one that is wholly over, from 1 on. */
    _Atomic uint32_t begun, over;
    /* Bytes of it that the peer has sent or received, and whether it will do no more. */
    _Atomic size_t at_peer;
    _Atomic uint32_t peer_done;
    _Atomic uint32_t peer_listens;
    _Atomic uint32_t came[8];
} *shared;

static unsigned char content[OFFSET_MAX + LENGTH_MAX + 1], got[OFFSET_MAX + LENGTH_MAX + 1];
static uint64_t seed;

static void show(void) {
    fprintf(stderr, "  seed %ju: %s, method %d, fault '%s' after %zu, %zu bytes from %zu on; at the peer: %zu\n", (uintmax_t)seed,
            now.receives ? "receives" : "sends", now.method, faults[now.fault], now.when, now.length, now.offset,
            atomic_load(&shared->at_peer));
}

static uint64_t state;
static uint64_t chance(uint64_t below) {
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

static void plan(uint32_t number) {
    /* Some are small. */
    static const size_t most[] = {1, 100, 5000, 70000, 400000, LENGTH_MAX};
    static const enum fault often[] = {NONE, NONE, NONE, NONE, NONE, CUT, CUT, PEER_ENDS, PEER_RESETS, CANCEL, FULL, FULL};
    state = seed * 1000003 + number;
    now = (struct plan){.number = number, .receives = (int)chance(2), .method = (enum method)chance(METHODS)};
    now.offset = chance(3) == 0 ? 0 : chance(OFFSET_MAX);
    now.length = 1 + chance(most[chance(6)]);
    now.when = chance(now.length + 1);
    now.fault = chance(25) == 0 ? MOVER_DIES : chance(25) == 0 ? PEER_DIES : often[chance(12)];
    if (now.fault == CANCEL)
        now.method = BESIDE;
    if (now.receives && now.fault == CUT)
        now.fault = FULL;
    if (!now.receives && now.fault == FULL)
        now.fault = CUT;
}

/* As long as nothing else is to be done: until somebody else is as far. */
static void give_way(void) { sched_yield(); }

/* No byte is zero, which is what a hole has. */
static void make_content(void) {
    state = 7;
    for (size_t i = 0; i < sizeof content; i++)
        content[i] = (unsigned char)(1 + chance(255));
}

static int is_there(const unsigned char *bytes, size_t count) { return memcmp(bytes, content + now.offset, count) == 0; }

/* ---- the peer ---- */

static void reset(int fd) {
    struct linger at_once = {.l_onoff = 1};
    CHECK(toe_setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
}

/* How many bytes the peer takes or gives before it ends. */
static size_t until(void) { return now.fault == PEER_ENDS || now.fault == PEER_RESETS ? now.when : now.length; }

static void serve(int fd) {
    size_t done = 0, most = until();
    if (toe_recv(fd, &now.number, sizeof now.number, MSG_WAITALL) != sizeof now.number) {
        /* The mover was killed before. */
        toe_close(fd);
        atomic_store(&shared->peer_done, atomic_load(&shared->begun));
        return;
    }
    plan(now.number);
    most = until();
    while (done < most) {
        ssize_t n = now.receives ? toe_send(fd, content + now.offset + done, most - done < PART ? most - done : PART, MSG_NOSIGNAL)
                                 : toe_recv(fd, got + done, most - done < PART ? most - done : PART, 0);
        if (n <= 0)
            break;
        if (!now.receives)
            CHECK(is_there(got, done + (size_t)n));
        done += (size_t)n;
        atomic_store(&shared->at_peer, done);
    }
    if (now.fault == PEER_RESETS)
        reset(fd);
    if (!now.receives && now.fault != PEER_RESETS && now.fault != PEER_ENDS) {
        /* Nothing comes behind what was to be sent. */
        ssize_t n = toe_recv(fd, got, 1, 0);
        CHECK(n == 0 || (n == -1 && now.fault == MOVER_DIES));
    }
    toe_close(fd);
    atomic_store(&shared->peer_done, now.number);
}

static void peer(uint16_t port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int on = 1, listener;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    CHECK((listener = toe_socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(toe_setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    /* The port of one that was killed is free when the engine has seen it. */
    while (toe_bind(listener, (struct sockaddr *)&at, sizeof at) != 0) {
        CHECK(errno == EADDRINUSE);
        give_way();
    }
    CHECK(toe_listen(listener, 8) == 0);
    atomic_store(&shared->peer_listens, 1);
    for (;;) {
        int fd = toe_accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        serve(fd);
    }
}

/* ---- the mover ---- */

static int file;

static void *cut(void *unused) {
    while (atomic_load(&shared->at_peer) < now.when)
        give_way();
    CHECK(ftruncate(file, (off_t)(now.offset + now.when)) == 0);
    return unused;
}

/* One step of a method that takes many; 0: no more. */
static ssize_t step(int fd, size_t done, size_t most) {
    off_t at = (off_t)(now.offset + done);
    return now.receives ? toe_directread(fd, file, at, most) : toe_directwrite(file, fd, at, most);
}

/* Moves the bytes; returns how many, and for what it stopped, if for something. */
static size_t move(int fd, int *error) {
    size_t done = 0, part = now.method == PARTS ? 1 + now.length / 7 : now.length;
    *error = 0;
    if (now.method == BESIDE) {
        off_t at = (off_t)now.offset;
        struct toe_transfer *transfer =
            now.receives ? toe_directread_begin(fd, file, at, now.length) : toe_directwrite_begin(file, fd, at, now.length);
        CHECK(transfer != NULL);
        if (now.fault == CANCEL) {
            while (toe_transfer_done(transfer) < now.when / 2)
                give_way();
            toe_transfer_cancel(transfer);
        }
        if (toe_transfer_end(transfer, &done) != 0)
            *error = errno;
        return done;
    }
    if (now.method == WHAT_FITS)
        CHECK(toe_fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    while (done < now.length) {
        ssize_t n = step(fd, done, now.length - done < part ? now.length - done : part);
        if (n > 0) {
            done += (size_t)n;
        } else if (n == -1 && errno == EAGAIN && now.method == WHAT_FITS) {
            struct pollfd ready = {.fd = fd, .events = now.receives ? POLLIN : POLLOUT};
            CHECK(toe_poll(&ready, 1, -1) == 1);
        } else {
            if (n == -1)
                *error = errno;
            break;
        }
    }
    return done;
}

/* What was sent: all, or as much as there was, or as much as somebody took. */
static void check_sent(size_t done, int error) {
    switch (now.fault) {
    case NONE:
        CHECK(done == now.length && error == 0);
        break;
    case CUT:
        CHECK(done >= now.when && done <= now.length && error == 0);
        break;
    case CANCEL:
        CHECK(error == ECANCELED || (error == 0 && done == now.length));
        break;
    default:
        CHECK(done == now.length || error == ECONNRESET || error == EPIPE || error == ENOTCONN);
    }
    while (atomic_load(&shared->peer_done) != now.number && now.fault != PEER_DIES)
        give_way();
    if (now.fault == NONE || now.fault == CUT || now.fault == CANCEL)
        CHECK(atomic_load(&shared->at_peer) == done);
}

/* What was received: all of it is in the file or still to be received. */
static void check_received(int fd, size_t done, int error) {
    size_t size = now.offset + done, more = 0;
    CHECK(done <= now.length);
    CHECK(pread(file, got, sizeof got, 0) == (ssize_t)(done > 0 ? size : 0));
    CHECK(is_there(got + now.offset, done));
    for (size_t i = 0; i < now.offset && done > 0; i++)
        CHECK(got[i] == 0);
    if (now.fault == PEER_RESETS || now.fault == PEER_DIES)
        return;
    if (now.fault == FULL && done < now.length)
        CHECK(error == EFBIG && done == now.when);
    if (now.fault == NONE)
        CHECK(done == now.length && error == 0);
    toe_fcntl(fd, F_SETFL, 0);
    while (done + more < until()) {
        ssize_t n = toe_recv(fd, got + more, until() - done - more, 0);
        CHECK(n > 0);
        more += (size_t)n;
    }
    CHECK(memcmp(got, content + now.offset + done, more) == 0);
}

static void one(uint32_t number, struct sockaddr_in *at) {
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    pthread_t cutter;
    plan(number);
    CHECK(ftruncate(file, 0) == 0);
    if (!now.receives)
        CHECK(pwrite(file, content, now.offset + now.length, 0) == (ssize_t)(now.offset + now.length));
    int fd = toe_socket(AF_INET, SOCK_STREAM, 0), most = 256 << 10;
    CHECK(fd >= 0);
    if (number % 3 != 0) {
        CHECK(toe_setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &most, sizeof most) == 0);
        CHECK(toe_setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &most, sizeof most) == 0);
    }
    CHECK(toe_connect(fd, (struct sockaddr *)at, sizeof *at) == 0);
    atomic_store(&shared->at_peer, 0);
    atomic_store(&shared->begun, number);
    CHECK(toe_send(fd, &number, sizeof number, MSG_NOSIGNAL) == sizeof number);
    if (now.fault == CUT)
        CHECK(pthread_create(&cutter, NULL, cut, NULL) == 0);
    if (now.fault == FULL) {
        limit.rlim_cur = now.offset + now.when;
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    }
    int error;
    size_t done = move(fd, &error);
    limit.rlim_cur = RLIM_INFINITY;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    if (now.receives)
        check_received(fd, done, error);
    toe_close(fd);
    if (!now.receives)
        check_sent(done, error);
    if (now.fault == CUT)
        pthread_join(cutter, NULL);
    while (now.receives && atomic_load(&shared->peer_done) != now.number && now.fault != PEER_DIES)
        give_way();
    atomic_fetch_add(&shared->came[now.fault], 1);
    atomic_store(&shared->over, number);
    /* Whoever is to die does, though it may be late. */
    while (now.fault == MOVER_DIES || now.fault == PEER_DIES)
        pause();
}

static void mover(uint16_t port, const char *folder, uint32_t first, uint32_t count) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    /* In memory and on a disk turn about: their bytes go other ways. */
    int files[2];
    CHECK((files[0] = memfd_create("transfers", 0)) >= 0);
    CHECK((files[1] = open(folder, O_TMPFILE | O_RDWR, 0600)) >= 0);
    for (uint32_t number = first; number <= count; number++) {
        file = files[number % 2];
        one(number, &at);
    }
}

/* ---- who keeps them ---- */

static pid_t start(char **argv, const char *role, int memory, uint32_t first) {
    char number[16], descriptor[16];
    snprintf(number, sizeof number, "%u", first);
    snprintf(descriptor, sizeof descriptor, "%d", memory);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        execl("/proc/self/exe", argv[0], argv[1], argv[2], argv[3], argv[4], role, number, descriptor, NULL);
        _exit(127);
    }
    return pid;
}

static void end(pid_t pid) {
    kill(pid, SIGKILL);
    CHECK(waitpid(pid, NULL, 0) == pid);
}

/* Whether it is time for whom this transfer kills. */
static int is_due(void) {
    uint32_t number = atomic_load(&shared->begun);
    if (number == 0)
        return 0;
    plan(number);
    int is_over = atomic_load(&shared->over) == number;
    return (now.fault == MOVER_DIES || now.fault == PEER_DIES) && (is_over || atomic_load(&shared->at_peer) >= now.when / 2);
}

static void keep(char **argv, int memory, uint32_t count) {
    uint32_t deaths = 0;
    pid_t peer_pid = start(argv, "peer", memory, 0), mover_pid = 0;
    for (uint32_t first = 1; first <= count;) {
        while (!atomic_load(&shared->peer_listens))
            give_way();
        if (mover_pid == 0)
            mover_pid = start(argv, "mover", memory, first);
        int status = 0;
        pid_t ended = waitpid(-1, &status, WNOHANG);
        if (ended == mover_pid) {
            CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0 && atomic_load(&shared->over) == count);
            first = count + 1;
            break;
        }
        CHECK(ended == 0);
        if (!is_due()) {
            give_way();
            continue;
        }
        deaths++;
        first = now.number + 1;
        /* Either way the next transfer has both anew. */
        if (now.fault == MOVER_DIES) {
            end(mover_pid);
            while (atomic_load(&shared->peer_done) != now.number && waitpid(peer_pid, &status, WNOHANG) == 0)
                give_way();
            CHECK(status == 0);
        } else {
            atomic_store(&shared->peer_listens, 0);
            end(peer_pid);
            while (atomic_load(&shared->over) != now.number && waitpid(mover_pid, &status, WNOHANG) == 0)
                give_way();
            CHECK(status == 0);
            end(mover_pid);
            peer_pid = start(argv, "peer", memory, 0);
        }
        atomic_store(&shared->begun, 0);
        mover_pid = 0;
    }
    end(peer_pid);
    printf("all, %u deaths;", deaths);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        printf(" %s %u;", faults[i], atomic_load(&shared->came[i]));
    puts("");
}

int main(int argc, char **argv) {
    if (argc < 5)
        return 2;
    uint16_t port = (uint16_t)atoi(argv[1]);
    uint32_t count = (uint32_t)atoi(argv[4]);
    seed = strtoull(argv[3], NULL, 10);
    int memory = argc > 5 ? atoi(argv[7]) : memfd_create("shared", 0);
    if (memory < 0 || ftruncate(memory, sizeof *shared) != 0)
        return 3;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    make_content();
    if (argc == 5)
        keep(argv, memory, count);
    else if (strcmp(argv[5], "peer") == 0)
        peer(port);
    else
        mover(port, argv[2], (uint32_t)atoi(argv[6]), count);
    return 0;
}
