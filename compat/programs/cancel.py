"""a server in C whose threads are cancelled while they block in recv, send, poll, epoll_wait and accept: each ends at once, its
clean-up handlers run, and what it held is closed"""

from lib import connect, expect, recv_exactly, recv_to_end, script

PORT = 8700

SOURCE = r"""
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Serves connections in threads. A line names the call in which the connection's thread then blocks, and is cancelled. */
static int cleaned;

static void let_go(void *argument)
{
    __atomic_add_fetch(&cleaned, 1, __ATOMIC_SEQ_CST);
    close((int)(long)argument);
}

static void *block(void *argument)
{
    int s = (int)(long)argument;
    char word[16] = "", buffer[65536] = "";
    pthread_cleanup_push(let_go, argument);
    if (recv(s, word, 8, MSG_WAITALL) == 8 && send(s, word, 8, 0) == 8) {
        struct pollfd polled = {s, POLLIN, 0};
        struct epoll_event event = {EPOLLIN, {0}};
        if (!strcmp(word, "recv   \n"))
            recv(s, buffer, sizeof buffer, 0);
        else if (!strcmp(word, "send   \n"))
            while (send(s, buffer, sizeof buffer, MSG_NOSIGNAL) > 0)
                ;
        else if (!strcmp(word, "poll   \n"))
            poll(&polled, 1, -1);
        else if (!strcmp(word, "epoll  \n")) {
            int set = epoll_create1(0);
            epoll_ctl(set, EPOLL_CTL_ADD, s, &event);
            epoll_wait(set, &event, 1, -1);
        } else if (!strcmp(word, "accept \n")) {
            int own = socket(AF_INET, SOCK_STREAM, 0);
            listen(own, 1);
            accept(own, NULL, NULL);
        }
    }
    pthread_cleanup_pop(1);
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
        /* In pairs: the second of each says that the first one's thread is to be cancelled. */
        pthread_t thread;
        void *result = NULL;
        char answer[64];
        int first = accept(listener, NULL, NULL);
        if (pthread_create(&thread, NULL, block, (void *)(long)first))
            return perror("pthread_create"), 1;
        int second = accept(listener, NULL, NULL);
        recv(second, answer, 1, 0);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        int length = snprintf(answer, sizeof answer, "%s %d\n", result == PTHREAD_CANCELED ? "cancelled" : "ended", cleaned);
        send(second, answer, length, MSG_NOSIGNAL);
        close(second);
    }
}
"""


def main(lab):
    program = lab.path("server")
    lab.run("cc", "-O2", "-Wall", "-pthread", "-o", program, lab.write("server.c", SOURCE))
    server = lab.serve("server", PORT, program, PORT)
    # That was the first of a pair.
    with connect(PORT) as second:
        second.sendall(b"x")
        recv_to_end(second)
    count = 1
    for word in ("recv", "send", "poll", "epoll", "accept"):
        with lab.check(f"{word}, 20 times"):
            for _ in range(20):
                count += 1
                one(word, count)
    expect(server.poll(), None, "the server's status")


def one(word, count):
    first = connect(PORT)
    first.settimeout(20)
    request = f"{word:<7}\n".encode()
    first.sendall(request)
    expect(recv_exactly(first, 8), request, "what the thread says before it blocks")
    second = connect(PORT)
    second.settimeout(20)
    second.sendall(b"x")
    expect(recv_to_end(second).decode(), f"cancelled {count}\n", "what became of the thread")
    # It was closed by the clean-up handler.
    recv_to_end(first)
    first.close()
    second.close()


script("pthread_cancel", main)
