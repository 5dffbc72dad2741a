/* One thread puts one connection after the other at a number, by dup2, at which another thread sends, receives and looks: each of its
 * calls finds one of the two.
 *
 *     dup_over_in_use PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

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
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 8) == 0);
    for (int k = 0; k < 2; k++) {
        CHECK((near[k] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
        CHECK(connect(near[k], (struct sockaddr *)&at, sizeof at) == 0);
        CHECK((far[k] = accept(listener, NULL, NULL)) >= 0);
    }
    CHECK((number = dup(near[0])) >= 0);
    pthread_t swapper;
    CHECK(pthread_create(&swapper, NULL, swap, NULL) == 0);
    char byte = 'x', bytes[64];
    for (int call = 0; call < CALLS; call++) {
        struct pollfd now = {.fd = number, .events = POLLIN | POLLOUT};
        CHECK(recv(number, bytes, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
        CHECK(poll(&now, 1, 0) >= 0 && !(now.revents & (POLLNVAL | POLLERR | POLLHUP | POLLIN)));
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
