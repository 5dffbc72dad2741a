/* A thread shuts a socket down while another one connects it: `shut_while_connecting PORT`. As in Linux the one comes before the other or
 * after it: the connect succeeds, and the peer hears of the end if that came after it. It may come in the middle, too, where the
 * answer to the SYN is late: the connect is reset then, and nobody is accepted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cases.h"
#include "checks.h"

enum { ROUNDS = 3000, LOOPS_MAX = 30000 };

static atomic_int begun, done, came_after;
static int fd;

static void *shut_down(void *unused) {
    (void)unused;
    for (int round = 1; round <= ROUNDS; round++) {
        while (begun < round) sched_yield();
        for (volatile int loops = rand() % LOOPS_MAX; loops > 0; loops--) { }
        came_after = shutdown(fd, SHUT_RDWR) == 0;
        CHECK(came_after || errno == ENOTCONN);
        done = round;
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    listen_at_port(argv[1]);
    pthread_t other;
    CHECK(pthread_create(&other, NULL, shut_down, NULL) == 0);
    for (int round = 1; round <= ROUNDS; round++) {
        CHECK((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
        begun = round;
        int refused = connect(fd, (struct sockaddr *)&place, sizeof place) == 0 ? 0 : errno;
        while (done < round) sched_yield();
        if (refused == ECONNRESET && came_after) {
            CHECK(close(fd) == 0);
            continue;
        }
        CHECK(refused == 0);
        int accepted = accept(listener, NULL, NULL);
        char byte;
        CHECK(accepted >= 0 && recv(fd, &byte, 1, 0) == 0);
        if (came_after) CHECK(recv(accepted, &byte, 1, 0) == 0);
        CHECK(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
        CHECK(close(fd) == 0 && close(accepted) == 0);
    }
    CHECK(pthread_join(other, NULL) == 0);
    puts("all");
    return 0;
}
