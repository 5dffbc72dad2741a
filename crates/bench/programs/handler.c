/* What the server does for a request, without any socket; and the mode that measures this alone. */
#include "load.h"

#include <string.h>

size_t handler_answer(const uint8_t *requests, size_t count, uint32_t size, uint8_t *replies, uint64_t *answered)
{
    size_t at = 0;
    while (count - at >= size) {
        memcpy(replies + at, requests + at, size);
        at += size;
        ++*answered;
    }
    return at;
}

int null_run(const struct options *options)
{
    enum { ROUND = 1024 };
    static uint8_t request[BUFFER], reply[BUFFER];
    uint64_t answered = 0, user, system, user_before, system_before;
    cpu_time_us(&user_before, &system_before);
    uint64_t begin = now_ns(), now = begin, end = begin + seconds_ns(options->seconds);
    while (now < end) {
        for (int i = 0; i < ROUND; i++) {
            memcpy(request, &answered, options->size < COUNTER ? options->size : COUNTER);
            handler_answer(request, options->size, options->size, reply, &answered);
            /* The reply counts as used: without this the compiler may leave the copies out. */
            __asm__ volatile("" : : "r"(reply) : "memory");
        }
        now = now_ns();
    }
    cpu_time_us(&user, &system);
    double ns = (double)(now - begin);
    printf("{\"mode\":\"null\",\"requests\":%ju,\"bytes\":%ju,\"seconds\":%.6f,\"rate\":%.3f,\"ns_per_request\":%.3f,"
           "\"user_us\":%ju,\"system_us\":%ju}\n",
           (uintmax_t)answered, (uintmax_t)(answered * options->size), ns / 1e9, (double)answered * 1e9 / ns,
           ns / (double)answered, (uintmax_t)(user - user_before), (uintmax_t)(system - system_before));
    return 0;
}
