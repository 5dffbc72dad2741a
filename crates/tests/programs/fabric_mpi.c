/* What Open MPI does over the provider: collectives, one-sided access, and messages of random sizes between all, each byte checked. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "rank %d: %s\n", rank, #what); MPI_Abort(MPI_COMM_WORLD, 1); } } while (0)
#define LARGEST (300 * 1000)
#define IN_FLIGHT 16
#define SAID_EVERY 25

static int rank, size;

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static uint8_t byte(int from, int to, int number, int at)
{
    return (uint8_t)(from * 31 + to * 17 + number * 7 + at * 3 + (at >> 8));
}

/* Small ones mostly, some that are more than any window. */
static int length(int from, int to, int number)
{
    uint64_t state = 88172645463325252ull + (uint64_t)from * 1000003 + (uint64_t)to * 10007 + (uint64_t)number;
    for (int i = 0; i < 4; i++)
        next(&state);
    uint64_t kind = next(&state) % 100;
    return (int)(next(&state) % (kind < 70 ? 200 : kind < 95 ? 20000 : LARGEST));
}

static void collectives(void)
{
    for (int count = 1; count <= 1 << 16; count *= 16) {
        int *from = malloc(sizeof(int) * count), *to = malloc(sizeof(int) * count);
        for (int i = 0; i < count; i++)
            from[i] = rank + i;
        MPI_Allreduce(from, to, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++)
            CHECK(to[i] == size * (size - 1) / 2 + i * size);
        for (int i = 0; i < count; i++)
            from[i] = rank == size - 1 ? i * 3 : -1;
        MPI_Bcast(from, count, MPI_INT, size - 1, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++)
            CHECK(from[i] == i * 3);
        int *all = malloc(sizeof(int) * count * size), *back = malloc(sizeof(int) * count * size);
        for (int i = 0; i < count * size; i++)
            all[i] = rank * 1000003 + i;
        MPI_Alltoall(all, count, MPI_INT, back, count, MPI_INT, MPI_COMM_WORLD);
        for (int who = 0; who < size; who++)
            for (int i = 0; i < count; i++)
                CHECK(back[who * count + i] == who * 1000003 + rank * count + i);
        free(from), free(to), free(all), free(back);
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

static void one_sided(void)
{
    int *memory, count = 10000;
    MPI_Win window;
    MPI_Win_allocate(sizeof(int) * count * size, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    memset(memory, 0, sizeof(int) * count * size);
    MPI_Win_fence(0, window);
    int *mine = malloc(sizeof(int) * count);
    for (int to = 0; to < size; to++) {
        for (int i = 0; i < count; i++)
            mine[i] = rank * 100 + i;
        MPI_Put(mine, count, MPI_INT, to, rank * count, count, MPI_INT, window);
    }
    MPI_Win_fence(0, window);
    for (int who = 0; who < size; who++)
        for (int i = 0; i < count; i++)
            CHECK(memory[who * count + i] == who * 100 + i);
    MPI_Win_fence(0, window);
    int next_one = (rank + 1) % size;
    MPI_Get(mine, count, MPI_INT, next_one, rank * count, count, MPI_INT, window);
    int one = 1;
    MPI_Win_fence(0, window);
    for (int i = 0; i < count; i++)
        CHECK(mine[i] == rank * 100 + i);
    memory[0] = 0;
    MPI_Win_fence(0, window);
    for (int i = 0; i < 100; i++)
        MPI_Accumulate(&one, 1, MPI_INT, 0, 0, 1, MPI_INT, MPI_SUM, window);
    MPI_Win_fence(0, window);
    CHECK(rank != 0 || memory[0] == 100 * size);
    free(mine);
    MPI_Win_free(&window);
}

static void messages(int count)
{
    static uint8_t *out[IN_FLIGHT];
    MPI_Request sends[IN_FLIGHT];
    uint8_t *in = malloc(LARGEST);
    long received = 0;
    for (int i = 0; i < IN_FLIGHT; i++)
        out[i] = malloc(LARGEST), sends[i] = MPI_REQUEST_NULL;
    for (int number = 0; number < count; number++) {
        int slot = number % IN_FLIGHT, to = (rank + 1 + number % (size - 1)) % size;
        int from = (rank - 1 - number % (size - 1) + size) % size;
        MPI_Wait(&sends[slot], MPI_STATUS_IGNORE);
        int len = length(rank, to, number);
        for (int at = 0; at < len; at++)
            out[slot][at] = byte(rank, to, number, at);
        MPI_Isend(out[slot], len, MPI_BYTE, to, number % 1000, MPI_COMM_WORLD, &sends[slot]);
        MPI_Status status;
        int got, is_any = number % 3 == 0;
        MPI_Recv(in, LARGEST, MPI_BYTE, from, is_any ? MPI_ANY_TAG : number % 1000, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &got);
        CHECK(got == length(from, rank, number));
        for (int at = 0; at < got; at++)
            CHECK(in[at] == byte(from, rank, number, at));
        received++;
        if (rank == 0 && received % SAID_EVERY == 0)
            printf("%ld received here\n", received);
    }
    MPI_Waitall(IN_FLIGHT, sends, MPI_STATUSES_IGNORE);
    long all;
    MPI_Reduce(&received, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%ld messages\n", all);
}

int main(int argc, char **argv)
{
    /* Whoever waits for it is to see each line when it comes. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == 0) printf("begun\n");
    collectives();
    if (rank == 0) printf("collectives\n");
    one_sided();
    if (rank == 0) printf("one-sided\n");
    messages(argc > 1 ? atoi(argv[1]) : 2500);
    MPI_Finalize();
    return 0;
}
