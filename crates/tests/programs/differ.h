/*
 * The worker of the differential test (crates/tests/tests/differential): it makes the socket calls that it is told,
 * one at a time, and answers with what came of each. The same program runs on the kernel's stack and on the engine.
 */
#ifndef DIFFER_H
#define DIFFER_H

#include <netinet/in.h>
#include <stddef.h>

enum {
    NUMBERS_MAX = 24,
    /* The program's own descriptors are at this number and above, out of the way of those under test. */
    OWN_FDS = 900,
    /* No call under test gets a number as high as this by itself. */
    TEST_FDS = 160,
    BUFFER_MAX = 64 << 10,
    PARTS_MAX = 8,
    /* Numbers that `look` tells of a descriptor. */
    SEEN = 7,
};

/* What a call is told: its numbers. Those that were not given are zero. */
struct call {
    long n[NUMBERS_MAX];
    int count;
};

/* One kind of call. */
struct operation {
    const char *name;
    void (*run)(const struct call *);
};

extern const struct operation descriptor_operations[], address_operations[], data_operations[], ready_operations[],
    option_operations[], datagram_operations[];

/* The answer: the call's result and errno first, then named values. */
void answer(long result);
void value(const char *name, long number);
/* A value that differs between the two stacks by its nature; for the driver's use only. */
void raw_value(const char *name, long number);
void seen(int fd, const int numbers[SEEN]);
void bytes(const char *name, const void *data, size_t length);

/* Bytes to send, a pattern of their own for each seed, and a short sum of those that came. */
void fill(unsigned char *buffer, size_t length, long seed);
unsigned long sum(const unsigned char *buffer, size_t length);

/* How an order names an address: the first number of two; the second is the port. */
enum address_kind { LOOPBACK, ANY, OTHER_LOOPBACK, WRONG_FAMILY, TOO_SHORT, UNSPECIFIED, NO_ADDRESS, FOREIGN };

socklen_t make_address(struct sockaddr_in *address, long kind, long port);

_Noreturn void die(const char *what);

#endif
