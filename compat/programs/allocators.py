"""programs with allocators of their own: memcached with jemalloc and with tcmalloc preloaded, threads linked to tcmalloc that
allocate while they accept, connect, send and receive"""

import glob
import os
import threading

from lib import Failed, Missing, connect, expect, octets, recv_exactly, script, sha256

PORT = 8690

SOURCE = r"""
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* An echo, a thread for each connection; every piece goes through memory of its own, which another thread frees. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *freed_by_others[64];

static void give_away(char *piece, unsigned number)
{
    pthread_mutex_lock(&lock);
    char *old = freed_by_others[number % 64];
    freed_by_others[number % 64] = piece;
    pthread_mutex_unlock(&lock);
    free(old);
}

static void *serve(void *argument)
{
    int s = (int)(long)argument;
    for (unsigned number = 0;; number++) {
        size_t size = 1 + number * 977 % 60000;
        char *piece = malloc(size);
        ssize_t got = recv(s, piece, size, 0);
        for (ssize_t sent = 0, n; sent < got; sent += n)
            if ((n = send(s, piece + sent, got - sent, MSG_NOSIGNAL)) <= 0)
                break;
        give_away(piece, number);
        if (got <= 0)
            break;
    }
    close(s);
    return NULL;
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 0)};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 100))
        return perror("listen"), 1;
    for (;;) {
        pthread_t thread;
        int s = accept(listener, NULL, NULL);
        if (s < 0 || pthread_create(&thread, NULL, serve, (void *)(long)s))
            return perror("accept"), 1;
        pthread_detach(thread);
    }
}
"""


def library(name):
    found = glob.glob(f"/usr/lib/*/{name}")
    if not found:
        raise Missing(f"no {name} here: Debian's packages libjemalloc2 and libtcmalloc-minimal4 have them")
    return found[0]


def many(port, work):
    """Thirty clients at once."""
    errors = []

    def one(number):
        try:
            work(connect(port), number)
        except Exception as error:  # pylint: disable=broad-except
            errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=one, args=(n,), daemon=True) for n in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    expect(sum(thread.is_alive() for thread in threads), 0, "hanging clients")
    if errors:
        raise Failed(f"{len(errors)} of 30: {errors[0]}")


def memcached(s, number):
    s.settimeout(20)
    for turn in range(20):
        value = octets(100 + 4000 * turn, number)
        s.sendall(b"set %d 0 0 %d\r\n%s\r\nget %d\r\n" % (number, len(value), value, number))
        wanted = b"STORED\r\nVALUE %d 0 %d\r\n%s\r\nEND\r\n" % (number, len(value), value)
        expect(sha256(recv_exactly(s, len(wanted))), sha256(wanted), "the answers")
    s.close()


def echo(s, number):
    s.settimeout(20)
    for turn in range(20):
        content = octets(1 + 3000 * turn, number)
        s.sendall(content)
        expect(sha256(recv_exactly(s, len(content))), sha256(content), "what came back")
    s.close()


def main(lab):
    libraries = {"jemalloc": library("libjemalloc.so.2"), "tcmalloc": library("libtcmalloc_minimal.so.4")}
    for number, (name, path) in enumerate(libraries.items()):
        with lab.check(f"{name}, preloaded"):
            # Beside what is preloaded already.
            preloaded = ":".join(word for word in (path, os.environ.get("LD_PRELOAD")) if word)
            server = lab.serve(name, PORT + number, "memcached", "-t", 4, "-p", PORT + number, "-l", "127.0.0.1", "-U", 0, "-u",
                               "nobody", env={**os.environ, "LD_PRELOAD": preloaded})
            expect(path in open(f"/proc/{server.pid}/maps").read(), True, "the library is loaded")
            many(PORT + number, memcached)
            lab.stop(server, status=0)
        with lab.check(f"{name}, linked"):
            program = lab.path(f"echo-{name}")
            lab.run("cc", "-O2", "-pthread", "-o", program, lab.write("echo.c", SOURCE), path)
            lab.serve(f"echo-{name}", PORT + 5 + number, program, PORT + 5 + number)
            many(PORT + 5 + number, echo)


script("jemalloc, tcmalloc", main)
