/* A thread asks for and sets the flags of a connection while signals reach it whose handler sends on that connection: each call and
 * each handler comes to its end.
 *
 *     handler_in_fcntl PORT
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cases.h"
#include "checks.h"

/* Where others have the processors each signal is a time slice late: then fewer come, and the calls are as many. */
enum { HANDLED = 30000, CALLS = 1000000 };

static int ends[2];
static atomic_int is_over;
static atomic_long handled;

static void send_one(int unused) {
    int kept = errno;
    (void)unused;
    send(ends[0], "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    handled++;
    errno = kept;
}

static void *signal_all_the_time(void *whom) {
    for (long sent = 0; !is_over; sent++) {
        CHECK(pthread_kill(*(pthread_t *)whom, SIGUSR1) == 0);
        while (handled < sent && !is_over) sched_yield();
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    listen_at_port(argv[1]);
    join(ends);
    struct sigaction action = {.sa_handler = send_one};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    pthread_t self = pthread_self(), signaller;
    CHECK(pthread_create(&signaller, NULL, signal_all_the_time, &self) == 0);
    char bytes[4096];
    for (int call = 0; handled < HANDLED && call < CALLS; call++) {
        int wanted = call % 2 ? O_NONBLOCK : 0;
        CHECK(fcntl(ends[0], F_SETFL, wanted) == 0);
        CHECK(fcntl(ends[0], F_GETFL) == (O_RDWR | wanted));
        if (call % 100 == 0) recv(ends[1], bytes, sizeof bytes, MSG_DONTWAIT);
    }
    is_over = 1;
    CHECK(pthread_join(signaller, NULL) == 0);
    puts("all");
    return 0;
}
