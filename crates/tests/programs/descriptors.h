/* Which descriptors a test program has. */
#ifndef DESCRIPTORS_H
#define DESCRIPTORS_H

#include <dirent.h>
#include <string.h>
#include <unistd.h>

#include "checks.h"

/* How many descriptors of this process are the file's. */
static int descriptors_of(const char *path) {
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    CHECK(all != NULL);
    for (struct dirent *one; (one = readdir(all)) != NULL;) {
        char to[4096] = "";
        count += readlinkat(dirfd(all), one->d_name, to, sizeof to - 1) > 0 && strcmp(to, path) == 0;
    }
    closedir(all);
    return count;
}

#endif
