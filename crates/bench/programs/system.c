/* Time, errors, limits, signals. */
#include "load.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t seconds_ns(double seconds)
{
    return (uint64_t)(seconds * 1e9);
}

static void say(const char *format, va_list arguments, const char *reason)
{
    fputs("toe-load: ", stderr);
    vfprintf(stderr, format, arguments);
    if (reason != NULL)
        fprintf(stderr, ": %s", reason);
    fputc('\n', stderr);
}

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments, NULL);
    va_end(arguments);
    exit(EXIT_FAILURE);
}

void die_errno(const char *format, ...)
{
    const char *reason = strerror(errno);
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments, reason);
    va_end(arguments);
    exit(EXIT_FAILURE);
}

void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        die("no memory for %zu objects of %zu bytes: ask for fewer connections", count, size);
    return memory;
}

void raise_descriptor_limit(void)
{
    /* The hard limit too, where that is permitted (to root): 20,000 connections and the epoll need more than 20,000. */
    enum { WANTED = 65536 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        die_errno("the limit on descriptors");
    struct rlimit wanted = {.rlim_cur = WANTED, .rlim_max = WANTED};
    if (limit.rlim_max < WANTED && setrlimit(RLIMIT_NOFILE, &wanted) == 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        die_errno("raising the limit on descriptors to the hard limit");
}

void cpu_time_us(uint64_t *user, uint64_t *system)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    *user = (uint64_t)usage.ru_utime.tv_sec * 1000000u + (uint64_t)usage.ru_utime.tv_usec;
    *system = (uint64_t)usage.ru_stime.tv_sec * 1000000u + (uint64_t)usage.ru_stime.tv_usec;
}

static volatile sig_atomic_t end_wanted, report_wanted;

static void on_signal(int number)
{
    if (number == SIGUSR1)
        report_wanted = 1;
    else
        end_wanted = 1;
}

void signals_hold(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1};
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t held;
    sigemptyset(&held);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        sigaddset(&held, numbers[i]);
        sigaction(numbers[i], &action, NULL);
    }
    /* Held back outside of the wait, so that none comes between the look at the flags and the wait. */
    sigprocmask(SIG_BLOCK, &held, NULL);
}

bool signals_end(void)
{
    return end_wanted != 0;
}

bool signals_take_report(void)
{
    bool wanted = report_wanted != 0;
    report_wanted = 0;
    return wanted;
}
