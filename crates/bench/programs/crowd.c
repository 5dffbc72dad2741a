/* Many programs in the place of one: more than there are processors, as on servers. Each has sockets of its own. */
#include "load.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a member did; its latencies follow. */
struct told {
    uint64_t began, ended, user, system;
    bool has_told;
};

static struct shared {
    pthread_barrier_t all_are_here;
} *shared;
/* Only in a member. */
static struct told *own;

static size_t told_size(void)
{
    return sizeof(struct told) + histogram_size();
}

static struct told *told_by(unsigned member)
{
    return (struct told *)((char *)(shared + 1) + member * told_size());
}

static void prepare(unsigned members)
{
    size_t size = sizeof *shared + members * told_size();
    shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die_errno("memory for %u programs", members);
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    errno = pthread_barrier_init(&shared->all_are_here, &attributes, members);
    if (errno != 0)
        die_errno("a barrier for %u programs", members);
}

/* A new process that ends with this one: true in it. */
static bool new_member(void)
{
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        die_errno("fork");
    if (pid > 0)
        return false;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        exit(EXIT_FAILURE);
    return true;
}

void crowd_gather(void)
{
    if (shared != NULL)
        pthread_barrier_wait(&shared->all_are_here);
}

bool crowd_tell(uint64_t began, uint64_t ended, uint64_t user, uint64_t system)
{
    if (own == NULL)
        return false;
    *own = (struct told){.began = began, .ended = ended, .user = user, .system = system, .has_told = true};
    return true;
}

static int be_member(const struct options *options, unsigned member, int (*run)(const struct options *options))
{
    struct options share = *options;
    share.connections /= options->programs;
    share.connections += member < options->connections % options->programs;
    own = told_by(member);
    histogram_use((struct histogram *)(own + 1));
    return run(&share);
}

int crowd_run(const struct options *options, int (*run)(const struct options *options))
{
    prepare(options->programs);
    for (unsigned member = 0; member < options->programs; member++)
        if (new_member())
            return be_member(options, member, run);
    for (unsigned member = 0; member < options->programs; member++) {
        int status;
        /* What went wrong it has said itself. */
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
            exit(EXIT_FAILURE);
    }
    uint64_t began = UINT64_MAX, ended = 0, user = 0, system = 0;
    for (unsigned member = 0; member < options->programs; member++) {
        const struct told *told = told_by(member);
        if (!told->has_told)
            die("one of %u programs told nothing", options->programs);
        histogram_add((const struct histogram *)(told + 1));
        began = told->began < began ? told->began : began;
        ended = told->ended > ended ? told->ended : ended;
        user += told->user;
        system += told->system;
    }
    report_set(began, ended, user, system);
    report_requests(options->mode, options->size);
    return 0;
}

int crowd_serve(const struct options *options)
{
    for (unsigned member = 0; member < options->programs; member++)
        if (new_member())
            return serve_run(options);
    signals_hold();
    int epoll = net_epoll();
    while (!signals_end()) {
        struct epoll_event events[EVENTS];
        net_wait_interruptibly(epoll, events);
    }
    return 0;
}
