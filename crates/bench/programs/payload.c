/* What streams carry: a sequence of bytes that repeats after a prime number of them, so that bytes which are lost,
 * doubled or moved by a buffer's or a segment's length are noticed. */
#include "load.h"

#include <stdlib.h>
#include <string.h>

enum { PERIOD = 65521 };

static uint8_t *sequence;

void payload_prepare(size_t longest)
{
    sequence = allocate(PERIOD + longest, 1);
    uint32_t state = 2463534242u;
    for (size_t i = 0; i < PERIOD; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        sequence[i] = (uint8_t)state;
    }
    for (size_t i = PERIOD; i < PERIOD + longest; i++)
        sequence[i] = sequence[i - PERIOD];
}

const uint8_t *payload_at(uint64_t offset)
{
    return sequence + offset % PERIOD;
}

bool payload_is_right(const uint8_t *bytes, size_t count, uint64_t offset)
{
    size_t looked = count < COUNTER ? count : COUNTER;
    const uint8_t *right = payload_at(offset);
    return memcmp(bytes, right, looked) == 0
        && memcmp(bytes + count - looked, payload_at(offset + count - looked), looked) == 0;
}
