/* Two processes accept from one listener, and one of them makes children all the while: what it was handed and has not accepted goes back, and
 * each connection is answered by one of the two, once. Prints "all" at the end.
 *
 *     accepted_around_forks PORT CONNECTIONS
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.h"

enum { CLIENTS = 4 };

static struct sockaddr_in at;
static int listener, connections;

static void *serve(void *unused) {
    (void)unused;
    for (;;) {
        char byte;
        int fd = accept(listener, NULL, NULL);
        CHECK(fd >= 0);
        CHECK(recv(fd, &byte, 1, 0) == 1 && send(fd, &byte, 1, 0) == 1 && recv(fd, &byte, 1, 0) == 0);
        close(fd);
    }
}

static void *ask(void *of) {
    for (int n = 0; n < connections; n++) {
        char byte = (char)(n + (int)(long)of), back = 0;
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
        CHECK(send(fd, &byte, 1, 0) == 1 && recv(fd, &back, 1, 0) == 1 && back == byte);
        close(fd);
    }
    return NULL;
}

static pid_t child(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

/* Serves, beside a child that does, too, and makes more children. */
static void fork_and_serve(void) {
    pthread_t thread;
    if (child() == 0)
        serve(NULL);
    CHECK(pthread_create(&thread, NULL, serve, NULL) == 0);
    for (;;) {
        pid_t made = child();
        if (made == 0)
            _exit(0);
        CHECK(waitpid(made, NULL, 0) == made);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    pthread_t threads[CLIENTS];
    int one = 1;
    at = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((in_port_t)atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    connections = atoi(argv[2]);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 64) == 0);
    pid_t server = child();
    if (server == 0)
        fork_and_serve();
    for (long n = 0; n < CLIENTS; n++)
        CHECK(pthread_create(&threads[n], NULL, ask, (void *)n) == 0);
    for (int n = 0; n < CLIENTS; n++)
        CHECK(pthread_join(threads[n], NULL) == 0);
    CHECK(kill(server, SIGKILL) == 0 && waitpid(server, NULL, 0) == server);
    puts("all");
    return 0;
}
