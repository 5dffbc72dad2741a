/* Latencies: 128 buckets for each power of two, so that a value is known to within 1 %. Of fixed size. */
#include "load.h"

enum { SUB_BITS = 7, SUBS = 1 << SUB_BITS, TOP_BITS = 42, BUCKETS = (TOP_BITS - SUB_BITS + 1) * SUBS };

static uint64_t buckets[BUCKETS];
static uint64_t count, sum, least = UINT64_MAX, most;

void histogram_record(uint64_t ns)
{
    count++;
    sum += ns;
    if (ns < least)
        least = ns;
    if (ns > most)
        most = ns;
    unsigned shift = 0;
    if (ns >= SUBS)
        shift = 63u - SUB_BITS - (unsigned)__builtin_clzll(ns);
    /* From SUBS on, the value's leading bit is the 1 that `shift` brings to the place of SUBS. */
    size_t bucket = ns < SUBS ? ns : (size_t)shift * SUBS + (ns >> shift);
    buckets[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
}

uint64_t histogram_count(void)
{
    return count;
}

/* The middle of a bucket. */
static double middle(size_t bucket)
{
    if (bucket < 2 * SUBS)
        return (double)bucket;
    unsigned shift = (unsigned)(bucket / SUBS) - 1;
    double width = (double)(UINT64_C(1) << shift);
    return (double)(bucket % SUBS + SUBS) * width + (width - 1) / 2;
}

double histogram_quantile(double q)
{
    uint64_t wanted = (uint64_t)(q * (double)count);
    if ((double)wanted < q * (double)count || wanted == 0)
        wanted++;
    uint64_t seen = 0;
    for (size_t i = 0; i < BUCKETS; i++) {
        seen += buckets[i];
        if (seen < wanted)
            continue;
        double value = middle(i);
        value = value < (double)least ? (double)least : value;
        return value > (double)most ? (double)most : value;
    }
    return (double)most;
}

double histogram_mean(void)
{
    return count == 0 ? 0 : (double)sum / (double)count;
}

uint64_t histogram_min(void)
{
    return count == 0 ? 0 : least;
}

uint64_t histogram_max(void)
{
    return most;
}
