/* bind, listen, accept, connect, shutdown and the names of sockets. */
#define _GNU_SOURCE
#include "differ.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

socklen_t make_address(struct sockaddr_in *address, long kind, long port)
{
    static const char *const hosts[] = {
        [LOOPBACK] = "127.0.0.1", [ANY] = "0.0.0.0", [OTHER_LOOPBACK] = "127.0.0.2", [FOREIGN] = "192.0.2.1",
    };
    memset(address, 0, sizeof *address);
    address->sin_family = kind == WRONG_FAMILY ? AF_INET6 : kind == UNSPECIFIED ? AF_UNSPEC : AF_INET;
    address->sin_port = htons((unsigned short)port);
    if (kind >= 0 && kind <= FOREIGN)
        inet_pton(AF_INET, hosts[kind] == NULL ? "127.0.0.1" : hosts[kind], &address->sin_addr);
    return kind == TOO_SHORT ? 8 : sizeof *address;
}

/* Where a port is not one of the test's own it differs by its nature. */
static void say_address(const struct sockaddr_in *address, socklen_t room, socklen_t length)
{
    value("length", length);
    if (room < sizeof *address || length < sizeof *address)
        return;
    value("family", address->sin_family);
    value("ip", ntohl(address->sin_addr.s_addr));
    raw_value("port", ntohs(address->sin_port));
}

static void op_bind(const struct call *call)
{
    struct sockaddr_in address;
    socklen_t length = make_address(&address, call->n[1], call->n[2]);
    answer(bind((int)call->n[0], (struct sockaddr *)&address, length));
    length = sizeof address;
    if (getsockname((int)call->n[0], (struct sockaddr *)&address, &length) == 0 && address.sin_family == AF_INET)
        say_address(&address, sizeof address, length);
}

static void op_listen(const struct call *call)
{
    answer(listen((int)call->n[0], (int)call->n[1]));
}

/* Flags -1: accept, not accept4. Then: how much room for the address, -1 for none. */
static void op_accept(const struct call *call)
{
    struct sockaddr_in address;
    socklen_t room = call->n[2] < 0 ? 0 : (socklen_t)call->n[2], length = room;
    struct sockaddr *place = call->n[2] < 0 ? NULL : (struct sockaddr *)&address;
    socklen_t *length_place = place == NULL ? NULL : &length;
    int fd;
    memset(&address, 0, sizeof address);
    if (call->n[1] == -1)
        fd = accept((int)call->n[0], place, length_place);
    else
        fd = accept4((int)call->n[0], place, length_place, (int)call->n[1]);
    answer(fd);
    if (fd >= 0 && place != NULL)
        say_address(&address, room, length);
}

static void op_connect(const struct call *call)
{
    struct sockaddr_in address;
    socklen_t length = make_address(&address, call->n[1], call->n[2]);
    struct sockaddr *place = call->n[1] == NO_ADDRESS ? NULL : (struct sockaddr *)&address;
    answer(connect((int)call->n[0], place, length));
}

static void op_shutdown(const struct call *call)
{
    answer(shutdown((int)call->n[0], (int)call->n[1]));
}

static void name(int (*get)(int, struct sockaddr *, socklen_t *), const struct call *call)
{
    struct sockaddr_in address;
    socklen_t length = (socklen_t)call->n[1];
    memset(&address, 0, sizeof address);
    int result = get((int)call->n[0], (struct sockaddr *)&address, &length);
    answer(result);
    if (result == 0)
        say_address(&address, (socklen_t)call->n[1], length);
}

static int own_name(int fd, struct sockaddr *address, socklen_t *length)
{
    return getsockname(fd, address, length);
}

static int peer_name(int fd, struct sockaddr *address, socklen_t *length)
{
    return getpeername(fd, address, length);
}

static void op_getsockname(const struct call *call)
{
    name(own_name, call);
}

static void op_getpeername(const struct call *call)
{
    name(peer_name, call);
}

const struct operation address_operations[] = {
    {"bind", op_bind},         {"listen", op_listen},     {"accept", op_accept},           {"connect", op_connect},
    {"shutdown", op_shutdown}, {"getsockname", op_getsockname}, {"getpeername", op_getpeername}, {NULL, NULL},
};
