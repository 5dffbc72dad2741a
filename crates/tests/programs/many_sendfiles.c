/* What many_transfers does, by the kernel alone: many sendfile() calls at once from one slow file over connections of the kernel's, a thread
 * each; both ends are in this process.
 *
 *     many_sendfiles PORT FILE COUNT
 *
 * Says "under way" once all have begun and some bytes have come, and goes on until its standard input ends. Then it shuts the connections, and
 * looks that all bytes that came are the file's (odd_disk's "plain").
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <fcntl.h>
#include <unistd.h>

#include "checks.h"

enum { MOST = 4096, PART = 64 << 10, STACK = 256 << 10, STEP = 4 << 20 };

static int count, file, epoll;
static struct {
    int sends, receives;
    pthread_t thread;
    size_t came;
} all[MOST];
static _Atomic size_t came;
static _Atomic int is_over;
static unsigned char got[PART];

static void *send_one(void *which) {
    off_t at = 0;
    int socket = all[(size_t)which].sends;
    while (!atomic_load(&is_over)) {
        ssize_t bytes = sendfile(socket, file, &at, STEP);
        CHECK(bytes > 0 || atomic_load(&is_over));
    }
    shutdown(socket, SHUT_WR);
    return NULL;
}

static void *receive_all(void *unused) {
    for (int open = count; open > 0;) {
        struct epoll_event events[64];
        int n = epoll_wait(epoll, events, 64, -1);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            size_t which = events[i].data.u64;
            ssize_t bytes = recv(all[which].receives, got, sizeof got, MSG_DONTWAIT);
            CHECK(bytes >= 0 || errno == EAGAIN);
            for (ssize_t k = 0; k < bytes; k++)
                CHECK(got[k] == 1 + all[which].came++ * 7 % 251);
            if (bytes > 0)
                atomic_fetch_add(&came, (size_t)bytes);
            if (bytes == 0) {
                CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, all[which].receives, NULL) == 0);
                open--;
            }
        }
    }
    return unused;
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    int on = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    signal(SIGPIPE, SIG_IGN);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    count = atoi(argv[3]);
    /* By the page cache they would all have what one of them has read. */
    CHECK((file = open(argv[2], O_RDONLY | O_DIRECT)) >= 0 && count > 0 && count <= MOST && listener >= 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 && (epoll = epoll_create1(0)) >= 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 64) == 0);
    for (int i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)i};
        CHECK((all[i].sends = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
        CHECK(connect(all[i].sends, (struct sockaddr *)&at, sizeof at) == 0);
        CHECK((all[i].receives = accept(listener, NULL, NULL)) >= 0);
        CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].receives, &event) == 0);
    }
    pthread_t receiver;
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, STACK) == 0);
    CHECK(pthread_create(&receiver, NULL, receive_all, NULL) == 0);
    for (size_t i = 0; i < (size_t)count; i++)
        CHECK(pthread_create(&all[i].thread, &attributes, send_one, (void *)i) == 0);
    while (atomic_load(&came) == 0)
        usleep(1000);
    puts("under way");
    fflush(stdout);
    size_t before = atomic_load(&came);
    char byte;
    CHECK(read(0, &byte, 1) == 0);
    size_t meanwhile = atomic_load(&came) - before;
    atomic_store(&is_over, 1);
    for (int i = 0; i < count; i++)
        CHECK(shutdown(all[i].sends, SHUT_WR) == 0);
    for (int i = 0; i < count; i++)
        CHECK(pthread_join(all[i].thread, NULL) == 0);
    CHECK(pthread_join(receiver, NULL) == 0);
    printf("all: %zu bytes meanwhile\n", meanwhile);
    return 0;
}
