/* One thread puts one connection after the other at a number, by dup2, at which another thread sends, receives and looks: each of its
 * calls finds one of the two.
 *
 *     dup_over_in_use PORT
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cases.h"
#include "checks.h"

enum { CALLS = 100000 };

static int near[2], far[2], number;
static atomic_int is_over;

static void *swap(void *unused) {
    for (int k = 0; !is_over; k ^= 1) CHECK(dup2(near[k], number) == number);
    return unused;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    listen_at_port(argv[1]);
    for (int k = 0; k < 2; k++) {
        int ends[2];
        join(ends);
        near[k] = ends[0], far[k] = ends[1];
    }
    CHECK((number = dup(near[0])) >= 0);
    pthread_t swapper;
    CHECK(pthread_create(&swapper, NULL, swap, NULL) == 0);
    char byte = 'x', bytes[64];
    for (int call = 0; call < CALLS; call++) {
        struct pollfd ready = {.fd = number, .events = POLLIN | POLLOUT};
        CHECK(recv(number, bytes, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
        CHECK(poll(&ready, 1, 0) >= 0 && !(ready.revents & (POLLNVAL | POLLERR | POLLHUP | POLLIN)));
        if (call % 64 == 0) {
            CHECK(write(number, &byte, 1) == 1);
            CHECK(recv(far[0], bytes, sizeof bytes, MSG_DONTWAIT) >= -1 && recv(far[1], bytes, sizeof bytes, MSG_DONTWAIT) >= -1);
        }
    }
    is_over = 1;
    CHECK(pthread_join(swapper, NULL) == 0);
    puts("all");
    return 0;
}
