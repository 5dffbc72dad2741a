/* What the test programs check themselves with: the first thing that does not hold is told on the standard error, and ends them with 1. */
#ifndef CHECKS_H
#define CHECKS_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                                  \
    do {                                                                                                             \
        if (!(what)) {                                                                                               \
            fprintf(stderr, "line %d: %s does not hold (errno %d, %s)\n", __LINE__, #what, errno, strerror(errno));    \
            exit(1);                                                                                                 \
        }                                                                                                            \
    } while (0)
#define FAILS(what, with)                                                                                            \
    do {                                                                                                             \
        errno = 0;                                                                                                   \
        CHECK((what) == -1);                                                                                         \
        CHECK(errno == (with));                                                                                      \
    } while (0)

#endif
