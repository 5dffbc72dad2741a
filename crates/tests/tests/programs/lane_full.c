/*
 * Sends datagrams by an engine that is stopped: what a call does that finds no room is what Linux does where a send buffer is full.
 *
 *   lane_full ENGINE_PID PEER_ADDR PEER_PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define MUST(call)                                                                                                     \
    ({                                                                                                                 \
        long result_ = (call);                                                                                         \
        if (result_ < 0) {                                                                                             \
            perror(#call);                                                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
        result_;                                                                                                       \
    })

static int fd;
static char text[1400];
static int sent;
static _Atomic int came;

static const char *name_of(ssize_t result) {
    return result >= 0 ? "sent" : errno == EAGAIN ? "EAGAIN" : errno == EINTR ? "EINTR" : strerror(errno);
}

static void handler(int signal) {
    (void)signal;
    atomic_fetch_add(&came, 1);
}

/* A signal for this thread again and again, so that none is lost that comes before the call. */
static void every_5_ms(int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    MUST(sigaction(SIGALRM, &action, NULL));
    struct itimerval timer = {.it_interval = {.tv_usec = 5000}, .it_value = {.tv_usec = 5000}};
    MUST(setitimer(ITIMER_REAL, &timer, NULL));
}

static void no_more(void) {
    struct itimerval timer = {0};
    MUST(setitimer(ITIMER_REAL, &timer, NULL));
}

static void limit(long us) {
    struct timeval limit = {.tv_sec = us / 1000000, .tv_usec = us % 1000000};
    MUST(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
}

static void *send_one(void *unused) {
    (void)unused;
    send(fd, text, sizeof text, 0);
    return NULL;
}

/* Lets the engine go on once the handler has run a few times, which it does while the call waits. */
static void *go_on(void *engine) {
    while (atomic_load(&came) < 5)
        usleep(1000);
    MUST(kill((pid_t)(long)engine, SIGCONT));
    return NULL;
}

int main(int count, char **args) {
    if (count != 4)
        return 2;
    pid_t engine = atoi(args[1]);
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(atoi(args[3]))};
    MUST(inet_pton(AF_INET, args[2], &peer.sin_addr) - 1);
    fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(connect(fd, (void *)&peer, sizeof peer));
    /* The engine knows the way. */
    MUST(send(fd, "x", 1, 0));
    MUST(recv(fd, text, sizeof text, 0));
    int set = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    MUST(epoll_wait(set, &event, 1, 0));
    printf("told again %d\n", (int)MUST(epoll_wait(set, &event, 1, 0)));
    int before, after;
    socklen_t len = sizeof before;
    MUST(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &before, &len));

    MUST(kill(engine, SIGSTOP));
    ssize_t result;
    while ((result = send(fd, text, sizeof text, MSG_DONTWAIT)) >= 0)
        sent++;
    printf("not waiting: %s\n", name_of(result));
    for (int n = 0; n < 3; n++) {
        event.events = 0;
        int told = MUST(epoll_wait(set, &event, 1, 0));
        printf("told %d %d, ", told, event.events == EPOLLOUT);
        printf("again: %s\n", name_of(send(fd, text, sizeof text, MSG_DONTWAIT)));
    }
    MUST(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &after, &len));
    printf("the same buffer %d\n", before == after);
    struct iovec vector = {.iov_base = text, .iov_len = sizeof text};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}}};
    printf("several: %s\n", name_of(sendmmsg(fd, messages, 2, MSG_DONTWAIT)));

    limit(20000);
    printf("with a limit: %s\n", name_of(send(fd, text, sizeof text, 0)));
    limit(0);
    every_5_ms(0);
    printf("a signal: %s\n", name_of(send(fd, text, sizeof text, 0)));
    no_more();

    pthread_t thread;
    void *ended;
    MUST(-pthread_create(&thread, NULL, send_one, NULL));
    MUST(-pthread_cancel(thread));
    MUST(-pthread_join(thread, &ended));
    printf("cancelled %d\n", ended == PTHREAD_CANCELED);

    /* Restarted after each signal, until there is room. */
    atomic_store(&came, 0);
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    MUST(-pthread_create(&thread, NULL, go_on, (void *)(long)engine));
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    every_5_ms(SA_RESTART);
    result = send(fd, text, sizeof text, 0);
    no_more();
    printf("restarted: %s %d\n", name_of(result), atomic_load(&came) >= 5);
    MUST(-pthread_join(thread, NULL));
    /* All that were sent, with the first. */
    printf("went %d\n", sent + 1 + (result >= 0));
    return 0;
}
