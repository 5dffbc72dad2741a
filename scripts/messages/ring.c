/* What it costs that one core writes what another reads, and nothing else: two threads on cores 0 and 1, a window of shared memory that one fills and the
 * other empties, piece by piece, by memcpy, or by stores past the cache. Prints GB/s for windows and pieces.
 * cc -O2 -o ring ring.c -lpthread */
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MESSAGE (1 << 20)
#define LARGEST (8 << 20)

static char *window;
static size_t window_len, piece;
static int past_cache;
static _Alignas(128) _Atomic size_t filled;
static _Alignas(128) _Atomic size_t emptied;
static _Atomic int ends;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

static void put(char *to, const char *from)
{
    if (!past_cache) {
        memcpy(to, from, piece);
        return;
    }
    for (size_t at = 0; at < piece; at += 16)
        _mm_stream_si128((__m128i *)(to + at), _mm_loadu_si128((const __m128i *)(from + at)));
    _mm_sfence();
}

static void *empty(void *none)
{
    char *message = calloc(1, MESSAGE);
    pin(1);
    for (size_t done = 0; !ends; done += piece) {
        while (filled - done < piece && !ends)
            _mm_pause();
        memcpy(message + done % MESSAGE, window + done % window_len, piece);
        emptied = done + piece;
    }
    free(message);
    return none;
}

static double run(void)
{
    pthread_t other;
    char *message = calloc(1, MESSAGE);
    filled = 0, emptied = 0, ends = 0;
    pthread_create(&other, NULL, empty, NULL);
    pin(0);
    size_t done = 0;
    double began = now(), took;
    do {
        for (size_t end = done + 16 * MESSAGE; done < end; done += piece) {
            while (done + piece - emptied > window_len)
                _mm_pause();
            put(window + done % window_len, message + done % MESSAGE);
            filled = done + piece;
        }
        took = now() - began;
    } while (took < 0.3);
    ends = 1;
    pthread_join(other, NULL);
    free(message);
    return (double)done / took / 1e9;
}

int main(void)
{
    window = aligned_alloc(4096, LARGEST);
    memset(window, 0, LARGEST);
    for (past_cache = 0; past_cache < 2; past_cache++)
        for (piece = 4096; piece <= 16384; piece *= 4) {
            printf("%s, pieces of %zu:", past_cache ? "past the cache" : "memcpy", piece);
            for (window_len = 64 << 10; window_len <= LARGEST; window_len *= 2)
                printf(" %zuK %.1f", window_len >> 10, run());
            printf("\n");
        }
    return 0;
}
