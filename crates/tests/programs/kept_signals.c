/* Threads that come and go exchange bytes while signals reach them: each handler runs, real-time signals as often as they were
 * sent and with what was sent, and no thread leaves memory behind.
 *
 *     kept_signals PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "checks.h"

enum { THREADS = 4, ROUNDS = 12, SIGNALS = 200 };

static struct sockaddr_in at = {.sin_family = AF_INET};
static int listener;
static atomic_long plain, real_time, wrong;
static atomic_int is_over;
static pthread_barrier_t all_connected;

static void on_plain(int signal, siginfo_t *info, void *context) {
    (void)context;
    wrong += info->si_signo != signal;
    plain++;
}

static void on_real_time(int signal, siginfo_t *info, void *context) {
    (void)context;
    wrong += info->si_signo != signal || info->si_value.sival_int != signal * 7;
    real_time++;
}

static void *exchange(void *unused) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    char bytes[64] = "";
    pthread_mutex_lock(&one_at_a_time);
    int ends[2] = {socket(AF_INET, SOCK_STREAM, 0), -1};
    CHECK(connect(ends[0], (struct sockaddr *)&at, sizeof at) == 0);
    CHECK((ends[1] = accept(listener, NULL, NULL)) >= 0);
    pthread_mutex_unlock(&one_at_a_time);
    pthread_barrier_wait(&all_connected);
    while (!is_over) {
        CHECK(send(ends[0], bytes, sizeof bytes, 0) == sizeof bytes);
        CHECK(recv(ends[1], bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
    }
    close(ends[0]), close(ends[1]);
    return unused;
}

static long mapped_pages(void) {
    FILE *statm = fopen("/proc/self/statm", "r");
    long pages = 0;
    CHECK(statm && fscanf(statm, "%ld", &pages) == 1);
    fclose(statm);
    return pages;
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons((uint16_t)atoi(argv[1]));
    int one = 1;
    CHECK((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    CHECK(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, THREADS) == 0);
    struct sigaction action = {.sa_sigaction = on_plain, .sa_flags = SA_SIGINFO | SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    action.sa_sigaction = on_real_time;
    CHECK(sigaction(SIGRTMIN + 1, &action, NULL) == 0 && sigaction(SIGRTMIN + 2, &action, NULL) == 0);
    CHECK(pthread_barrier_init(&all_connected, NULL, THREADS + 1) == 0);
    long sent = 0, mapped = 0;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        is_over = 0;
        for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, exchange, NULL) == 0);
        pthread_barrier_wait(&all_connected);
        for (int n = 0; n < SIGNALS; n++)
            for (int i = 0; i < THREADS; i++) {
                CHECK(pthread_kill(threads[i], SIGUSR1) == 0);
                for (int signal = SIGRTMIN + 1; signal <= SIGRTMIN + 2; signal++, sent++)
                    CHECK(pthread_sigqueue(threads[i], signal, (union sigval){.sival_int = signal * 7}) == 0);
            }
        is_over = 1;
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        if (round == ROUNDS / 2) mapped = mapped_pages();
    }
    printf("wrong: %ld, real-time signals lost: %ld, others: %s\n", (long)wrong, sent - real_time, plain > 0 ? "some" : "none");
    printf("memory left behind: %s\n", mapped_pages() > mapped + ROUNDS ? "yes" : "no");
    puts("all");
    return 0;
}
