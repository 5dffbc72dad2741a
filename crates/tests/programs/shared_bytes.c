/* Connections that two processes have, by fork: whoever has an end's lock sends the next bytes of it, or reads and compares them. Exits with 0 if
 * all that was sent has come, once and in its order.
 *
 *     shared_bytes CONNECTIONS ROUNDS
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.h"

enum { PROCESSES = 2, ENDS_MAX = 16, OUTSTANDING_MAX = 5000, PIECE_MAX = 50 };

/* One end: what was sent by it and read at it so far, and who is at that. */
struct end {
    int sending, reading;
    uint64_t sent, read;
};

static struct end *ends;
static int fds[ENDS_MAX];
static uint64_t seed;

static uint32_t any(uint32_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static int take(int *lock) {
    int is_free = 0;
    return __atomic_compare_exchange_n(lock, &is_free, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static void give_back(int *lock) { __atomic_store_n(lock, 0, __ATOMIC_SEQ_CST); }

static uint8_t byte_of(int end, uint64_t at) { return (uint8_t)((at * 2654435761u >> 13) + (uint64_t)end * 101); }

static void send_some(int end) {
    uint8_t bytes[PIECE_MAX];
    struct end *this = &ends[end], *other = &ends[end ^ 1];
    if (!take(&this->sending)) return;
    if (this->sent - __atomic_load_n(&other->read, __ATOMIC_SEQ_CST) < OUTSTANDING_MAX) {
        size_t len = 1 + any(PIECE_MAX);
        for (size_t i = 0; i < len; i++) bytes[i] = byte_of(end, this->sent + i);
        ssize_t sent = send(fds[end], bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);
        CHECK(sent > 0 || errno == EAGAIN);
        if (sent > 0) __atomic_add_fetch(&this->sent, (uint64_t)sent, __ATOMIC_SEQ_CST);
    }
    give_back(&this->sending);
}

static void read_some(int end) {
    uint8_t bytes[2000];
    struct end *this = &ends[end];
    if (!take(&this->reading)) return;
    ssize_t got = recv(fds[end], bytes, 1 + any(sizeof bytes), MSG_DONTWAIT);
    CHECK(got > 0 || (got < 0 && errno == EAGAIN));
    for (ssize_t i = 0; i < got; i++) CHECK(bytes[i] == byte_of(end ^ 1, this->read + (uint64_t)i));
    if (got > 0) __atomic_add_fetch(&this->read, (uint64_t)got, __ATOMIC_SEQ_CST);
    give_back(&this->reading);
}

static int is_all_read(int count) {
    for (int end = 0; end < count; end++) {
        if (__atomic_load_n(&ends[end].read, __ATOMIC_SEQ_CST) != __atomic_load_n(&ends[end ^ 1].sent, __ATOMIC_SEQ_CST)) return 0;
    }
    return 1;
}

static void work(int process, int count, int rounds) {
    seed = (uint64_t)process + 1;
    for (int round = 0; round < rounds; round++) {
        any(2) == 0 ? send_some((int)any((uint32_t)count)) : read_some((int)any((uint32_t)count));
    }
    /* What is left, until the others have sent their last. */
    __atomic_add_fetch(&ends[ENDS_MAX].sending, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&ends[ENDS_MAX].sending, __ATOMIC_SEQ_CST) < PROCESSES || !is_all_read(count)) {
        read_some((int)any((uint32_t)count));
        sched_yield();
    }
    _exit(0);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    int count = 2 * atoi(argv[1]), rounds = atoi(argv[2]);
    CHECK(count <= ENDS_MAX);
    ends = mmap(NULL, sizeof *ends * (ENDS_MAX + 1), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(ends != MAP_FAILED);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 100) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &size) == 0);
    for (int end = 0; end < count; end += 2) {
        CHECK((fds[end] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && connect(fds[end], (struct sockaddr *)&at, sizeof at) == 0);
        CHECK((fds[end + 1] = accept(listener, NULL, NULL)) >= 0);
    }
    for (int process = 0; process < PROCESSES; process++) {
        if (fork() == 0) work(process, count, rounds);
    }
    for (int end = 0; end < count; end++) close(fds[end]);
    for (int process = 0; process < PROCESSES; process++) {
        int status = -1;
        CHECK(wait(&status) > 0 && status == 0);
    }
    puts("all");
    return 0;
}
