/* Latencies: 128 buckets for each power of two, so that a value is known to within 1 %. Of fixed size. */
#include "load.h"

enum { SUB_BITS = 7, SUBS = 1 << SUB_BITS, TOP_BITS = 42, BUCKETS = (TOP_BITS - SUB_BITS + 1) * SUBS };

struct histogram {
    uint64_t count, sum, least, most;
    uint64_t buckets[BUCKETS];
};

static struct histogram own = {.least = UINT64_MAX}, *h = &own;

size_t histogram_size(void)
{
    return sizeof *h;
}

void histogram_use(struct histogram *place)
{
    h = place;
    h->least = UINT64_MAX;
}

void histogram_add(const struct histogram *other)
{
    h->count += other->count;
    h->sum += other->sum;
    if (other->least < h->least)
        h->least = other->least;
    if (other->most > h->most)
        h->most = other->most;
    for (size_t i = 0; i < BUCKETS; i++)
        h->buckets[i] += other->buckets[i];
}

void histogram_still_waits(uint64_t ns)
{
    if (ns > h->most)
        h->most = ns;
}

void histogram_record(uint64_t ns)
{
    h->count++;
    h->sum += ns;
    if (ns < h->least)
        h->least = ns;
    if (ns > h->most)
        h->most = ns;
    unsigned shift = 0;
    if (ns >= SUBS)
        shift = 63u - SUB_BITS - (unsigned)__builtin_clzll(ns);
    /* From SUBS on, the value's leading bit is the 1 that `shift` brings to the place of SUBS. */
    size_t bucket = ns < SUBS ? ns : (size_t)shift * SUBS + (ns >> shift);
    h->buckets[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
}

uint64_t histogram_count(void)
{
    return h->count;
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
    uint64_t wanted = (uint64_t)(q * (double)h->count);
    if ((double)wanted < q * (double)h->count || wanted == 0)
        wanted++;
    uint64_t seen = 0;
    for (size_t i = 0; i < BUCKETS; i++) {
        seen += h->buckets[i];
        if (seen < wanted)
            continue;
        double value = middle(i);
        value = value < (double)h->least ? (double)h->least : value;
        return value > (double)h->most ? (double)h->most : value;
    }
    return (double)h->most;
}

double histogram_mean(void)
{
    return h->count == 0 ? 0 : (double)h->sum / (double)h->count;
}

uint64_t histogram_min(void)
{
    return h->count == 0 ? 0 : h->least;
}

uint64_t histogram_max(void)
{
    return h->most;
}
