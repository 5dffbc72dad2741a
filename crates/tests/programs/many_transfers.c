/* Many transfers at once from one slow file, beside the program, by the native interface; both ends are in this process.
 *
 *     many_transfers PORT FILE COUNT
 *
 * Says "under way" once all have begun and some bytes have come, and goes on until its standard input ends. Then it cancels them, and looks that
 * as many bytes have come on each connection as are said to have gone, each of them the file's (odd_disk's "plain").
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <toe.h>
#include <unistd.h>

#include "checks.h"

enum { MOST = 4096, PART = 64 << 10 };

static int listener, count;
static struct sockaddr_in at;
static struct {
    int sends, receives;
    struct toe_transfer *transfer;
    size_t came;
} all[MOST];
static _Atomic size_t came;
static int epoll;
static unsigned char got[PART];

static void *receive_all(void *unused) {
    for (int open = count; open > 0;) {
        struct epoll_event events[64];
        int n = toe_epoll_wait(epoll, events, 64, -1);
        CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            size_t which = events[i].data.u64;
            ssize_t bytes = toe_recv(all[which].receives, got, sizeof got, MSG_DONTWAIT);
            CHECK(bytes >= 0 || errno == EAGAIN);
            for (ssize_t k = 0; k < bytes; k++)
                CHECK(got[k] == 1 + all[which].came++ * 7 % 251);
            if (bytes > 0)
                atomic_fetch_add(&came, (size_t)bytes);
            if (bytes == 0) {
                CHECK(toe_epoll_ctl(epoll, EPOLL_CTL_DEL, all[which].receives, NULL) == 0);
                open--;
            }
        }
    }
    return unused;
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    int file = open(argv[2], O_RDONLY), on = 1;
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    count = atoi(argv[3]);
    CHECK(file >= 0 && count > 0 && count <= MOST);
    at = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    CHECK((listener = toe_socket(AF_INET, SOCK_STREAM, 0)) >= 0 && (epoll = toe_epoll_create1(0)) >= 0);
    CHECK(toe_setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(toe_bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && toe_listen(listener, 64) == 0);
    for (int i = 0; i < count; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)i};
        CHECK((all[i].sends = toe_socket(AF_INET, SOCK_STREAM, 0)) >= 0);
        CHECK(toe_connect(all[i].sends, (struct sockaddr *)&at, sizeof at) == 0);
        CHECK((all[i].receives = toe_accept(listener, NULL, NULL)) >= 0);
        CHECK(toe_epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].receives, &event) == 0);
    }
    pthread_t receiver;
    CHECK(pthread_create(&receiver, NULL, receive_all, NULL) == 0);
    for (int i = 0; i < count; i++)
        CHECK((all[i].transfer = toe_directwrite_begin(file, all[i].sends, 0, TOE_ALL)) != NULL);
    while (atomic_load(&came) == 0)
        usleep(1000);
    puts("under way");
    fflush(stdout);
    size_t before = atomic_load(&came);
    CHECK(read(0, got, 1) == 0);
    size_t meanwhile = atomic_load(&came) - before, ended = 0;
    for (int i = 0; i < count; i++)
        toe_transfer_cancel(all[i].transfer);
    size_t done[MOST];
    for (int i = 0; i < count; i++) {
        int status = toe_transfer_end(all[i].transfer, &done[i]);
        CHECK(status == 0 || errno == ECANCELED);
        ended += status == 0;
        toe_close(all[i].sends);
    }
    CHECK(pthread_join(receiver, NULL) == 0);
    for (int i = 0; i < count; i++)
        CHECK(all[i].came == done[i]);
    printf("all: %zu bytes meanwhile, %zu of %d transfers came to their end\n", meanwhile, ended, count);
    return 0;
}
