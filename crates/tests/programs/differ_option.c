/* getsockopt and setsockopt. */
#define _GNU_SOURCE
#include "differ.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

/* Bytes of an option's value that are told. */
enum { TOLD_MAX = 16 };

/* Descriptor, level, name, room for the value. */
static void op_getopt(const struct call *call)
{
    unsigned char place[512];
    socklen_t length = (socklen_t)call->n[3];
    int is_info = call->n[1] == IPPROTO_TCP && call->n[2] == TCP_INFO;
    memset(place, 0xee, sizeof place);
    int result = getsockopt((int)call->n[0], (int)call->n[1], (int)call->n[2], place, &length);
    answer(result);
    if (result < 0)
        return;
    /* struct tcp_info has grown over the years, and all of it but the state is figures of the moment. */
    if (!is_info)
        value("length", length);
    bytes("value", place, is_info ? length >= 1 : length > TOLD_MAX ? TOLD_MAX : length);
}

/* Descriptor, level, name, length, and two ints or two longs as the length wants. */
static void op_setopt(const struct call *call)
{
    unsigned char place[64] = {0};
    if (call->n[3] == 2 * sizeof(long)) {
        memcpy(place, &call->n[4], sizeof(long));
        memcpy(place + sizeof(long), &call->n[5], sizeof(long));
    } else {
        int numbers[] = {(int)call->n[4], (int)call->n[5]};
        memcpy(place, numbers, sizeof numbers);
    }
    answer(setsockopt((int)call->n[0], (int)call->n[1], (int)call->n[2], place, (socklen_t)call->n[3]));
}

/* Descriptor, name, number: the size of a buffer, set and read at once, because Linux changes one that nobody has set. */
static void op_size(const struct call *call)
{
    int size = (int)call->n[2], name = (int)call->n[1], read = -1;
    int shown = name == SO_SNDBUF || name == SO_SNDBUFFORCE ? SO_SNDBUF : SO_RCVBUF;
    socklen_t length = sizeof read;
    int result = setsockopt((int)call->n[0], SOL_SOCKET, name, &size, sizeof size);
    answer(result);
    if (result == 0 && getsockopt((int)call->n[0], SOL_SOCKET, shown, &read, &length) == 0)
        value("size", read);
}

/* TCP_CONGESTION by name. */
static void op_setcongestion(const struct call *call)
{
    static const char *const names[] = {"reno", "cubic", "none-such", "re"};
    const char *name = names[call->n[1] & 3];
    answer(setsockopt((int)call->n[0], IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)));
}

const struct operation option_operations[] = {
    {"getopt", op_getopt},
    {"setopt", op_setopt},
    {"size", op_size},
    {"setcongestion", op_setcongestion},
    {NULL, NULL},
};
