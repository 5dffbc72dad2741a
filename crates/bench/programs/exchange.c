/* The client's end of a connection in mode rr: requests leave in as few writes as they can, each reply is checked.
 * A request is its counter and bytes that never change, so what has not left can be made again and is not kept. */
#include "load.h"

#include <string.h>

static uint32_t size, counter_size;
/* The header and behind it as many requests as one write takes. */
static uint8_t output[sizeof(struct header) + BUFFER], input[BUFFER];

static uint8_t filler(size_t index)
{
    return (uint8_t)(index * 131 + 7);
}

void exchange_prepare(uint32_t message_size)
{
    struct header header = {.magic = MAGIC, .mode = MODE_RR, .size = message_size};
    size = message_size;
    counter_size = size < COUNTER ? size : COUNTER;
    memcpy(output, &header, sizeof header);
    for (size_t i = 0; i < BUFFER; i++)
        output[sizeof header + i] = filler(i % size);
}

void exchange_start(struct exchange *x, int fd, uint32_t lane)
{
    uint64_t first = (uint64_t)lane << 40;
    *x = (struct exchange){.fd = fd, .header_left = sizeof(struct header), .next_request = first, .next_reply = first};
}

/* Of `sent` bytes, counts the header's off first, then whole requests. */
static void count_off(struct exchange *x, size_t sent)
{
    size_t of_header = sent < x->header_left ? sent : x->header_left;
    x->header_left -= (uint32_t)of_header;
    uint64_t of_requests = x->sent_part + (sent - of_header);
    x->queued -= (uint32_t)(of_requests / size);
    x->next_request += of_requests / size;
    x->sent_part = (uint32_t)(of_requests % size);
}

bool exchange_send(struct exchange *x)
{
    while (x->queued > 0) {
        uint32_t room = BUFFER / size, messages = x->queued < room ? x->queued : room;
        uint8_t *requests = output + sizeof(struct header);
        for (uint32_t i = 0; i < messages; i++) {
            uint64_t counter = x->next_request + i;
            memcpy(requests + (size_t)i * size, &counter, counter_size);
        }
        const uint8_t *from = requests - x->header_left + x->sent_part;
        size_t count = (size_t)(requests + (size_t)messages * size - from);
        ssize_t sent = net_send(x->fd, from, count);
        if (sent < 0 && net_is_blocked())
            return false;
        if (sent < 0)
            die_errno("sending a request");
        count_off(x, (size_t)sent);
        if ((size_t)sent < count)
            return false;
    }
    return true;
}

/* Whether `count` bytes of a reply, from its byte `from` on, are the request's: the counter, and the last byte. */
static bool is_echo(const uint8_t *bytes, uint32_t from, size_t count, uint64_t counter)
{
    const uint8_t *right = (const uint8_t *)&counter;
    if (from < counter_size) {
        size_t here = counter_size - from < count ? counter_size - from : count;
        if (memcmp(bytes, right + from, here) != 0)
            return false;
    }
    return from + count < size || size <= COUNTER || bytes[count - 1] == filler(size - 1);
}

uint32_t exchange_receive(struct exchange *x)
{
    ssize_t n = net_receive(x->fd, input, sizeof input);
    if (n < 0 && net_is_blocked())
        return 0;
    if (n < 0)
        die_errno("receiving a reply");
    if (n == 0)
        die("the server closed a connection with %ju requests unanswered",
            (uintmax_t)(x->next_request - x->next_reply));
    uint32_t replies = 0;
    for (size_t at = 0; at < (size_t)n;) {
        size_t left = (size_t)n - at, count = size - x->have < left ? size - x->have : left;
        /* A request that is still leaving cannot have a reply. */
        if (x->next_reply == x->next_request)
            die("%zu bytes came that no request asked for", left);
        if (!is_echo(input + at, x->have, count, x->next_reply))
            die("an altered reply: at byte %u, to the request with the counter %#jx", x->have,
                (uintmax_t)x->next_reply);
        at += count;
        x->have += (uint32_t)count;
        if (x->have == size) {
            x->have = 0;
            x->next_reply++;
            replies++;
        }
    }
    return replies;
}

void exchange_push(struct exchange *x, int epoll, uint64_t data)
{
    bool wants_out = !exchange_send(x);
    if (wants_out == x->wants_out)
        return;
    x->wants_out = wants_out;
    net_watch(epoll, EPOLL_CTL_MOD, x->fd, wants_out ? EPOLLIN | EPOLLOUT : EPOLLIN, data);
}
