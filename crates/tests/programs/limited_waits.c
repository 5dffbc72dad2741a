/*
 * Waits where a limit is at hand: `limited_waits PORT`. poll takes as many entries as there may be descriptors; a limit that falls,
 * by whomever, ends no wait; and a child that has its parent's connection goes on with it in whatever space it leaves itself. Prints
 * what it has tried, and "all" at the end.
 */
#define _GNU_SOURCE
#include "checks.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FULL = 64, PAIRS = 3, ROUNDS = 200, BYTES = 100 };
enum { WAITS_IN_RECV, WAITS_IN_POLL, WAITS_IN_EPOLL };

static struct sockaddr_in address = {.sin_family = AF_INET};
static int listening, ours[PAIRS], theirs[PAIRS], sets[PAIRS];
static int polls;

static void limit_to(pid_t process, int resource, rlim_t most)
{
    struct rlimit limit = {most, most};
    CHECK(prlimit(process, resource, &limit, NULL) == 0);
}

/* In a process of its own, as a limit is for ever. */
static void in_child(void (*body)(long), long argument)
{
    pid_t child = fork();
    if (child == 0) {
        alarm(150);
        body(argument);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void listen_at_port(void)
{
    int one = 1;
    CHECK((listening = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(listening, (struct sockaddr *)&address, sizeof address) == 0 && listen(listening, 5) == 0);
}

static void connect_pair(int pair)
{
    ours[pair] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(ours[pair], (struct sockaddr *)&address, sizeof address) == 0);
    CHECK((theirs[pair] = accept(listening, NULL, NULL)) >= 0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = theirs[pair]};
    CHECK((sets[pair] = epoll_create1(0)) >= 0);
    CHECK(epoll_ctl(sets[pair], EPOLL_CTL_ADD, theirs[pair], &event) == 0);
}

static void get(int fd)
{
    char got[BYTES];
    CHECK(recv(fd, got, sizeof got, MSG_WAITALL) == BYTES);
}

static void put(int fd)
{
    char bytes[BYTES] = {0};
    CHECK(send(fd, bytes, sizeof bytes, 0) == BYTES);
}

/* Until the main thread sleeps in the kernel: nothing else tells that a call waits. */
static void until_asleep(void)
{
    for (int quiet = 0; quiet < 20; usleep(200)) {
        char line[512] = "";
        FILE *stat = fopen("/proc/self/stat", "r");
        CHECK(stat && fgets(line, sizeof line, stat) && fclose(stat) == 0);
        char *state = strrchr(line, ')');
        quiet = state && state[2] == 'S' ? quiet + 1 : 0;
    }
}

static void *send_later(void *tell)
{
    char go;
    CHECK(read(*(int *)tell, &go, 1) == 1);
    until_asleep();
    put(ours[0]);
    return NULL;
}

static void *close_later(void *pipe)
{
    until_asleep();
    CHECK(close(((int *)pipe)[1]) == 0);
    return NULL;
}

/* One entry is a connection, some are what the kernel has, and all others are `rest`: as many as the limit allows. */
static void poll_many(long rest)
{
    static struct pollfd polled[FULL + 1];
    int silent[2], tell[2];
    pthread_t other;
    CHECK(pipe(silent) == 0 && pipe(tell) == 0);
    limit_to(0, RLIMIT_NOFILE, FULL);
    CHECK(pthread_create(&other, NULL, send_later, &tell[0]) == 0);
    for (int at = 0; at <= FULL; at++)
        polled[at] = (struct pollfd){rest < 0 ? -1 : silent[0], POLLIN, 0};
    polled[FULL / 2] = (struct pollfd){theirs[0], POLLIN, 0};
    CHECK(poll(polled, FULL + 1, -1) == -1 && errno == EINVAL);
    CHECK(write(tell[1], "g", 1) == 1);
    CHECK(poll(polled, FULL, -1) == 1 && polled[FULL / 2].revents == POLLIN);
    CHECK(pthread_join(other, NULL) == 0);
    get(theirs[0]);
    /* What is the kernel's ends such a sleep as well, and exactly what came is told. */
    CHECK(pthread_create(&other, NULL, close_later, silent) == 0);
    polled[0] = (struct pollfd){silent[0], POLLIN, 0};
    CHECK(poll(polled, FULL, -1) == (rest < 0 ? 1 : FULL - 1) && polled[0].revents == POLLHUP);
    CHECK(pthread_join(other, NULL) == 0);
}

static void *answer(void *argument)
{
    long pair = (long)argument;
    struct pollfd polled = {theirs[pair], POLLIN, 0};
    struct epoll_event event;
    for (;;) {
        if (pair == WAITS_IN_POLL && polls)
            CHECK(poll(&polled, 1, -1) == 1);
        if (pair == WAITS_IN_EPOLL)
            CHECK(epoll_wait(sets[pair], &event, 1, -1) == 1);
        get(theirs[pair]);
        put(theirs[pair]);
    }
}

static void *ask(void *argument)
{
    long pair = (long)argument;
    for (int round = 0; round < ROUNDS; round++) {
        put(ours[pair]);
        get(ours[pair]);
    }
    return NULL;
}

static void begin(void *(*body)(void *), long first, pthread_t *threads)
{
    for (long pair = first; pair < PAIRS; pair++)
        CHECK(pthread_create(&threads[pair], NULL, body, (void *)pair) == 0);
}

static void ask_from(long first)
{
    pthread_t asking[PAIRS];
    begin(ask, first, asking);
    for (long pair = first; pair < PAIRS; pair++)
        CHECK(pthread_join(asking[pair], NULL) == 0);
}

/* Threads that wait, and others that begin to, while the limit falls to `most`. */
static void go_on(long most, int by_another)
{
    pthread_t answering[PAIRS];
    polls = most > 0; /* Linux takes not even one entry then. */
    for (int pair = 0; pair < PAIRS; pair++)
        connect_pair(pair);
    begin(answer, 0, answering);
    ask_from(0);
    pid_t process = getpid(), other = by_another ? fork() : -1;
    if (other <= 0)
        limit_to(other ? 0 : process, RLIMIT_NOFILE, (rlim_t)most);
    if (other == 0)
        _exit(0);
    if (other > 0) {
        int status;
        CHECK(waitpid(other, &status, 0) == other && status == 0);
    }
    ask_from(0);
}

static void go_on_below(long most) { go_on(most, 0); }

static void go_on_below_by_another(long most) { go_on(most, 1); }

/* The child is left `most` bytes of address space, of which it may have more already. */
static void serve_within(long most)
{
    connect_pair(0);
    pid_t child = fork();
    if (child == 0) {
        struct pollfd polled = {theirs[0], POLLIN, 0};
        alarm(150);
        limit_to(0, RLIMIT_AS, (rlim_t)most);
        for (int round = 0; round < ROUNDS; round++) {
            CHECK(poll(&polled, 1, -1) == 1);
            get(theirs[0]);
            put(theirs[0]);
        }
        _exit(0);
    }
    CHECK(close(theirs[0]) == 0);
    ask((void *)0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void serve_within_beside_threads(long most)
{
    pthread_t answering[PAIRS];
    for (int pair = 1; pair < PAIRS; pair++)
        connect_pair(pair);
    begin(answer, 1, answering);
    ask_from(1);
    serve_within(most);
}

int main(int count, char **arguments)
{
    static const long descriptors[] = {0, 1, 2, 3, 4, 8}, space[] = {1 << 20, 20 << 20, 100 << 20, 400 << 20, 1 << 30};
    CHECK(count == 2);
    alarm(150);
    address.sin_port = htons((in_port_t)atoi(arguments[1]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setvbuf(stdout, NULL, _IONBF, 0);
    listen_at_port();
    connect_pair(0);
    for (long rest = -1; rest <= 0; rest++)
        in_child(poll_many, rest);
    printf("poll of as many as there may be\n");
    for (size_t at = 0; at < sizeof descriptors / sizeof *descriptors; at++) {
        in_child(go_on_below, descriptors[at]);
        in_child(go_on_below_by_another, descriptors[at]);
        printf("threads below %ld descriptors\n", descriptors[at]);
    }
    for (size_t at = 0; at < sizeof space / sizeof *space; at++) {
        in_child(serve_within, space[at]);
        in_child(serve_within_beside_threads, space[at]);
        printf("a child in %ld bytes\n", space[at]);
    }
    printf("all\n");
    return 0;
}
