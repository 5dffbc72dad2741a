/* Two processes of two threads each receive from one connection: each byte comes to one of them, and the end to all.
 *
 *     two_by_two PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.h"

enum { ROUNDS = 200, PIECES = 300, PIECE = 8 };

static int ends[2];
static atomic_long *received;

static void *receive(void *unused) {
    char bytes[PIECE];
    for (ssize_t got; (got = recv(ends[1], bytes, sizeof bytes, 0)) != 0; *received += got) CHECK(got > 0);
    return unused;
}

static pid_t receiver(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    pthread_t other;
    close(ends[0]);
    CHECK(pthread_create(&other, NULL, receive, NULL) == 0);
    receive(NULL);
    CHECK(pthread_join(other, NULL) == 0);
    _exit(0);
}

static void round_of(struct sockaddr_in at) {
    /* Each round has a listener of its own, as one that serves children would be left to the kernel in time. */
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
    close(listener);
    *received = 0;
    pid_t children[2] = {receiver(), receiver()};
    close(ends[1]);
    for (int k = 0; k < PIECES; k++) CHECK(send(ends[0], "12345678", PIECE, MSG_NOSIGNAL) == PIECE);
    close(ends[0]);
    for (int k = 0; k < 2; k++) {
        int status;
        CHECK(waitpid(children[k], &status, 0) == children[k] && status == 0);
    }
    CHECK(*received == PIECES * PIECE);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    received = mmap(NULL, sizeof *received, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(received != MAP_FAILED);
    for (int round = 0; round < ROUNDS; round++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]) + round)};
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        round_of(at);
    }
    puts("all");
    return 0;
}
