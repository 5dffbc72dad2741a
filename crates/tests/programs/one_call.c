/* A file to a connection by one sendfile, between two marks that strace shows.
 *
 *     one_call PORT FILE BYTES
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checks.h"

int main(int count, char **arguments) {
    CHECK(count == 4);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(arguments[1]))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    size_t bytes = (size_t)atol(arguments[3]), got = 0;
    char *buffer = malloc(bytes);
    int listener, on = 1, sends, receives, file = open(arguments[2], O_RDONLY);
    CHECK(buffer && file >= 0);
    /* In memory from here on. */
    CHECK(read(file, buffer, bytes) == (ssize_t)bytes);
    CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    CHECK((sends = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && connect(sends, (struct sockaddr *)&at, sizeof at) == 0);
    CHECK((receives = accept(listener, NULL, NULL)) >= 0);
    /* What a first call does, and no other. */
    CHECK(send(sends, buffer, 1, 0) == 1 && recv(receives, buffer, 1, 0) == 1);
    off_t from = 0;
    CHECK(write(2, "begin\n", 6) == 6);
    ssize_t sent = sendfile(sends, file, &from, bytes);
    CHECK(write(2, "end\n", 4) == 4);
    CHECK(sent == (ssize_t)bytes);
    while (got < bytes) {
        ssize_t n = recv(receives, buffer + got, bytes - got, 0);
        CHECK(n > 0);
        got += (size_t)n;
    }
    printf("all\n");
    return 0;
}
