/* The sum of 1 to N over several nodes with EVIL. The workers: sum work PORT, each at a port of its own; then: sum N NODE:PORT ... */
#include <evil.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int error)
{
    if (error < 0)
        fprintf(stderr, "sum: %s\n", via_strerror(error)), exit(1);
}

int main(int argc, char **argv)
{
    ViaChann nodes[64];
    long range[2], part, sum = 0;
    if (argc < 3 || argc > 66)
        return fprintf(stderr, "usage: sum work PORT | sum N NODE:PORT ...\n"), 2;
    if (!strcmp(argv[1], "work")) {
        check(via_open(nodes, "*", atoi(argv[2])));
        check(via_wait(nodes[0]));
        check(via_recv(nodes[0], range, sizeof range));
        for (long n = range[0]; n < range[1]; n++)
            sum += n;
        check(via_send(nodes[0], &sum, sizeof sum));
        return via_close(nodes[0]) != 0;
    }
    long last = atol(argv[1]), count = argc - 2;
    for (int i = 0; i < count; i++) {
        char *colon = strchr(argv[i + 2], ':');
        if (!colon)
            return fprintf(stderr, "sum: %s is no NODE:PORT\n", argv[i + 2]), 2;
        *colon = 0;
        check(via_open(&nodes[i], argv[i + 2], atoi(colon + 1)));
        check(via_connect(nodes[i]));
        range[0] = 1 + last * i / count, range[1] = 1 + last * (i + 1) / count;
        check(via_send(nodes[i], range, sizeof range));
    }
    for (int i = 0; i < count; i++) {
        check(via_recv(nodes[i], &part, sizeof part));
        check(via_close(nodes[i]));
        sum += part;
    }
    printf("%ld\n", sum);
    return 0;
}
