/* The measured interval and the JSON that tells of it. */
#include "load.h"

static uint64_t began, ended;
static uint64_t user_before, system_before, user_spent, system_spent;

void report_begin(uint64_t now)
{
    cpu_time_us(&user_before, &system_before);
    began = now;
}

void report_end(uint64_t now)
{
    cpu_time_us(&user_spent, &system_spent);
    user_spent -= user_before;
    system_spent -= system_before;
    ended = now;
}

void report_set(uint64_t begin, uint64_t end, uint64_t user, uint64_t system)
{
    began = begin;
    ended = end;
    user_spent = user;
    system_spent = system;
}

static double seconds(void)
{
    return (double)(ended - began) / 1e9;
}

static void print_latency(void)
{
    printf("\"latency_us\":{\"min\":%.3f,\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,\"p999\":%.3f,\"max\":%.3f,\"mean\":%.3f},",
           (double)histogram_min() / 1e3, histogram_quantile(0.5) / 1e3, histogram_quantile(0.9) / 1e3,
           histogram_quantile(0.99) / 1e3, histogram_quantile(0.999) / 1e3, (double)histogram_max() / 1e3,
           histogram_mean() / 1e3);
}

static void print_cpu(void)
{
    printf("\"user_us\":%ju,\"system_us\":%ju}\n", (uintmax_t)user_spent, (uintmax_t)system_spent);
    fflush(stdout);
}

void report_requests(const char *mode, uint32_t size)
{
    if (crowd_tell(began, ended, user_spent, system_spent))
        return;
    uint64_t requests = histogram_count();
    if (requests == 0)
        die("no request was answered in %.3f s: measure for longer", seconds());
    printf("{\"mode\":\"%s\",\"requests\":%ju,\"bytes\":%ju,\"seconds\":%.6f,\"rate\":%.3f,", mode, (uintmax_t)requests,
           (uintmax_t)(requests * size), seconds(), (double)requests / seconds());
    print_latency();
    print_cpu();
}

void report_idle(uint32_t connections, uint32_t size, uint64_t opening)
{
    printf("{\"mode\":\"idle\",\"requests\":%u,\"bytes\":%ju,\"seconds\":%.6f,\"rate\":%.3f,", connections,
           (uintmax_t)connections * size, seconds(), (double)connections * 1e9 / (double)opening);
    print_latency();
    print_cpu();
}

void report_stream(uint64_t bytes)
{
    double rate = (double)bytes / seconds();
    printf("{\"mode\":\"stream\",\"requests\":null,\"bytes\":%ju,\"seconds\":%.6f,\"rate\":%.3f,\"bytes_per_second\":%.3f,"
           "\"latency_us\":null,",
           (uintmax_t)bytes, seconds(), rate, rate);
    print_cpu();
}

void report_transfers(uint64_t size, uint64_t thread_us)
{
    double bytes = (double)size * (double)histogram_count();
    printf("{\"mode\":\"transfer\",\"requests\":%ju,\"bytes\":%.0f,\"seconds\":%.6f,\"bytes_per_second\":%.3f,"
           "\"thread_us\":%ju,",
           (uintmax_t)histogram_count(), bytes, seconds(), bytes / seconds(), (uintmax_t)thread_us);
    print_latency();
    print_cpu();
}

void report_flood(uint64_t sent)
{
    printf("{\"mode\":\"flood\",\"requests\":%ju,\"seconds\":%.6f,\"rate\":%.3f,", (uintmax_t)sent, seconds(),
           (double)sent / seconds());
    print_cpu();
}

void report_datagrams(const char *mode, uint64_t sent, uint64_t came, double peak)
{
    double rate = (double)came / seconds();
    printf("{\"mode\":\"%s\",\"requests\":%ju,\"sent\":%ju,\"seconds\":%.6f,\"rate\":%.3f,\"latency_us\":null,", mode, (uintmax_t)came,
           (uintmax_t)sent, seconds(), rate);
    printf("\"lost_percent\":%.4f,", sent > came ? 100.0 * (double)(sent - came) / (double)sent : 0.0);
    if (peak > 0)
        printf("\"kept_percent\":%.2f,", 100.0 * rate / peak);
    print_cpu();
}

void report_server(uint64_t requests)
{
    uint64_t user, system;
    cpu_time_us(&user, &system);
    printf("{\"requests\":%ju,\"user_us\":%ju,\"system_us\":%ju}\n", (uintmax_t)requests, (uintmax_t)user,
           (uintmax_t)system);
    fflush(stdout);
}
