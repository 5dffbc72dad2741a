/*
 * What few programs do with a connection: leave a blocked call by siglongjmp, wait in a thread with the least stack, bind by
 * bindresvport, and hand it to processes made by _Fork, posix_spawn and execveat. Prints what came of each.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(call)                                                                                                     \
    ({                                                                                                                 \
        long result_ = (call);                                                                                         \
        if (result_ < 0) {                                                                                             \
            perror(#call);                                                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
        result_;                                                                                                       \
    })

/* In the C library, without a header of its own. */
int bindresvport(int socket, struct sockaddr_in *addr);

static int client, server;

static void connected(int listener) {
    struct sockaddr_in addr;
    socklen_t len = sizeof addr;
    MUST(getsockname(listener, (void *)&addr, &len));
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(client, (void *)&addr, len));
    server = MUST(accept(listener, 0, 0));
}

static int descriptors(void) {
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static sigjmp_buf back;

static void leave(int signal) {
    siglongjmp(back, signal);
}

/* Each time a blocked call is left for good; it must leave nothing behind, and the next one must work. */
static void jumps(void) {
    struct sigaction action = {.sa_handler = leave};
    sigaction(SIGALRM, &action, 0);
    volatile int before = 0;
    for (volatile int n = 0; n < 300; n++) {
        char byte = 0;
        if (!sigsetjmp(back, 1)) {
            struct itimerval soon = {.it_value = {.tv_usec = 500}};
            setitimer(ITIMER_REAL, &soon, 0);
            struct pollfd one = {.fd = server, .events = POLLIN};
            if (n % 2)
                poll(&one, 1, -1);
            else
                recv(server, &byte, 1, 0);
            printf("nobody sent anything, and the call ended\n");
            exit(1);
        }
        MUST(send(client, "x", 1, 0));
        if (recv(server, &byte, 1, 0) != 1 || byte != 'x')
            printf("wrong after jump %d\n", n);
        if (n == 20)
            before = descriptors();
    }
    printf("300 calls left, %d descriptors more\n", descriptors() - before);
}

static void *waits(void *unused) {
    char byte = 0;
    long got = recv(server, &byte, 1, 0);
    return (void *)(got + byte);
    (void)unused;
}

static void small_stack(void) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN);
    pthread_t thread;
    int error = pthread_create(&thread, &attr, waits, 0);
    if (error) {
        printf("pthread_create: %s\n", strerror(error));
        return;
    }
    MUST(send(client, "s", 1, 0));
    void *result;
    pthread_join(thread, &result);
    printf("a thread with the least stack: %ld\n", (long)result - 's');
}

/* The child speaks by the connection that it has as its standard output; the parent hears it at the other end. */
static void heard(const char *what, pid_t child) {
    char text[64] = "";
    long got = recv(client, text, sizeof text - 1, 0);
    int status;
    waitpid(child, &status, 0);
    printf("%s: %ld %s, status %d\n", what, got, text, status);
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IOLBF, 0);
    if (argc > 1) {
        MUST(send(STDIN_FILENO, argv[1], strlen(argv[1]), 0));
        return 3;
    }
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in any = {.sin_family = AF_INET};
    int reserved = bindresvport(listener, &any);
    socklen_t len = sizeof any;
    MUST(getsockname(listener, (void *)&any, &len));
    printf("bindresvport: %d %d\n", reserved, ntohs(any.sin_port) < 1024 && ntohs(any.sin_port) > 0);
    MUST(listen(listener, 8));
    connected(listener);
    jumps();
    small_stack();

    pid_t child = _Fork();
    if (child == 0) {
        send(server, "forked", 6, 0);
        _exit(3);
    }
    heard("_Fork", child);

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, server, STDIN_FILENO);
    char *const spawned[] = {argv[0], (char *)"spawned", 0};
    int error = posix_spawn(&child, "/proc/self/exe", &actions, 0, spawned, environ);
    printf("posix_spawn: %d\n", error);
    heard("posix_spawn", child);

    child = fork();
    if (child == 0) {
        dup2(server, STDIN_FILENO);
        int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        char *const executed[] = {argv[0], (char *)"executed", 0};
        execveat(program, "", executed, environ, AT_EMPTY_PATH);
        _exit(127);
    }
    heard("execveat", child);
    close(server);
    char byte;
    printf("the end: %ld\n", (long)recv(client, &byte, 1, 0));
    return 0;
}
