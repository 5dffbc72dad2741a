/* The worker's loop: a line in, a call made, a line out; and the calls that concern processes. */
#define _GNU_SOURCE
#include "differ.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* The driver's end and the place for descriptors from other workers; both in the driver's directory. */
static const char *directory;
static int control, inbox;
static FILE *orders;
static char text[1 << 15];
static size_t text_length;
static volatile sig_atomic_t pipes, alarms;

void die(const char *what)
{
    fprintf(stderr, "toe-differ: %s: %s\n", what, strerror(errno));
    _exit(2);
}

static __attribute__((format(printf, 1, 2))) void say(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    text_length += (size_t)vsnprintf(text + text_length, sizeof text - text_length, format, list);
    va_end(list);
    if (text_length >= sizeof text)
        die("an answer is too long");
}

void answer(long result)
{
    int error = errno;
    say("r=%ld e=%d", result, result < 0 ? error : 0);
    errno = error;
}

void value(const char *name, long number)
{
    say(" %s=%ld", name, number);
}

void raw_value(const char *name, long number)
{
    say(" ~%s=%ld", name, number);
}

void bytes(const char *name, const void *data, size_t length)
{
    say(" %s=", name);
    for (size_t i = 0; i < length; i++)
        say("%02x", ((const unsigned char *)data)[i]);
}

void seen(int fd, const int numbers[SEEN])
{
    say(" %d=", fd);
    for (int i = 0; i < SEEN; i++)
        say(i == 0 ? "%d" : ":%d", numbers[i]);
}

void fill(unsigned char *buffer, size_t length, long seed)
{
    unsigned state = (unsigned)seed * 2654435761u + 12345;
    for (size_t i = 0; i < length; i++) {
        state = state * 1103515245u + 12345;
        buffer[i] = (unsigned char)(state >> 16);
    }
}

unsigned long sum(const unsigned char *buffer, size_t length)
{
    unsigned hash = 2166136261u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ buffer[i]) * 16777619u;
    return hash;
}

static void on_signal(int signal)
{
    if (signal == SIGPIPE)
        pipes++;
    else
        alarms++;
}

static struct sockaddr_un address_of(const char *name, long number)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/%s%ld", directory, name, number);
    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        die("the directory's name is too long");
    return address;
}

static int out_of_the_way(int fd)
{
    int high = fcntl(fd, F_DUPFD_CLOEXEC, OWN_FDS);
    if (fd < 0 || high < 0)
        die("a descriptor of its own");
    close(fd);
    return high;
}

/* Becomes worker `number`: a connection to the driver, and a place where others can reach it. */
static void become(long number)
{
    struct sockaddr_un driver = address_of("driver", 0), own = address_of("inbox", number);
    control = out_of_the_way(socket(AF_UNIX, SOCK_STREAM, 0));
    if (connect(control, (struct sockaddr *)&driver, sizeof driver) < 0)
        die("the driver");
    inbox = out_of_the_way(socket(AF_UNIX, SOCK_DGRAM, 0));
    unlink(own.sun_path);
    if (bind(inbox, (struct sockaddr *)&own, sizeof own) < 0)
        die("the inbox");
    orders = fdopen(control, "r");
    dprintf(control, "%ld\n", number);
}

static void op_fork(const struct call *call)
{
    pid_t child = fork();
    if (child == 0) {
        close(inbox);
        fclose(orders);
        text_length = 0;
        become(call->n[0]);
        return;
    }
    answer(child < 0 ? -1 : 0);
}

static void set_timer(long milliseconds)
{
    struct itimerval timer = {.it_value = {milliseconds / 1000, milliseconds % 1000 * 1000}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* The same program anew: it goes on with what exec leaves it, and answers. */
static void op_exec(const struct call *call)
{
    char own[2][16];
    (void)call;
    set_timer(0);
    fcntl(control, F_SETFD, 0);
    fcntl(inbox, F_SETFD, 0);
    snprintf(own[0], sizeof own[0], "%d", control);
    snprintf(own[1], sizeof own[1], "%d", inbox);
    execl("/proc/self/exe", "toe-differ", directory, own[0], own[1], NULL);
    die("exec");
}

static void op_exit(const struct call *call)
{
    (void)call;
    _exit(0);
}

/* A child has been told to exit: its end is waited for, so that its descriptors are surely closed. */
static void op_reap(const struct call *call)
{
    (void)call;
    answer(waitpid(-1, NULL, 0) < 0 ? -1 : 0);
}

union control_data {
    char buffer[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
};

static void op_pass(const struct call *call)
{
    int fd = (int)call->n[0];
    struct sockaddr_un to = address_of("inbox", call->n[1]);
    union control_data control_data = {.header = {CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec part = {"x", 1};
    struct msghdr message = {&to, sizeof to, &part, 1, &control_data, sizeof control_data, 0};
    memcpy(CMSG_DATA(&control_data.header), &fd, sizeof fd);
    answer(sendmsg(inbox, &message, 0));
}

static void op_take(const struct call *call)
{
    char byte;
    int fd = -1, flags = MSG_DONTWAIT | (call->n[0] ? MSG_CMSG_CLOEXEC : 0);
    union control_data control_data;
    struct iovec part = {&byte, 1};
    struct msghdr message = {NULL, 0, &part, 1, &control_data, sizeof control_data, 0};
    ssize_t length = recvmsg(inbox, &message, flags);
    answer(length);
    struct cmsghdr *header = length < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (header != NULL)
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    value("fd", fd);
}

static const struct operation process_operations[] = {
    {"fork", op_fork}, {"exec", op_exec}, {"exit", op_exit}, {"reap", op_reap},
    {"pass", op_pass}, {"take", op_take}, {NULL, NULL},
};

static const struct operation *find(const char *name)
{
    const struct operation *const tables[] = {
        process_operations, descriptor_operations, address_operations,
        data_operations,    ready_operations,      option_operations, datagram_operations,
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct operation *operation = tables[i]; operation->name != NULL; operation++)
            if (strcmp(operation->name, name) == 0)
                return operation;
    return NULL;
}

/* A line: how long the call may block in milliseconds, its name, its numbers. */
static void obey(char *line)
{
    struct call call = {0};
    char *rest = NULL, *word = strtok_r(line, " \n", &rest);
    long limit = word == NULL ? 0 : strtol(word, NULL, 10);
    char *name = strtok_r(NULL, " \n", &rest);
    const struct operation *operation = name == NULL ? NULL : find(name);
    if (operation == NULL)
        die(name == NULL ? "an empty order" : name);
    while ((word = strtok_r(NULL, " \n", &rest)) != NULL && call.count < NUMBERS_MAX)
        call.n[call.count++] = strtol(word, NULL, 10);
    text_length = 0;
    pipes = 0;
    alarms = 0;
    set_timer(limit);
    errno = 0;
    operation->run(&call);
    set_timer(0);
    if (pipes > 0)
        value("sigpipe", pipes);
    say("\n");
    if (text_length > 1 && write(control, text, text_length) != (ssize_t)text_length)
        die("an answer");
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = on_signal};
    char line[4096];
    if (argc != 2 && argc != 4)
        die("usage: toe-differ DIRECTORY [CONTROL INBOX]");
    directory = argv[1];
    sigaction(SIGPIPE, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    if (argc == 2) {
        close_range(3, ~0U, 0);
        become(0);
    } else {
        control = atoi(argv[2]);
        inbox = atoi(argv[3]);
        fcntl(control, F_SETFD, FD_CLOEXEC);
        fcntl(inbox, F_SETFD, FD_CLOEXEC);
        orders = fdopen(control, "r");
        dprintf(control, "r=0 e=0\n");
    }
    while (fgets(line, sizeof line, orders) != NULL)
        obey(line);
    return 0;
}
