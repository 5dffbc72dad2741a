/* socket, close, dup and their relatives; files and pipes for sendfile and splice. */
#define _GNU_SOURCE
#include "differ.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static void op_socket(const struct call *call)
{
    answer(socket((int)call->n[0], (int)call->n[1], (int)call->n[2]));
}

static void op_close(const struct call *call)
{
    answer(close((int)call->n[0]));
}

/* The last descriptor's close is a reset then. */
static void op_abort(const struct call *call)
{
    struct linger at_once = {1, 0};
    int result = setsockopt((int)call->n[0], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    answer(result < 0 ? result : close((int)call->n[0]));
}

static void op_close_range(const struct call *call)
{
    answer(close_range((unsigned)call->n[0], (unsigned)call->n[1], (int)call->n[2]));
}

static void op_dup(const struct call *call)
{
    answer(dup((int)call->n[0]));
}

static void op_dup2(const struct call *call)
{
    answer(dup2((int)call->n[0], (int)call->n[1]));
}

static void op_dup3(const struct call *call)
{
    answer(dup3((int)call->n[0], (int)call->n[1], (int)call->n[2]));
}

static void op_fcntl(const struct call *call)
{
    answer(fcntl((int)call->n[0], (int)call->n[1], (int)call->n[2]));
}

/* The number at the pointer goes in and out; without a third number the pointer is null. */
static void op_ioctl(const struct call *call)
{
    int number = (int)call->n[2];
    int *place = call->count > 2 ? &number : NULL;
    answer(ioctl((int)call->n[0], (unsigned long)call->n[1], place));
    value("out", number);
}

static void op_fstat(const struct call *call)
{
    struct stat status = {0};
    answer(fstat((int)call->n[0], &status));
    value("type", status.st_mode & S_IFMT);
    value("size", S_ISSOCK(status.st_mode) ? status.st_size : 0);
}

/* What the descriptor's path leads to: by stat, or by readlink, of whose text only the kind is the same everywhere. */
static void op_path(const struct call *call)
{
    char path[64], text[64] = "";
    struct stat status = {0};
    snprintf(path, sizeof path, "/proc/self/fd/%ld", call->n[0]);
    if (call->n[1] == 0) {
        answer(stat(path, &status));
        value("type", status.st_mode & S_IFMT);
    } else {
        answer(readlink(path, text, sizeof text - 1) < 0 ? -1 : 0);
        value("socket", strncmp(text, "socket:[", 8) == 0);
    }
}

static void op_lseek(const struct call *call)
{
    answer(lseek((int)call->n[0], call->n[1], (int)call->n[2]));
}

static void op_fsync(const struct call *call)
{
    answer(fsync((int)call->n[0]));
}

static void op_ftruncate(const struct call *call)
{
    answer(ftruncate((int)call->n[0], call->n[1]));
}

/* A file of 8 KiB that has no name any more. */
static void op_file(const struct call *call)
{
    static unsigned char buffer[8 << 10];
    int fd = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    fill(buffer, sizeof buffer, call->n[0]);
    if (fd >= 0 && (write(fd, buffer, sizeof buffer) != sizeof buffer || lseek(fd, 0, SEEK_SET) != 0))
        die("a file");
    answer(fd);
}

static void op_pipe(const struct call *call)
{
    int ends[2] = {-1, -1};
    answer(pipe2(ends, (int)call->n[0]));
    value("read", ends[0]);
    value("write", ends[1]);
}

const struct operation descriptor_operations[] = {
    {"socket", op_socket}, {"close", op_close}, {"abort", op_abort},             {"close_range", op_close_range},
    {"dup", op_dup}, {"path", op_path},
    {"dup2", op_dup2},     {"dup3", op_dup3},   {"fcntl", op_fcntl},             {"ioctl", op_ioctl},
    {"fstat", op_fstat},   {"lseek", op_lseek}, {"fsync", op_fsync},             {"ftruncate", op_ftruncate},
    {"file", op_file},     {"pipe", op_pipe},   {NULL, NULL},
};
