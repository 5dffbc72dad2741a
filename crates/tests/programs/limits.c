/*
 * Programs that take less for themselves while they have connections (sshd, vsftpd): `limits PORT`. What is open goes on, and what
 * a limit leaves is the program's. Prints what it has tried, and "all" at the end.
 */
#define _GNU_SOURCE
#include "checks.h"
#include <arpa/inet.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* More than a socket's buffers hold, and what of it is read before the limit; what memory there may be, and what is asked for then. */
enum { BYTES = 6 << 20, FIRST = 1000, SPACE = 200 << 20, ASKED = 64 << 20, MUCH_SPACE = 1000 << 20 };
enum { BY_SETRLIMIT, BY_PRLIMIT, BY_NUMBER, WAYS };
enum { FEW_DESCRIPTORS, LITTLE_SPACE, FEW_AND_LESS_SPACE };

static char bytes[BYTES];
static struct sockaddr_in address = {.sin_family = AF_INET};

static void limit_to(int resource, rlim_t most, int way)
{
    struct rlimit limit = {most, most};
    if (way == BY_SETRLIMIT)
        CHECK(setrlimit(resource, &limit) == 0);
    else if (way == BY_PRLIMIT)
        CHECK(prlimit(0, resource, &limit, NULL) == 0);
    else
        CHECK(syscall(SYS_prlimit64, 0, resource, &limit, NULL) == 0);
}

static char byte_at(size_t at) { return (char)(at * 7 + at / 251); }

static void write_some(int fd, size_t from, size_t to)
{
    for (ssize_t n; from < to; from += (size_t)n)
        CHECK((n = write(fd, bytes + from, to - from)) > 0);
}

static void read_some(int fd, size_t from, size_t to)
{
    static char got[65536];
    while (from < to) {
        struct pollfd polled = {fd, POLLIN, 0};
        CHECK(poll(&polled, 1, -1) == 1);
        size_t most = to - from < sizeof got ? to - from : sizeof got;
        ssize_t n = read(fd, got, most);
        CHECK(n > 0 && memcmp(got, bytes + from, (size_t)n) == 0);
        from += (size_t)n;
    }
}

static int listener(void)
{
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, 5) == 0);
    return fd;
}

static int connected(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

/* Sends everything, gets it back, and sees the end. */
static void be_client(void)
{
    int fd = connected();
    write_some(fd, 0, BYTES);
    read_some(fd, 0, BYTES);
    char more;
    CHECK(read(fd, &more, 1) == 0);
    exit(0);
}

static void expect_ends(int children)
{
    for (int status; children > 0; children--)
        CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void ask_for_memory(void)
{
    void *asked = mmap(NULL, ASKED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(asked != MAP_FAILED);
    CHECK(munmap(asked, ASKED) == 0);
}

static void limit(int what, int way)
{
    if (what != LITTLE_SPACE)
        limit_to(RLIMIT_NOFILE, 1, way);
    if (what != FEW_DESCRIPTORS) {
        limit_to(RLIMIT_AS, what == LITTLE_SPACE ? SPACE : MUCH_SPACE, way);
        ask_for_memory();
    }
}

/* A child with the connection: its parent has read `by_parent` bytes, itself it reads up to `before` before the limit. */
static void in_child(int what, int way, size_t by_parent, size_t before)
{
    int listening = listener();
    if (fork() == 0) {
        close(listening);
        be_client();
    }
    int fd = accept(listening, NULL, NULL);
    CHECK(fd >= 0 && close(listening) == 0);
    read_some(fd, 0, by_parent);
    if (fork() == 0) {
        read_some(fd, by_parent, before);
        limit(what, way);
        read_some(fd, before, BYTES);
        write_some(fd, 0, BYTES);
        exit(0);
    }
    CHECK(close(fd) == 0);
    expect_ends(2);
}

/* Until programs speak without the engine, how much, and how much then lies unread. */
enum { EXCHANGES = 50, EXCHANGED = 100, UNREAD = 5000, LOOKS = 3000 };

static void be_talking_client(void)
{
    int fd = connected();
    for (int round = 0; round < EXCHANGES; round++) {
        write_some(fd, 0, EXCHANGED);
        read_some(fd, 0, EXCHANGED);
    }
    write_some(fd, 0, UNREAD);
    read_some(fd, 0, EXCHANGED);
    write_some(fd, UNREAD, BYTES);
    read_some(fd, EXCHANGED, 2 * EXCHANGED);
    exit(0);
}

/* What the parent has not read its child reads, with no descriptor left to it; or the parent wants the connection back before all is read. */
static void unread_in_child(int way, int is_shared)
{
    static char seen[UNREAD];
    int listening = listener(), tell[2];
    if (fork() == 0) {
        close(listening);
        be_talking_client();
    }
    int fd = accept(listening, NULL, NULL);
    CHECK(fd >= 0 && close(listening) == 0 && pipe(tell) == 0);
    for (int round = 0; round < EXCHANGES; round++) {
        read_some(fd, 0, EXCHANGED);
        write_some(fd, 0, EXCHANGED);
    }
    while (recv(fd, seen, UNREAD, MSG_PEEK) < UNREAD)
        ;
    if (fork() == 0) {
        limit(FEW_DESCRIPTORS, way);
        read_some(fd, 0, EXCHANGED);
        CHECK(write(tell[1], "r", 1) == 1);
        /* Meanwhile its parent asks, if it does. */
        for (int look = 0; look < LOOKS; look++)
            CHECK(recv(fd, seen, 1, MSG_PEEK) == 1);
        read_some(fd, EXCHANGED, UNREAD);
        CHECK(write(tell[1], "u", 1) == 1);
        exit(0);
    }
    CHECK(close(tell[1]) == 0 && read(tell[0], seen, 1) == 1);
    if (is_shared)
        write_some(fd, 0, EXCHANGED);
    CHECK(read(tell[0], seen, 1) == 1);
    if (!is_shared)
        write_some(fd, 0, EXCHANGED);
    read_some(fd, UNREAD, BYTES);
    write_some(fd, EXCHANGED, 2 * EXCHANGED);
    CHECK(close(fd) == 0 && close(tell[0]) == 0);
    expect_ends(2);
}

static int next_of(int set)
{
    struct epoll_event event;
    CHECK(epoll_wait(set, &event, 1, -1) == 1);
    return event.data.fd;
}

static void watch(int set, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

/* What a server has when the limit comes: a listener, a connection with bytes both ways, a set, and a socket of UDP. */
static void be_limited_server(void)
{
    int listening = listener(), datagrams = socket(AF_INET, SOCK_DGRAM, 0), set = epoll_create1(0);
    CHECK(bind(datagrams, (struct sockaddr *)&address, sizeof address) == 0);
    int tell[2];
    CHECK(pipe(tell) == 0);
    if (fork() == 0) {
        int fd = connected(), own = socket(AF_INET, SOCK_DGRAM, 0);
        write_some(fd, 0, 2 * FIRST);
        read_some(fd, 0, FIRST);
        char go;
        CHECK(read(tell[0], &go, 1) == 1);
        write_some(fd, 2 * FIRST, BYTES);
        read_some(fd, FIRST, BYTES);
        CHECK(sendto(own, "d", 1, 0, (struct sockaddr *)&address, sizeof address) == 1);
        close(fd);
        be_client();
    }
    watch(set, listening);
    CHECK(next_of(set) == listening);
    int fd = accept(listening, NULL, NULL);
    watch(set, fd);
    CHECK(next_of(set) == fd);
    read_some(fd, 0, FIRST);
    write_some(fd, 0, FIRST);
    limit_to(RLIMIT_AS, SPACE, BY_SETRLIMIT);
    ask_for_memory();
    CHECK(next_of(set) == fd);
    read_some(fd, FIRST, 2 * FIRST);
    CHECK(write(tell[1], "g", 1) == 1);
    CHECK(next_of(set) == fd);
    read_some(fd, 2 * FIRST, BYTES);
    write_some(fd, FIRST, BYTES);
    char of_datagram[2];
    CHECK(recv(datagrams, of_datagram, 2, 0) == 1);
    CHECK(next_of(set) == fd && read(fd, of_datagram, 1) == 0 && close(fd) == 0);
    CHECK(next_of(set) == listening);
    fd = accept(listening, NULL, NULL);
    read_some(fd, 0, BYTES);
    write_some(fd, 0, BYTES);
    CHECK(close(fd) == 0);
    expect_ends(1);
}

int main(int count, char **arguments)
{
    CHECK(count == 2);
    alarm(50);
    address.sin_port = htons((in_port_t)atoi(arguments[1]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (size_t at = 0; at < BYTES; at++)
        bytes[at] = byte_at(at);
    for (int way = 0; way < WAYS; way++) {
        in_child(FEW_DESCRIPTORS, way, FIRST, FIRST);
        in_child(LITTLE_SPACE, way, FIRST, 2 * FIRST);
        printf("by way %d\n", way);
        fflush(stdout);
    }
    in_child(FEW_DESCRIPTORS, BY_SETRLIMIT, 0, 0);
    in_child(LITTLE_SPACE, BY_SETRLIMIT, 0, 0);
    in_child(FEW_AND_LESS_SPACE, BY_SETRLIMIT, FIRST, FIRST);
    for (int round = 0; round < 2 * WAYS; round++)
        unread_in_child(round / 2, round % 2);
    printf("unread\n");
    fflush(stdout);
    /* Of this process there is a limit afterwards. */
    if (fork() == 0) {
        be_limited_server();
        exit(0);
    }
    expect_ends(1);
    printf("all\n");
    return 0;
}
