/* toe-load: load on plain sockets, and the server that answers it. The same program runs on the kernel's stack and,
 * unmodified, on OpenTOE. What the files share; each subject is named after its file. */
#ifndef TOE_LOAD_H
#define TOE_LOAD_H

#define _GNU_SOURCE
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/types.h>

enum {
    /* The most that one read or one write moves; also the longest message. */
    BUFFER = 64 * 1024,
    /* What one epoll_wait may report. */
    EVENTS = 256,
    /* Writes, or reads, of one stream before the other streams have their turn. */
    STREAM_TURN = 16,
    /* The bytes of a message that carry its counter. */
    COUNTER = 8,
    WRITE_SIZE_MAX = 1024 * 1024,
};

/* How long a client waits for what must come (a handshake, the last replies) before it says that it is lost. */
#define PATIENCE_NS UINT64_C(20000000000)
/* The same for the sinks' answers: the path's buffers may hold much, and the path may be slow. */
#define STREAM_PATIENCE_NS UINT64_C(60000000000)

/* The first bytes on each connection, from the client, little endian. */
struct header {
    uint32_t magic;
    uint8_t mode;
    uint8_t pad[3];
    /* Of a message; for a source, how many bytes it is to send (0: without an end). */
    uint32_t size;
    uint32_t reserved;
};

enum { MAGIC = 0x4c454f54 /* "TOEL" */, MODE_RR = 1, MODE_SINK = 2, MODE_SOURCE = 3 };

_Static_assert(sizeof(struct header) == 16, "the header is 16 bytes on the wire");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "integers go to the wire as they lie in memory");

/* What a sink answers instead of a count when what it received is not what was sent. */
#define SINK_ALTERED UINT64_MAX

/* options.c: the command line. */
/* What serves a connection: the one loop that serves all, or a thread or a process of its own. */
enum each { EACH_BY_ONE_LOOP, EACH_THREAD, EACH_PROCESS };

/* What is sent to the same host beside a flow of datagrams. */
enum beside { BESIDE_NOTHING, BESIDE_FRAGMENTS, BESIDE_PORTS, BESIDE_SOCKET };

struct options {
    const char *mode;
    struct sockaddr_in listen, connect, source;
    bool has_source, receive;
    uint32_t size, depth, connections, flows, interval_us, write_size, rate, programs, batch, segments, work_us, victim;
    /* Of transfers: bytes of the file, and of a call. */
    uint32_t bytes, chunk, transfers;
    const char *method, *native, *folder;
    enum each each;
    enum beside beside;
    double seconds, warmup, skip;
};

void options_parse(struct options *options, int argc, char **argv);

/* system.c: time, errors, limits, signals. */
uint64_t now_ns(void);
uint64_t seconds_ns(double seconds);
/* Says on standard error what failed, and ends with status 1. `die_errno` adds the text of errno. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void die_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *allocate(size_t count, size_t size);
void raise_descriptor_limit(void);
/* User and system time of this process so far, in microseconds. */
void cpu_time_us(uint64_t *user, uint64_t *system);
/* From here on SIGTERM, SIGINT and SIGUSR1 arrive only within `net_wait_interruptibly`. */
void signals_hold(void);
bool signals_end(void);
/* Whether SIGUSR1 came since the last call. */
bool signals_take_report(void);

/* net.c: sockets and readiness. */
/* A new listener, or a failure that ends the program. With `shared` other listeners may have the same port. */
int net_listen(const struct sockaddr_in *address, bool shared);
void net_no_delay(int fd);
/* Begins a connection; `*connected` says whether it is complete already. */
int net_connect(const struct options *options, bool *connected);
/* After the socket became writable: ends the program when the connection failed; false when it is not complete yet. */
bool net_connected(int fd, const struct options *options);
/* Opens `count` connections, some at a time, and waits until all are complete. */
void net_open_all(const struct options *options, int *fds, uint32_t count);
int net_epoll(void);
void net_watch(int epoll, int operation, int fd, uint32_t events, uint64_t data);
/* Until something is ready or the time `until` (by now_ns) is reached. */
int net_wait(int epoll, struct epoll_event *events, uint64_t until);
/* Until something is ready or a signal came (then 0). */
int net_wait_interruptibly(int epoll, struct epoll_event *events);
/* As send(2) and recv(2), without EINTR. -1 with EAGAIN stays the caller's. */
ssize_t net_send(int fd, const void *from, size_t count);
ssize_t net_receive(int fd, void *to, size_t room);
bool net_is_blocked(void);

/* payload.c: what streams carry. The byte at each offset of a stream is known to both ends. */
void payload_prepare(size_t longest);
const uint8_t *payload_at(uint64_t offset);
/* Whether `bytes`, received at `offset`, are those that were sent there; looks at both ends of them only. */
bool payload_is_right(const uint8_t *bytes, size_t count, uint64_t offset);

/* histogram.c: latencies, in nanoseconds. */
struct histogram;
size_t histogram_size(void);
/* From now on latencies go to `place`, zeroed memory of `histogram_size` bytes. */
void histogram_use(struct histogram *place);
/* Adds those of another. */
void histogram_add(const struct histogram *other);
/* A request has had no reply for so long: it counts as the longest wait, and not as a reply. */
void histogram_still_waits(uint64_t ns);
void histogram_record(uint64_t ns);
uint64_t histogram_count(void);
/* The value that the share `q` (0 to 1) of all values does not exceed. */
double histogram_quantile(double q);
double histogram_mean(void);
uint64_t histogram_min(void);
uint64_t histogram_max(void);

/* report.c: the measured interval and the JSON that tells of it. */
/* Starts the clocks. */
void report_begin(uint64_t now);
/* Stops the clocks. */
void report_end(uint64_t now);
/* The clocks of a crowd. */
void report_set(uint64_t begin, uint64_t end, uint64_t user, uint64_t system);
/* Requests of `size` bytes each, with their latencies. */
void report_requests(const char *mode, uint32_t size);
/* The same for connections that were opened, within `opening` ns, before the interval. */
void report_idle(uint32_t connections, uint32_t size, uint64_t opening);
void report_stream(uint64_t bytes);
/* Transfers of so many bytes, with their times, and the processor time of the thread that asked for them. */
void report_transfers(uint64_t size, uint64_t thread_us);
/* SYNs that were sent. */
void report_flood(uint64_t sent);
/* Datagrams that were sent, and those that came. `peak`: the most that came a second at any lower rate, or 0. */
void report_datagrams(const char *mode, uint64_t sent, uint64_t came, double peak);
/* The server's line: its own time since it began. */
void report_server(uint64_t requests);

/* handler.c: what the server does for a request, without any socket. */
/* Answers the complete messages among `count` bytes; returns how many bytes these are. */
size_t handler_answer(const uint8_t *requests, size_t count, uint32_t size, uint8_t *replies, uint64_t *answered);

/* exchange.c: the client's end of a connection in mode rr. */
struct exchange {
    int fd;
    /* Bytes of the header that have not left. */
    uint32_t header_left;
    /* Requests that have not left wholly, and the bytes of the first of them that have. */
    uint32_t queued, sent_part;
    /* Bytes of the next reply that have come. */
    uint32_t have;
    uint64_t next_request, next_reply;
    /* Whether EPOLLOUT is asked for. */
    bool wants_out;
};

void exchange_prepare(uint32_t size);
/* `lane` is in the messages' counters, so that a reply on the wrong connection is noticed. */
void exchange_start(struct exchange *x, int fd, uint32_t lane);
/* Sends what is queued, as far as it goes; true when all has left. */
bool exchange_send(struct exchange *x);
/* Reads once; returns how many replies are complete with it. */
uint32_t exchange_receive(struct exchange *x);
/* Sends, and asks epoll for EPOLLOUT while something is left. `data` is the connection's word in that epoll. */
void exchange_push(struct exchange *x, int epoll, uint64_t data);

/* crowd.c: many programs in the place of one. */
/* Runs `run` in `options->programs` processes that share the connections among them, and reports what all did together. */
int crowd_run(const struct options *options, int (*run)(const struct options *options));
/* The same with servers, which share the listener's port; they end with this process. */
int crowd_serve(const struct options *options);
/* Waits until all of the crowd, if this is one, are here. */
void crowd_gather(void);
/* In one of a crowd: what it did goes to the process that reports. False where the caller is to report itself. */
bool crowd_tell(uint64_t began, uint64_t ended, uint64_t user, uint64_t system);

/* One file each. */
int serve_run(const struct options *options);
/* each.c: a thread or a process for each connection. */
int each_run(const struct options *options);
int rr_run(const struct options *options);
int stream_run(const struct options *options);
int cps_run(const struct options *options);
int idle_run(const struct options *options);
int wake_run(const struct options *options);
int null_run(const struct options *options);
/* calls.c */
int create_run(const struct options *options);
int accept_run(const struct options *options);
int file_run(const struct options *options);
/* transfer.c */
int transfer_run(const struct options *options);
/* neighbours.c */
int spin_run(const struct options *options);
int eat_run(const struct options *options);
/* flood.c */
int flood_run(const struct options *options);
/* udp.c */
int udp_serve_run(const struct options *options);
int udp_flood_run(const struct options *options);
int udp_rr_run(const struct options *options);
/* overload.c */
int udp_overload_run(const struct options *options);

#endif
