/* A server with a thread, or a process, for each connection, as many have been written: blocking calls and no epoll. */
#include "load.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* Two buffers and what little the calls need. */
enum { STACK = 4 * BUFFER };

static bool receive_all(int fd, void *to, size_t count)
{
    for (size_t have = 0; have < count;) {
        ssize_t n = net_receive(fd, (uint8_t *)to + have, count - have);
        if (n <= 0)
            return false;
        have += (size_t)n;
    }
    return true;
}

static bool send_all(int fd, const uint8_t *from, size_t count)
{
    while (count > 0) {
        ssize_t n = net_send(fd, from, count);
        if (n < 0)
            return false;
        from += n;
        count -= (size_t)n;
    }
    return true;
}

static void serve_one(int fd)
{
    uint8_t requests[BUFFER], replies[BUFFER];
    struct header header;
    uint64_t answered = 0;
    if (!receive_all(fd, &header, sizeof header))
        return;
    if (header.magic != MAGIC || header.mode != MODE_RR || header.size < 1 || header.size > BUFFER) {
        fprintf(stderr, "toe-load serve --each: a connection does not begin as one of rr or cps does; it is closed\n");
        return;
    }
    size_t have = 0;
    for (;;) {
        ssize_t n = net_receive(fd, requests + have, sizeof requests - have);
        if (n <= 0)
            return;
        have += (size_t)n;
        size_t complete = handler_answer(requests, have, header.size, replies, &answered);
        if (!send_all(fd, replies, complete))
            return;
        memmove(requests, requests + complete, have - complete);
        have -= complete;
    }
}

static void *in_thread(void *argument)
{
    int fd = (int)(intptr_t)argument;
    serve_one(fd);
    close(fd);
    return NULL;
}

static void give_thread(int fd)
{
    static pthread_attr_t attributes;
    static bool prepared;
    if (!prepared) {
        pthread_attr_init(&attributes);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        pthread_attr_setstacksize(&attributes, STACK);
        prepared = true;
    }
    pthread_t thread;
    errno = pthread_create(&thread, &attributes, in_thread, (void *)(intptr_t)fd);
    if (errno != 0)
        die_errno("a thread for a connection");
}

static void give_process(int listener, int fd)
{
    pid_t pid = fork();
    if (pid < 0)
        die_errno("a process for a connection");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        close(listener);
        serve_one(fd);
        _exit(EXIT_SUCCESS);
    }
    close(fd);
}

int each_run(const struct options *options)
{
    raise_descriptor_limit();
    int listener = net_listen(&options->listen, false);
    fcntl(listener, F_SETFL, fcntl(listener, F_GETFL) & ~O_NONBLOCK);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EINTR || errno == ECONNABORTED)
                continue;
            die_errno("accept4");
        }
        net_no_delay(fd);
        /* Those that have ended: their time becomes this process's children's. */
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        if (options->each == EACH_THREAD)
            give_thread(fd);
        else
            give_process(listener, fd);
    }
}
