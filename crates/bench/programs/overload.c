/* Three times as many datagrams as a server can take. The rates up to its peak come first, as each server's is another. */
#include "load.h"
#include "udp.h"

/* At a rate, before it is measured, and while it is. */
#define STEP_WARM_NS UINT64_C(100000000)
#define STEP_NS UINT64_C(200000000)

enum { FIRST_RATE = 10000, LAST_RATE = 200000000, OVERLOAD = 3,
       /* Rates in a row that were not reached: one may be somebody else's. */
       STEPS_SHORT = 3 };

/* Of so many datagrams these came, and so many a second. */
struct step {
    uint64_t sent, came;
    double rate;
};

static struct step offer(struct sender *s, int counts, uint64_t rate, uint64_t ns)
{
    udp_set_rate(s, (uint32_t)rate);
    udp_send_until(s, now_ns() + STEP_WARM_NS);
    uint64_t came = udp_ask(counts).came, sent = udp_sent(), began = now_ns();
    report_begin(began);
    udp_send_until(s, began + ns);
    struct step step = {.sent = udp_sent() - sent, .came = udp_ask(counts).came - came};
    uint64_t ended = now_ns();
    report_end(ended);
    step.rate = (double)step.came * 1e9 / (double)(ended - began);
    return step;
}

/* The most that reaches the server while the rates grow until it, or the sender, does not follow. */
static double find_peak(struct sender *s, int counts)
{
    double peak = 0;
    int short_of = 0;
    for (uint64_t rate = FIRST_RATE; rate < LAST_RATE && short_of < STEPS_SHORT; rate += rate / 4) {
        struct step step = offer(s, counts, rate, STEP_NS);
        if (step.rate > peak)
            peak = step.rate;
        short_of = step.rate < 0.7 * (double)rate ? short_of + 1 : 0;
    }
    return peak;
}

int udp_overload_run(const struct options *options)
{
    int counts = udp_control(options);
    struct sender *s = udp_sender(options);
    double peak = find_peak(s, counts);
    struct step step = offer(s, counts, (uint64_t)(OVERLOAD * peak), seconds_ns(options->seconds));
    report_datagrams("udp-overload", step.sent, step.came, peak);
    return 0;
}
