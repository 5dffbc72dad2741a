/* A file from one program to another with EVIL. One side: copy PORT > FILE; the other: copy NODE PORT < FILE. */
#include <evil.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static char part[1 << 20];
    ViaChann vc;
    int sends = argc > 2, error, size;
    if (argc < 2)
        return fprintf(stderr, "usage: copy [NODE] PORT\n"), 2;
    if ((error = via_open(&vc, sends ? argv[1] : "*", atoi(argv[argc - 1]))) || (error = sends ? via_connect(vc) : via_wait(vc)))
        return fprintf(stderr, "copy: %s\n", via_strerror(error)), 1;
    while (sends && (size = read(0, part, sizeof part)) > 0)
        if ((error = via_send(vc, part, size)))
            return fprintf(stderr, "copy: %s\n", via_strerror(error)), 1;
    if (sends)
        return via_send(vc, part, 0) || via_close(vc); /* a message of nothing: the end of the file */
    while ((size = via_recv(vc, part, sizeof part)) > 0)
        if (fwrite(part, 1, size, stdout) != (size_t)size)
            return perror("copy"), 1;
    if (size < 0)
        return fprintf(stderr, "copy: %s\n", via_strerror(size)), 1;
    return fflush(stdout) || via_close(vc);
}
