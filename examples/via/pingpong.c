/* Ping-pong with EVIL. One side: pingpong wait PORT; the other: pingpong NODE PORT [ROUNDS]. */
#include <evil.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (argc < 3)
        return fprintf(stderr, "usage: pingpong wait|NODE PORT [ROUNDS]\n"), 2;
    int waits = !strcmp(argv[1], "wait"), rounds = argc > 3 ? atoi(argv[3]) : 10, error, size;
    char ball[64];
    ViaChann vc;
    if ((error = via_open(&vc, waits ? "*" : argv[1], atoi(argv[2]))) || (error = waits ? via_wait(vc) : via_connect(vc)))
        return fprintf(stderr, "pingpong: %s\n", via_strerror(error)), 1;
    if (waits)
        while ((size = via_recv(vc, ball, sizeof ball)) >= 0 && !via_send(vc, ball, size))
            ;
    for (int round = 0; !waits && round < rounds; round++) {
        size = snprintf(ball, sizeof ball, "ball %d", round);
        if ((error = via_send(vc, ball, size)) || (error = via_recv(vc, ball, sizeof ball)) != size)
            return fprintf(stderr, "pingpong: %s\n", via_strerror(error)), 1;
    }
    printf("%s\n", waits ? "served" : ball);
    return via_close(vc) != 0;
}
