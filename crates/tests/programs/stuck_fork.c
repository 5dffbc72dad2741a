/* A child that is made while a call waits for a disk that does not answer (odd_disk's "stuck"): it runs at once, and has nothing of the call's once
 * it has connections itself. Prints what it has tried, and "all" at the end.
 *
 *     stuck_fork PORT FILE
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.h"
#include "descriptors.h"

enum { LENGTH = 512 << 10 };

static int sends, file;
static _Atomic pid_t sender;
static struct sockaddr_in at = {.sin_family = AF_INET};

static int connected(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

static void *send_all(void *unused) {
    off_t from = 0;
    sender = gettid();
    CHECK(sendfile(sends, file, &from, LENGTH) > 0);
    return unused;
}

/* Until it waits in the kernel, look after look: nothing else tells. */
static void until_it_waits(void) {
    for (int quiet = 0; quiet < 1000; sched_yield()) {
        char path[64], text[512] = "";
        snprintf(path, sizeof path, "/proc/self/task/%d/stat", sender);
        int stat = open(path, O_RDONLY);
        ssize_t n = read(stat, text, sizeof text - 1);
        close(stat);
        char *state = n > 0 ? strrchr(text, ')') : NULL;
        quiet = state && (state[2] == 'S' || state[2] == 'D') ? quiet + 1 : 0;
    }
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    alarm(20);
    at.sin_port = htons((in_port_t)atoi(arguments[1]));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), runs[2], answered[2];
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 8) == 0);
    sends = connected();
    int receives = accept(listener, NULL, NULL);
    CHECK(receives >= 0 && (file = open(arguments[2], O_RDWR)) >= 0 && pipe(runs) == 0 && pipe(answered) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, send_all, NULL) == 0);
    while (!sender)
        sched_yield();
    until_it_waits();
    pid_t child = fork();
    CHECK(child >= 0);
    char byte;
    if (child == 0) {
        alarm(20);
        CHECK(write(runs[1], "", 1) == 1 && read(answered[0], &byte, 1) == 1);
        close(connected());
        while (descriptors_of(arguments[2]) != 1)
            sched_yield();
        _exit(0);
    }
    CHECK(read(runs[0], &byte, 1) == 1);
    puts("the child runs");
    CHECK(fchmod(file, 0600) == 0);
    for (ssize_t n, came = 0; came < LENGTH; came += n) {
        static char got[LENGTH];
        CHECK((n = recv(receives, got, LENGTH, 0)) > 0);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(write(answered[1], "", 1) == 1);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    puts("all");
    return 0;
}
