/* Which mode runs. */
#include "load.h"

#include <string.h>

static int run(const struct options *options, int (*mode)(const struct options *options))
{
    if (mode == serve_run && options->each != EACH_BY_ONE_LOOP)
        return each_run(options);
    if (options->programs == 1)
        return mode(options);
    return mode == serve_run ? crowd_serve(options) : crowd_run(options, mode);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const struct options *options);
    } modes[] = {
        {"serve", serve_run}, {"rr", rr_run},     {"stream", stream_run}, {"cps", cps_run},
        {"idle", idle_run},   {"wake", wake_run}, {"null", null_run},     {"create", create_run},
        {"accept", accept_run}, {"file", file_run},
        {"transfer", transfer_run},           {"flood", flood_run},
        {"spin", spin_run},   {"eat", eat_run},
        {"udp-serve", udp_serve_run}, {"udp-flood", udp_flood_run}, {"udp-rr", udp_rr_run},
        {"udp-overload", udp_overload_run},
    };
    struct options options;
    options_parse(&options, argc, argv);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(modes[i].name, options.mode) == 0)
            return run(&options, modes[i].run);
    die("the mode %s has no program", options.mode);
}
