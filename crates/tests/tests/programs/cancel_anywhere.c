// Threads of PTHREAD_CANCEL_ASYNCHRONOUS, which the C library may end at any instruction, are cancelled inside of socket calls
// and between them.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define WORKERS 10
#define ROUNDS 30

static struct sockaddr_in address = {.sin_family = AF_INET};
static atomic_int steps[WORKERS];

static int connected(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

static void *work(void *arg) {
    int me = (int)(long)arg, before = -1;
    if (pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before) || before != PTHREAD_CANCEL_DEFERRED) abort();
    if (pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before) || before != PTHREAD_CANCEL_ASYNCHRONOUS) abort();
    for (;;) {
        int fd = connected();
        char byte = 'x', much[4096] = {0};
        if (fd < 0) continue;
        atomic_fetch_add(&steps[me], 1);
        if (me % 5 == 0)
            for (int n = 0; n < 50; n++) {
                if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1) break;
                atomic_fetch_add(&steps[me], 1);
            }
        else if (me % 5 == 1)
            while (read(fd, &byte, 1) > 0) {}
        else if (me % 5 == 2) {
            struct pollfd one = {.fd = fd, .events = POLLIN};
            poll(&one, 1, -1);
        } else if (me % 5 == 3)
            while (write(fd, much, sizeof much) > 0) {}
        else
            for (;;) atomic_fetch_add(&steps[me], 1);
        close(fd);
    }
    return NULL;
}

static void *answer(void *arg) {
    int fd = (int)(long)arg;
    char byte;
    while (read(fd, &byte, 1) == 1 && write(fd, &byte, 1) == 1) {}
    close(fd);
    return NULL;
}

static void *serve(void *arg) {
    int listener = (int)(long)arg;
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        pthread_t thread;
        if (fd < 0) continue;
        if (pthread_create(&thread, NULL, answer, (void *)(long)fd)) abort();
        pthread_detach(thread);
    }
    return NULL;
}

int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    socklen_t len = sizeof address;
    pthread_t server, workers[WORKERS];
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&address, len) || listen(listener, 128)) abort();
    if (getsockname(listener, (struct sockaddr *)&address, &len)) abort();
    if (pthread_create(&server, NULL, serve, (void *)(long)listener)) abort();
    for (int round = 0; round < ROUNDS; round++) {
        for (long n = 0; n < WORKERS; n++) {
            atomic_store(&steps[n], 0);
            if (pthread_create(&workers[n], NULL, work, (void *)n)) abort();
        }
        for (int n = 0; n < WORKERS; n++)
            while (atomic_load(&steps[n]) < (n % 5 == 0 ? round + 1 : 1)) sched_yield();
        for (int n = 0; n < WORKERS; n++)
            if (pthread_cancel(workers[n])) abort();
        for (int n = 0; n < WORKERS; n++) {
            void *result = NULL;
            if (pthread_join(workers[n], &result) || result != PTHREAD_CANCELED) abort();
        }
    }
    // What they held is free: a thread that is left makes its calls.
    int fd = connected();
    char byte = 'x';
    if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1) abort();
    puts("done");
    fflush(stdout);
    _exit(0);
}
