/* Programs that take processors or memory from those that are measured, until they are ended: what else runs on a
 * machine. They ask the network for nothing. */
#include "load.h"

#include <string.h>

/* More than a processor's caches hold, each way. */
enum { EATEN = 64 * 1024 * 1024 };

int spin_run(const struct options *options)
{
    (void)options;
    for (volatile uint64_t turns = 0;; turns++)
        ;
}

int eat_run(const struct options *options)
{
    (void)options;
    uint8_t *from = allocate(EATEN, 1), *to = allocate(EATEN, 1);
    for (uint8_t round = 0;; round++) {
        memset(from, round, EATEN);
        memcpy(to, from, EATEN);
        /* What is never read is never copied by a clever compiler. */
        __asm__ volatile("" : : "r"(to) : "memory");
    }
}
