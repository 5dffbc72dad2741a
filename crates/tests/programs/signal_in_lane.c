/* A signal that reaches a thread while its recv looks at the lanes of a UDP socket, before it sleeps, ends the call, or, with
 * SA_RESTART, is handled within it; pthread_cancel ends it, unless the thread does not let itself be ended: `signal_in_lane PORT`.
 *
 * Both processes share a processor: who looks lets the other one run, which signals then. As on Linux a signal may come between the program's
 * last look and the call. Then the other process signals again.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "checks.h"

enum { EXCHANGES = 400, EXCHANGES_OF_A_ROUND = 20, ROUNDS = 3000, REPEATS_MAX = 3, REPEAT_AFTER_MS = 1000, YIELDS_MAX = 8 };
enum { RECV, RECVMSG, RECVMMSG, CALLS };

static int to_child[2], to_parent[2];
/* The round whose call begins: who reads it spins, as one that is woken would come too late. */
static atomic_int *begun;
static volatile sig_atomic_t is_in_call, came;

static void say(int end, char what) { CHECK(write(end, &what, 1) == 1); }

static char hear(int end) {
    char what;
    CHECK(read(end, &what, 1) == 1);
    return what;
}

static void handler(int unused) {
    int kept = errno;
    (void)unused;
    came = 1;
    if (!is_in_call) say(to_child[1], 'h');
    errno = kept;
}

static void restarting(int unused) {
    int kept = errno;
    (void)unused;
    came = 1;
    say(to_child[1], 'h');
    errno = kept;
}

static int bound(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

static void reach(int fd, int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
}

static ssize_t receive(int fd, int call, char *byte) {
    struct iovec into = {byte, 1};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &into, .msg_iovlen = 1}};
    switch (call) {
    case RECV: return recv(fd, byte, 1, 0);
    case RECVMSG: return recvmsg(fd, &message.msg_hdr, 0);
    default: return recvmmsg(fd, &message, 1, 0, NULL);
    }
}

/* A lane that bears no fruit is soon looked at no more. */
static void exchange(int fd, int times, int begins) {
    char byte = 'e';
    for (int n = 0; n < times; n++) {
        if (begins) CHECK(send(fd, &byte, 1, 0) == 1);
        CHECK(recv(fd, &byte, 1, 0) == 1);
        if (!begins) CHECK(send(fd, &byte, 1, 0) == 1);
    }
}

static void signal_in_rounds(int fd) {
    pid_t parent = getppid();
    int repeats = 0;
    for (int round = 0; round < 2 * ROUNDS; round++) {
        exchange(fd, EXCHANGES_OF_A_ROUND, 0);
        while (atomic_load(begun) <= round) sched_yield();
        for (int yields = rand() % YIELDS_MAX; yields > 0; yields--) sched_yield();
        struct pollfd handled = {to_child[0], POLLIN, 0};
        do {
            CHECK(kill(parent, SIGUSR1) == 0);
        } while (poll(&handled, 1, REPEAT_AFTER_MS) == 0 && ++repeats <= REPEATS_MAX);
        if (repeats > REPEATS_MAX) kill(parent, SIGKILL);
        CHECK(repeats <= REPEATS_MAX && hear(to_child[0]) == 'h');
        CHECK(send(fd, "d", 1, 0) == 1);
    }
}

static int in_child(int parent_port, int port) {
    int fd = bound(port);
    say(to_parent[1], 'b');
    CHECK(hear(to_child[0]) == 'b');
    reach(fd, parent_port);
    exchange(fd, EXCHANGES, 0);
    signal_in_rounds(fd);
    exchange(fd, EXCHANGES_OF_A_ROUND, 0);
    CHECK(hear(to_child[0]) == 'c' && send(fd, "d", 1, 0) == 1);
    exchange(fd, EXCHANGES_OF_A_ROUND, 0);
    return 0;
}

static void be_signalled(int fd, int call, int restarts) {
    char byte = 0;
    exchange(fd, EXCHANGES_OF_A_ROUND, 1);
    came = 0;
    atomic_fetch_add(begun, 1);
    is_in_call = 1;
    ssize_t got = receive(fd, call, &byte);
    is_in_call = 0;
    if (restarts || (got == 1 && came)) {
        CHECK(got == 1 && byte == 'd' && came);
        return;
    }
    CHECK(got == -1 && errno == EINTR && came);
    say(to_child[1], 'h');
    CHECK(receive(fd, call, &byte) == 1 && byte == 'd');
}

static _Atomic pid_t asleep;

struct receiver {
    int fd, state;
};

static void *receive_to_the_end(void *of) {
    struct receiver *receiver = of;
    char byte = 0;
    exchange(receiver->fd, EXCHANGES_OF_A_ROUND, 1);
    CHECK(pthread_setcancelstate(receiver->state, NULL) == 0);
    asleep = gettid();
    CHECK(recv(receiver->fd, &byte, 1, 0) == 1 && byte == 'd');
    return NULL;
}

static void be_asked_to_end(int fd, int state) {
    struct receiver receiver = {fd, state};
    pthread_t thread;
    void *result;
    asleep = 0;
    CHECK(pthread_create(&thread, NULL, receive_to_the_end, &receiver) == 0);
    while (!asleep) sched_yield();
    until_asleep(asleep);
    CHECK(pthread_cancel(thread) == 0);
    if (state == PTHREAD_CANCEL_DISABLE) {
        until_asleep(asleep);
        say(to_child[1], 'c');
    }
    CHECK(pthread_join(thread, &result) == 0);
    CHECK((result == PTHREAD_CANCELED) == (state == PTHREAD_CANCEL_ENABLE));
}

int main(int argc, char **argv) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    CHECK(argc == 2 && pipe(to_child) == 0 && pipe(to_parent) == 0);
    int port = atoi(argv[1]);
    begun = mmap(NULL, sizeof *begun, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(begun != MAP_FAILED);
    pid_t child = fork();
    if (child == 0) _exit(in_child(port, port + 1));
    int fd = bound(port);
    CHECK(hear(to_parent[0]) == 'b');
    reach(fd, port + 1);
    say(to_child[1], 'b');
    exchange(fd, EXCHANGES, 1);
    for (int restarts = 0; restarts < 2; restarts++) {
        struct sigaction action = {.sa_handler = restarts ? restarting : handler, .sa_flags = restarts ? SA_RESTART : 0};
        CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
        for (int round = 0; round < ROUNDS; round++) be_signalled(fd, round % CALLS, restarts);
    }
    be_asked_to_end(fd, PTHREAD_CANCEL_DISABLE);
    be_asked_to_end(fd, PTHREAD_CANCEL_ENABLE);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    puts("all");
    return 0;
}
