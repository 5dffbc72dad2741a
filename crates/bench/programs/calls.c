/* What single calls cost: sockets made and closed, connections taken and closed, and calls that have nothing to do with
 * sockets. No load and no server: the caller's own time, in batches so that reading the clock does not count. */
#include "load.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 200, FILE_BATCH = 1000 };

/* Time for the other end, or the engine, to finish what the batch before began: it is not this program's time. */
static void settle(void)
{
    struct timespec pause = {.tv_nsec = 2000000};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
}

static void record(uint64_t ns, uint32_t calls)
{
    for (uint32_t i = 0; i < calls; i++)
        histogram_record(ns / calls);
}

/* Batches until the time is over; `batch` returns the nanoseconds that count. */
static int run(const struct options *options, const char *mode, uint32_t calls, uint64_t (*batch)(void))
{
    raise_descriptor_limit();
    uint64_t begin = now_ns() + seconds_ns(options->warmup);
    while (now_ns() < begin)
        batch();
    uint64_t now = now_ns(), end = now + seconds_ns(options->seconds);
    report_begin(now);
    while (now < end) {
        record(batch(), calls);
        now = now_ns();
    }
    report_end(now);
    report_requests(mode, 0);
    return 0;
}

static int new_socket(void)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0)
        die_errno("socket");
    return fd;
}

static uint64_t create(void)
{
    uint64_t began = now_ns();
    for (int i = 0; i < BATCH; i++)
        close(new_socket());
    return now_ns() - began;
}

int create_run(const struct options *options)
{
    return run(options, "create", BATCH, create);
}

static struct sockaddr_in address;
static int listener;

static uint64_t accept_all(void)
{
    int clients[BATCH], accepted[BATCH];
    for (int i = 0; i < BATCH; i++) {
        clients[i] = new_socket();
        if (connect(clients[i], (struct sockaddr *)&address, sizeof address) != 0)
            die_errno("connect");
    }
    settle();
    uint64_t began = now_ns();
    for (int i = 0; i < BATCH; i++)
        if ((accepted[i] = accept(listener, NULL, NULL)) < 0)
            die_errno("accept");
    for (int i = 0; i < BATCH; i++)
        close(accepted[i]);
    uint64_t took = now_ns() - began;
    for (int i = 0; i < BATCH; i++)
        close(clients[i]);
    settle();
    return took;
}

int accept_run(const struct options *options)
{
    socklen_t length = sizeof address;
    address = options->connect;
    address.sin_port = 0;
    listener = net_listen(&address, false);
    /* Taking them blocks, as plain servers do. */
    if (fcntl(listener, F_SETFL, 0) != 0 || getsockname(listener, (struct sockaddr *)&address, &length) != 0)
        die_errno("the listener");
    return run(options, "accept", BATCH, accept_all);
}

static int file;

static uint64_t read_file(void)
{
    char byte;
    uint64_t began = now_ns();
    for (int i = 0; i < FILE_BATCH; i++)
        if (read(file, &byte, 1) != 1)
            die_errno("read");
    return now_ns() - began;
}

int file_run(const struct options *options)
{
    if ((file = open("/dev/zero", O_RDONLY)) < 0)
        die_errno("/dev/zero");
    return run(options, "file", FILE_BATCH, read_file);
}
