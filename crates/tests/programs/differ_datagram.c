/* Calls that only datagram sockets have much of: addresses and control data of single datagrams, errors that wait, and many datagrams in
 * one step, by which two sockets may earn a lane. */
#define _GNU_SOURCE
#include "differ.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

static unsigned char buffer[BUFFER_MAX], answer_buffer[BUFFER_MAX];

/* What a message says beside its bytes. */
enum control {
    NOTHING,
    FROM_FIRST,
    FROM_ANYWHERE,
    CLASS,
    SEGMENTS,
    HOPS,
    UNKNOWN,
    STAMPS,
    MARK,
    UNKNOWN_OF_SOCKET,
    OF_TCP,
    SHORT_CLASS,
    SHORT_SEGMENTS,
    SHORT_FROM,
    NO_HOPS,
    CUT_OFF,
    TWO,
};

static size_t put(char *control, int level, int type, const void *data, size_t length)
{
    struct cmsghdr *header = (struct cmsghdr *)control;
    header->cmsg_level = level;
    header->cmsg_type = type;
    header->cmsg_len = CMSG_LEN(length);
    memcpy(CMSG_DATA(header), data, length);
    return CMSG_SPACE(length);
}

static size_t put_control(char *control, long kind)
{
    struct in_pktinfo from = {.ipi_spec_dst.s_addr = htonl(kind == FROM_FIRST ? INADDR_LOOPBACK : INADDR_ANY)};
    int number = kind == HOPS ? 9 : kind == NO_HOPS ? 0 : 0x10, mark = 7;
    uint16_t each = 100;
    size_t length;
    switch (kind) {
    case FROM_FIRST:
    case FROM_ANYWHERE:
        return put(control, IPPROTO_IP, IP_PKTINFO, &from, sizeof from);
    case CLASS:
        return put(control, IPPROTO_IP, IP_TOS, &number, sizeof number);
    case HOPS:
        return put(control, IPPROTO_IP, IP_TTL, &number, sizeof number);
    case SEGMENTS:
        return put(control, SOL_UDP, UDP_SEGMENT, &each, sizeof each);
    case UNKNOWN:
        return put(control, IPPROTO_IP, 99, &number, sizeof number);
    case STAMPS:
        /* SOF_TIMESTAMPING_TX_SOFTWARE. */
        return put(control, SOL_SOCKET, SO_TIMESTAMPING, &(uint32_t){2}, sizeof(uint32_t));
    case MARK:
        return put(control, SOL_SOCKET, SO_MARK, &mark, sizeof mark);
    case UNKNOWN_OF_SOCKET:
        return put(control, SOL_SOCKET, 99, &number, sizeof number);
    case OF_TCP:
        return put(control, IPPROTO_TCP, 1, &number, sizeof number);
    case SHORT_CLASS:
        return put(control, IPPROTO_IP, IP_TOS, &number, 2);
    case SHORT_SEGMENTS:
        return put(control, SOL_UDP, UDP_SEGMENT, &each, 1);
    case SHORT_FROM:
        return put(control, IPPROTO_IP, IP_PKTINFO, &from, 4);
    case NO_HOPS:
        return put(control, IPPROTO_IP, IP_TTL, &number, sizeof number);
    case CUT_OFF:
        /* The header says more than there is. */
        length = put(control, IPPROTO_IP, IP_TOS, &number, sizeof number);
        ((struct cmsghdr *)control)->cmsg_len = 4096;
        return length;
    case TWO:
        length = put(control, SOL_SOCKET, SO_MARK, &mark, sizeof mark);
        return length + put(control + length, IPPROTO_IP, IP_TOS, &number, sizeof number);
    default:
        return 0;
    }
}

/* fd, address, port, length, flags, seed, control. */
static void op_udp_send(const struct call *call)
{
    char control[64] = {0};
    struct sockaddr_in address;
    socklen_t length = make_address(&address, call->n[1], call->n[2]);
    size_t bytes = (size_t)call->n[3] > BUFFER_MAX ? BUFFER_MAX : (size_t)call->n[3];
    struct iovec part = {buffer, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (call->n[1] != NO_ADDRESS) {
        message.msg_name = &address;
        message.msg_namelen = length;
    }
    message.msg_controllen = put_control(control, call->n[6]);
    message.msg_control = message.msg_controllen != 0 ? control : NULL;
    fill(buffer, bytes, call->n[5]);
    if (call->n[6] == NOTHING && call->n[5] % 2 == 0)
        answer(sendto((int)call->n[0], buffer, bytes, (int)call->n[4], message.msg_name, message.msg_namelen));
    else
        answer(sendmsg((int)call->n[0], &message, (int)call->n[4]));
}

/* A time stamp is of the moment. */
static int is_time(const struct cmsghdr *c)
{
    return c->cmsg_level == SOL_SOCKET &&
           (c->cmsg_type == SO_TIMESTAMP || c->cmsg_type == SO_TIMESTAMPNS || c->cmsg_type == SO_TIMESTAMPING);
}

static void say_control(struct msghdr *message)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        value("level", c->cmsg_level);
        value("type", c->cmsg_type);
        value("data", is_time(c) ? -1 : (long)sum(CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0)));
    }
}

/* fd, flags, room for the datagram, room for control data. */
static void op_udp_receive(const struct call *call)
{
    char control[256] = {0};
    struct sockaddr_in address = {0};
    size_t room = (size_t)call->n[2] > BUFFER_MAX ? BUFFER_MAX : (size_t)call->n[2];
    struct iovec part = {buffer, room};
    struct msghdr message = {&address, sizeof address, &part, 1, control, (size_t)call->n[3] % sizeof control, 0};
    ssize_t length = recvmsg((int)call->n[0], &message, (int)call->n[1]);
    answer(length);
    if (length < 0)
        return;
    value("sum", call->n[1] & MSG_ERRQUEUE ? -1 : (long)sum(buffer, (size_t)length > room ? room : (size_t)length));
    value("namelen", message.msg_namelen);
    if (message.msg_namelen == sizeof address) {
        value("ip", ntohl(address.sin_addr.s_addr));
        raw_value("port", ntohs(address.sin_port));
    }
    value("flags", message.msg_flags);
    if (!(call->n[1] & MSG_ERRQUEUE))
        say_control(&message);
}

/* As many datagrams from one socket to where another is bound, each taken from there before the next goes: from, to, count, length. */
static void op_volley(const struct call *call)
{
    struct sockaddr_in address = {0};
    socklen_t length = sizeof address;
    size_t bytes = (size_t)call->n[3] > BUFFER_MAX ? BUFFER_MAX : (size_t)call->n[3];
    long came = 0, went = 0;
    int sending = 0, receiving = 0;
    if (getsockname((int)call->n[1], (struct sockaddr *)&address, &length) < 0 || address.sin_family != AF_INET) {
        answer(-1);
        return;
    }
    if (address.sin_addr.s_addr == htonl(INADDR_ANY))
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (long n = 0; n < call->n[2]; n++) {
        fill(buffer, bytes, n);
        ssize_t put = sendto((int)call->n[0], buffer, bytes, MSG_DONTWAIT, (struct sockaddr *)&address, sizeof address);
        went += put == (ssize_t)bytes;
        sending = put < 0 ? errno : sending;
        ssize_t got = recv((int)call->n[1], answer_buffer, sizeof answer_buffer, MSG_DONTWAIT);
        came += got == (ssize_t)bytes && memcmp(buffer, answer_buffer, bytes) == 0;
        receiving = got < 0 ? errno : receiving;
    }
    answer(0);
    value("went", went);
    value("came", came);
    value("sending", sending);
    value("receiving", receiving);
}

const struct operation datagram_operations[] = {
    {"udp_send", op_udp_send}, {"udp_receive", op_udp_receive}, {"volley", op_volley}, {NULL, NULL},
};
