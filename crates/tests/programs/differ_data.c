/* read, write, recv, send and all their relatives. Bytes sent are a pattern; of bytes received a sum is told. */
#define _GNU_SOURCE
#include "differ.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <string.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static unsigned char buffer[BUFFER_MAX];
static struct iovec parts[PARTS_MAX];

static size_t bounded(long length)
{
    return length < 0 || length > BUFFER_MAX ? BUFFER_MAX : (size_t)length;
}

/* Numbers from `first` on are the lengths of parts of the buffer; gives their count. */
static int cut(const struct call *call, int first)
{
    size_t at = 0;
    int count = 0;
    for (int i = first; i < call->count && count < PARTS_MAX; i++, count++) {
        size_t length = bounded(call->n[i]);
        if (length > BUFFER_MAX - at)
            length = BUFFER_MAX - at;
        parts[count] = (struct iovec){buffer + at, length};
        at += length;
    }
    return count;
}

/* What earlier calls left must not be taken for bytes that came: with MSG_TRUNC a call tells of more than it writes. */
static unsigned char *cleared(void)
{
    return memset(buffer, 0, sizeof buffer);
}

/* What the error queue gives back begins with headers, which have numbers of their own. */
static void received_with(ssize_t length, long flags)
{
    answer(length);
    if (length > 0 && !(flags & MSG_ERRQUEUE))
        value("sum", (long)sum(buffer, length > BUFFER_MAX ? BUFFER_MAX : (size_t)length));
}

static void received(ssize_t length)
{
    received_with(length, 0);
}

static void op_read(const struct call *call)
{
    received(read((int)call->n[0], cleared(), bounded(call->n[1])));
}

static void op_readv(const struct call *call)
{
    int count = cut(call, 1);
    cleared();
    received(readv((int)call->n[0], parts, count));
}

static void op_pread(const struct call *call)
{
    received(pread((int)call->n[0], cleared(), bounded(call->n[1]), call->n[2]));
}

static void op_recv(const struct call *call)
{
    received_with(recv((int)call->n[0], cleared(), bounded(call->n[1]), (int)call->n[2]), call->n[2]);
}

static void op_recvfrom(const struct call *call)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    ssize_t came = recvfrom((int)call->n[0], cleared(), bounded(call->n[1]), (int)call->n[2],
                            (struct sockaddr *)&address, &length);
    received_with(came, call->n[2]);
    value("length", length);
}

static void op_recvmsg(const struct call *call)
{
    char control[64];
    struct sockaddr_in address;
    int count = cut(call, 2);
    struct msghdr message = {&address, sizeof address, parts, (size_t)count, control, sizeof control, 0};
    cleared();
    ssize_t length = recvmsg((int)call->n[0], &message, (int)call->n[1]);
    received_with(length, call->n[1]);
    if (length >= 0) {
        value("name", message.msg_namelen);
        value("control", (long)message.msg_controllen);
        value("flags", message.msg_flags);
    }
}

static void op_recvmmsg(const struct call *call)
{
    struct mmsghdr messages[PARTS_MAX] = {0};
    struct timespec no_time = {0, 0};
    int count = cut(call, 3);
    for (int i = 0; i < count; i++)
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    cleared();
    int done = recvmmsg((int)call->n[0], messages, (unsigned)count, (int)call->n[1], call->n[2] ? &no_time : NULL);
    answer(done);
    for (int i = 0; i < done; i++) {
        value("got", messages[i].msg_len);
        /* What did not fit has gone nowhere: behind a part are those of other messages. */
        size_t fits = messages[i].msg_len < parts[i].iov_len ? messages[i].msg_len : parts[i].iov_len;
        value("sum", (long)sum(parts[i].iov_base, fits));
    }
}

static void op_write(const struct call *call)
{
    size_t length = bounded(call->n[1]);
    fill(buffer, length, call->n[2]);
    answer(write((int)call->n[0], buffer, length));
}

static void op_writev(const struct call *call)
{
    int count = cut(call, 2);
    fill(buffer, sizeof buffer, call->n[1]);
    answer(writev((int)call->n[0], parts, count));
}

static void op_pwrite(const struct call *call)
{
    size_t length = bounded(call->n[1]);
    fill(buffer, length, call->n[3]);
    answer(pwrite((int)call->n[0], buffer, length, call->n[2]));
}

static void op_send(const struct call *call)
{
    size_t length = bounded(call->n[1]);
    fill(buffer, length, call->n[3]);
    answer(send((int)call->n[0], buffer, length, (int)call->n[2]));
}

static void op_sendto(const struct call *call)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)call->n[4])};
    size_t length = bounded(call->n[1]);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fill(buffer, length, call->n[3]);
    answer(sendto((int)call->n[0], buffer, length, (int)call->n[2], (struct sockaddr *)&address, sizeof address));
}

static void op_sendmsg(const struct call *call)
{
    int count = cut(call, 3);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    fill(buffer, sizeof buffer, call->n[2]);
    answer(sendmsg((int)call->n[0], &message, (int)call->n[1]));
}

static void op_sendmmsg(const struct call *call)
{
    struct mmsghdr messages[PARTS_MAX] = {0};
    int count = cut(call, 3);
    for (int i = 0; i < count; i++)
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    fill(buffer, sizeof buffer, call->n[2]);
    int done = sendmmsg((int)call->n[0], messages, (unsigned)count, (int)call->n[1]);
    answer(done);
    for (int i = 0; i < done; i++)
        value("put", messages[i].msg_len);
}

/* Offset -1: the file's own position. */
static void op_sendfile(const struct call *call)
{
    off_t offset = call->n[2];
    answer(sendfile((int)call->n[0], (int)call->n[1], call->n[2] < 0 ? NULL : &offset, (size_t)call->n[3]));
    value("offset", offset);
}

static void op_splice(const struct call *call)
{
    answer(splice((int)call->n[0], NULL, (int)call->n[1], NULL, (size_t)call->n[2], (unsigned)call->n[3]));
}

/* Descriptor, which: arguments that are wrong whatever the descriptor is. */
static void op_wrong(const struct call *call)
{
    int fd = (int)call->n[0];
    struct sockaddr_in address = {.sin_family = AF_INET};
    struct epoll_event event;
    /* The compiler need not know. */
    volatile int too_few = -1, too_many = 1 << 20, far_too_many = 1 << 30;
    void *volatile nowhere = (void *)8;
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)(call->n[1] < 2 ? -1 : 1)};
    parts[0] = (struct iovec){buffer, 1};
    switch (call->n[1]) {
    case 0:
        answer(sendmsg(fd, &message, MSG_DONTWAIT));
        break;
    case 1:
        answer(recvmsg(fd, &message, MSG_DONTWAIT));
        break;
    case 2:
        message.msg_name = &address;
        message.msg_namelen = (socklen_t)-1;
        answer(recvmsg(fd, &message, MSG_DONTWAIT | MSG_PEEK));
        break;
    case 3:
        answer(bind(fd, (struct sockaddr *)&address, (socklen_t)-1));
        break;
    case 4:
        answer(connect(fd, (struct sockaddr *)&address, (socklen_t)-1));
        break;
    case 5:
        answer(epoll_pwait(fd, &event, 1, 0, (const sigset_t *)1));
        break;
    case 6:
        answer(readv(fd, parts, too_few));
        break;
    case 7:
        answer(syscall(SYS_pselect6, 0, NULL, NULL, NULL, (void *)1, NULL));
        break;
    case 8:
        answer(getsockname(fd, (struct sockaddr *)&address, nowhere));
        break;
    case 9:
        answer(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, nowhere, sizeof(int)));
        break;
    case 10:
        answer(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &buffer, nowhere));
        break;
    case 11:
        answer(epoll_wait(fd, &event, far_too_many, 0));
        break;
    case 12:
        answer(epoll_ctl(fd, EPOLL_CTL_ADD, fd, nowhere));
        break;
    case 13:
        answer(recv(fd, nowhere, 10, MSG_DONTWAIT | MSG_PEEK));
        break;
    case 14:
        answer(ioctl(fd, FIONREAD, nowhere));
        break;
    case 18:
        answer(ioctl(fd, SIOCOUTQNSD, nowhere));
        break;
    case 15:
        answer(poll(nowhere, 2, 0));
        break;
    case 16:
        message.msg_name = &address;
        message.msg_namelen = (socklen_t)-1;
        answer(sendmsg(fd, &message, MSG_DONTWAIT));
        break;
    case 17:
        answer(accept4(fd, (struct sockaddr *)&address, NULL, SOCK_NONBLOCK | 3));
        break;
    default:
        answer(writev(fd, parts, too_many));
    }
}

const struct operation data_operations[] = {
    {"read", op_read},         {"readv", op_readv},       {"pread", op_pread},       {"recv", op_recv},
    {"recvfrom", op_recvfrom}, {"recvmsg", op_recvmsg},   {"recvmmsg", op_recvmmsg}, {"write", op_write},
    {"writev", op_writev},     {"pwrite", op_pwrite},     {"send", op_send},         {"sendto", op_sendto},
    {"sendmsg", op_sendmsg},   {"sendmmsg", op_sendmmsg}, {"sendfile", op_sendfile}, {"splice", op_splice},
    {"wrong", op_wrong},       {NULL, NULL},
};
