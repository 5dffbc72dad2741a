/* A thread asks a socket by each call while another connects it: prints the calls that have taken it for no socket. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ROUNDS = 200 };

static atomic_int connecting = -1, over;
/* The asking thread is at it. */
static atomic_int asking;
static int which, epoll, wrong;

static int type_of_copy(int fd) {
    int copy = dup(fd), type;
    socklen_t len = sizeof type;
    if (copy < 0)
        return -1;
    int result = getsockopt(copy, SOL_SOCKET, SO_TYPE, &type, &len), error = errno;
    close(copy);
    errno = error;
    return result;
}

static int watch(int fd) {
    struct epoll_event event = {.events = EPOLLIN};
    int result = epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), error = errno;
    if (result == 0)
        epoll_ctl(epoll, EPOLL_CTL_DEL, fd, &event);
    errno = error;
    return result;
}

static const char *const NAMES[] = {
    "getsockopt", "getsockname", "getpeername", "setsockopt", "ioctl", "bind", "accept", "dup", "epoll_ctl",
    "read", "readv", "recv", "recvfrom", "recvmsg", "recvmmsg", "write", "writev", "send", "sendto", "sendmsg", "sendmmsg",
};
enum { CALLS = sizeof NAMES / sizeof *NAMES };

static int ask(int fd) {
    char bytes[256] = {0};
    socklen_t len = sizeof bytes;
    struct sockaddr *name = (struct sockaddr *)bytes;
    struct sockaddr_in any = {.sin_family = AF_INET};
    struct iovec part = {bytes, 1};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}};
    int one = 1;
    switch (which) {
    case 0: return getsockopt(fd, IPPROTO_TCP, TCP_INFO, bytes, &len);
    case 1: return getsockname(fd, name, &len);
    case 2: return getpeername(fd, name, &len);
    case 3: return setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    case 4: return ioctl(fd, FIONREAD, &one);
    case 5: return bind(fd, (struct sockaddr *)&any, sizeof any);
    case 6: return accept(fd, name, &len);
    case 7: return type_of_copy(fd);
    case 8: return watch(fd);
    case 9: return read(fd, bytes, 0);
    case 10: part.iov_len = 0; return readv(fd, &part, 1);
    case 11: return recv(fd, bytes, 1, MSG_DONTWAIT);
    case 12: return recvfrom(fd, bytes, 1, MSG_DONTWAIT, NULL, NULL);
    case 13: return recvmsg(fd, &message.msg_hdr, MSG_DONTWAIT);
    case 14: return recvmmsg(fd, &message, 1, MSG_DONTWAIT, NULL);
    case 15: return write(fd, bytes, 1);
    case 16: return writev(fd, &part, 1);
    case 17: return send(fd, bytes, 1, MSG_DONTWAIT);
    case 18: return sendto(fd, bytes, 1, MSG_DONTWAIT, NULL, 0);
    case 19: return sendmsg(fd, &message.msg_hdr, MSG_DONTWAIT);
    default: return sendmmsg(fd, &message, 1, MSG_DONTWAIT);
    }
}

static void *asks(void *unused) {
    while (!over) {
        int fd = connecting;
        asking = 1;
        if (fd >= 0 && fd == connecting && ask(fd) < 0)
            wrong += errno == ENOTSOCK || errno == EBADF || errno == EISDIR || errno == ENOTTY || errno == EPERM;
        asking = 0;
        if (fd < 0)
            sched_yield();
    }
    return unused;
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    epoll = epoll_create1(0);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof addr;
    if (bind(listener, (struct sockaddr *)&addr, sizeof addr) || listen(listener, 100) ||
        getsockname(listener, (struct sockaddr *)&addr, &len))
        return 1;
    for (which = 0; which < CALLS; which++) {
        pthread_t thread;
        over = wrong = 0;
        if (pthread_create(&thread, NULL, asks, NULL))
            return 1;
        int refused = 0;
        for (int round = 0; round < ROUNDS; round++) {
            int fd = socket(AF_INET, SOCK_STREAM, 0);
            connecting = fd;
            refused += connect(fd, (struct sockaddr *)&addr, sizeof addr) != 0;
            connecting = -1;
            /* What is asked of a number that has been closed is answered otherwise. */
            while (asking)
                sched_yield();
            int accepted = accept(listener, NULL, NULL);
            if (accepted >= 0)
                close(accepted);
            close(fd);
        }
        over = 1;
        pthread_join(thread, NULL);
        /* A socket that another thread has bound meanwhile connects all the same. */
        if (wrong || refused)
            printf("%s: %d times no socket, %d connects failed\n", NAMES[which], wrong, refused);
    }
    puts("done");
    return 0;
}
