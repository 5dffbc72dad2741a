/* A thread that receives and sends once, twice; the second time between two marks that strace shows.
 *
 *     short_thread PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checks.h"

static int ends[2];

static void *answer(void *unused) {
    char byte;
    CHECK(recv(ends[1], &byte, 1, 0) == 1 && send(ends[1], &byte, 1, 0) == 1);
    return unused;
}

static void serve(void) {
    pthread_t thread;
    char byte = 'x';
    CHECK(send(ends[0], &byte, 1, 0) == 1);
    CHECK(pthread_create(&thread, NULL, answer, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(recv(ends[0], &byte, 1, 0) == 1);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(arguments[1]))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener, on = 1;
    CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    CHECK((ends[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
    /* What a first call and a first thread do, and no other. */
    serve();
    CHECK(write(2, "begin\n", 6) == 6);
    serve();
    CHECK(write(2, "end\n", 4) == 4);
    printf("all\n");
    return 0;
}
