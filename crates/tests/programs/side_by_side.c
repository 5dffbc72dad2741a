/* Two connections of one process, which stands still, come to another one without its knowledge: one of them goes by a channel and has to be
 * given up first, the other is to be had at once. Who waits for the one keeps nobody from the other, and has it when its holder dies.
 * Prints "stands still", "the other", and "all" at the end.
 *
 *     side_by_side PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.h"

/* So many messages make a connection use a channel. */
enum { WARM = 2000 };

static int by_channel, other;
static _Atomic pid_t claimer;
static _Atomic int has_claimed;

static void echoed(int fd, char byte) {
    char back = 0;
    CHECK(send(fd, &byte, 1, 0) == 1 && recv(fd, &back, 1, 0) == 1 && back == byte);
}

static int listens(in_port_t port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 8) == 0);
    return fd;
}

static int connected(in_port_t port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

static void *echo(void *of) {
    int fd = (int)(long)of;
    for (char byte; recv(fd, &byte, 1, 0) == 1;)
        CHECK(send(fd, &byte, 1, 0) == 1);
    return NULL;
}

static void serve(in_port_t port, int ready) {
    int listener = listens(port);
    CHECK(write(ready, "", 1) == 1);
    for (int n = 0; n < 2; n++) {
        pthread_t thread;
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0 && pthread_create(&thread, NULL, echo, (void *)(long)fd) == 0);
    }
    for (;;)
        pause();
}

/* Its descriptors, and then it waits where the library has no part in it. */
static void hold(in_port_t port, int tells, int never) {
    int fds[2] = {connected(port), connected(port)};
    for (int n = 0; n < WARM; n++)
        echoed(fds[0], 'w');
    echoed(fds[1], 'o');
    CHECK(write(tells, fds, sizeof fds) == sizeof fds);
    CHECK(read(never, fds, 1) == 0);
}

static void *claim(void *unused) {
    char byte;
    claimer = gettid();
    CHECK(recv(by_channel, &byte, 1, 0) == 1 && byte == 'd');
    has_claimed = 1;
    return unused;
}

/* Until it has been told that the holder has to give it up: only between two questions does it sleep by the clock. One look that finds it
 * so is enough. It asks again and again, so that on a busy machine it is often neither asleep nor running. */
static void until_it_waits(void) {
    for (int call = -1; call != SYS_clock_nanosleep; sched_yield()) {
        char path[64], text[512] = "";
        snprintf(path, sizeof path, "/proc/self/task/%d/syscall", claimer);
        int file = open(path, O_RDONLY);
        ssize_t n = read(file, text, sizeof text - 1);
        close(file);
        call = n > 0 && text[0] != 'r' ? atoi(text) : -1;
    }
}

/* The program that has found them. */
static int claims(char **arguments) {
    pid_t holder = atoi(arguments[3]), server = atoi(arguments[4]);
    by_channel = atoi(arguments[1]), other = atoi(arguments[2]);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, claim, NULL) == 0);
    while (!claimer)
        sched_yield();
    until_it_waits();
    puts("stands still");
    echoed(other, 'c');
    CHECK(!has_claimed);
    puts("the other");
    CHECK(kill(holder, SIGKILL) == 0);
    CHECK(send(by_channel, "d", 1, 0) == 1 && pthread_join(thread, NULL) == 0 && has_claimed);
    puts("all");
    return kill(server, SIGKILL);
}

int main(int count, char **arguments) {
    alarm(60);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count == 5)
        return claims(arguments);
    CHECK(count == 2);
    in_port_t port = (in_port_t)atoi(arguments[1]);
    int ready[2], tells[2], never[2], theirs[2], status;
    char byte, text[4][16];
    CHECK(pipe(ready) == 0 && pipe(tells) == 0 && pipe(never) == 0);
    pid_t server = fork();
    if (server == 0) {
        alarm(60);
        serve(port, ready[1]);
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    pid_t holder = fork();
    if (holder == 0) {
        alarm(60);
        hold(port, tells[1], never[0]);
        _exit(0);
    }
    CHECK(read(tells[0], theirs, sizeof theirs) == sizeof theirs);
    CHECK(kill(holder, SIGSTOP) == 0 && waitpid(holder, &status, WUNTRACED) == holder && WIFSTOPPED(status));
    int pidfd = (int)syscall(SYS_pidfd_open, holder, 0);
    CHECK(pidfd >= 0);
    for (int n = 0; n < 2; n++) {
        int fd = (int)syscall(SYS_pidfd_getfd, pidfd, theirs[n], 0);
        CHECK(fd >= 0 && fcntl(fd, F_SETFD, 0) == 0);
        snprintf(text[n], sizeof text[n], "%d", fd);
    }
    snprintf(text[2], sizeof text[2], "%d", holder);
    snprintf(text[3], sizeof text[3], "%d", server);
    char *again[] = {arguments[0], text[0], text[1], text[2], text[3], NULL};
    return execv("/proc/self/exe", again);
}
