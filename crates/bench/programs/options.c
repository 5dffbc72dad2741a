/* The command line. */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "toe-load: load on plain sockets, and the server that answers it\n"
    "\n"
    "  toe-load serve  --listen IP:PORT [--programs 1] [--each thread|process]\n"
    "      answers all the clients below until SIGTERM; says \"ready\" when it listens. SIGUSR1, and the end, print\n"
    "      {\"requests\":..,\"user_us\":..,\"system_us\":..} since the start.\n"
    "      PROGRAMS processes listen at the same port. With --each a thread or a process serves each connection (rr and cps\n"
    "      alone), and nothing is printed at the end.\n"
    "  toe-load rr     --connect IP:PORT [--size 64] [--depth 1] [--connections 1] [--programs 1] --seconds S\n"
    "      request and reply; each connection keeps DEPTH requests outstanding. PROGRAMS processes share the connections;\n"
    "      the longest latency counts what still waited at the end.\n"
    "  toe-load stream --connect IP:PORT [--flows 1] [--direction send|receive] [--write-size 65536] --seconds S\n"
    "      bulk; counts what the receiving end got. A warm-up runs on connections of its own. --skip S leaves the first\n"
    "      seconds of the same connections out of the count (receive only).\n"
    "  toe-load cps    --connect IP:PORT [--size 64] [--connections 64] [--programs 1] --seconds S\n"
    "      connections a second: open, one request, its reply, close; CONNECTIONS at once, shared by PROGRAMS processes\n"
    "  toe-load idle   --connect IP:PORT --connections N [--size 1024]\n"
    "      opens N, asks once on each, says {\"ready\":true,..}, rests until the standard input ends or SIGTERM.\n"
    "      seconds and CPU time are those of the rest; rate is connections opened and answered a second.\n"
    "  toe-load wake   --connect IP:PORT [--size 64] [--interval-us 5000] --seconds S\n"
    "      a pause before each request, so that both sides sleep when it comes\n"
    "  toe-load create --connect IP:PORT --seconds S\n"
    "      socket and close, in batches; latencies are of one such pair\n"
    "  toe-load accept --connect IP:PORT --seconds S\n"
    "      accept and close of connections that wait, at a listener of its own at IP; latencies as above\n"
    "  toe-load file   --connect IP:PORT --seconds S\n"
    "      read of a byte of /dev/zero: a call that has nothing to do with sockets\n"
    "  toe-load transfer --connect IP:PORT --method rw|sendfile|part|whole|beside [--bytes 1073741824] [--chunk 65536]\n"
    "      [--direction send|receive] [--transfers 1] [--folder PATH] [--native LIBTOE] --seconds S\n"
    "      a file to the server, or from it, a connection a transfer, TRANSFERS at least. The file is in memory, or in FOLDER,\n"
    "      and the same each time. rw: read and send, or recv and write, CHUNK at a time; part: OpenTOE's directwrite and\n"
    "      directread, CHUNK a call; whole: all in one; beside: by its ..._begin. With --native all calls are OpenTOE's own.\n"
    "      Latencies are of a transfer on an open connection; thread_us is the\n"
    "      processor time of the thread that asked for them.\n"
    "  toe-load udp-serve --listen IP:PORT [--batch 1] [--segments 1] [--work-us U] [--victim 1]\n"
    "      receives datagrams, BATCH at most in a call (recvfrom; recvmmsg; with SEGMENTS recvmsg and UDP_GRO), answers those of udp-rr and\n"
    "      counts all, U microseconds for each; ends by a signal. With --victim it has another socket, 100 ports above, that nobody reads.\n"
    "  toe-load udp-flood --connect IP:PORT [--size 64] [--batch 1] [--segments 1] [--rate R] [--direction send|receive] --seconds S\n"
    "      datagrams as fast as they go, or R a second (sendto; sendmmsg; SEGMENTS of them in a call by UDP_SEGMENT); the rate is of those\n"
    "      that came. Who receives has the server send. --beside fragments|ports|socket: 100,000 packets a second go to the same host beside\n"
    "      it, pieces that are never complete, or from addresses that do not exist to ports where nobody is, or to the victim; for\n"
    "      namespaces of a test alone, needs root\n"
    "  toe-load udp-overload --connect IP:PORT [--size 64] [--batch 1] --seconds S\n"
    "      finds the rate that the server takes, and sends three times as many\n"
    "  toe-load udp-rr --connect IP:PORT [--size 64] --seconds S\n"
    "      request and reply by datagrams, one at a time\n"
    "  toe-load flood  --connect IP:PORT [--rate 100000] --seconds S\n"
    "      SYNs a second from addresses that do not exist; for namespaces of a test alone, needs root\n"
    "  toe-load spin\n"
    "      a loop that does nothing, until it is ended: another program on the same processors\n"
    "  toe-load eat\n"
    "      the same, but that it copies 64 MiB again and again: it takes the memory's bandwidth, too\n"
    "  toe-load null   [--size 64] --seconds S\n"
    "      the server's work for a request without any socket\n"
    "\n"
    "All clients: --warmup S (not measured; default 0; not for idle, flood, null, spin\n"
    "and eat), --source IP (not for flood, null, spin and eat).\n"
    "Sizes are bytes, at most 65536 (--write-size: 1048576). Every reply is checked. The result is one JSON object;\n"
    "on any error there is a message and status 1. On OpenTOE: `toe run -- toe-load ...`, both for server and client.\n";

enum kind { ADDRESS_PORT, ADDRESS, NUMBER, SECONDS, DIRECTION, EACH, BESIDE, TEXT };

enum { SERVE = 1, RR = 2, STREAM = 4, CPS = 8, IDLE = 16, WAKE = 32, NULL_MODE = 64, CALLS = 128,
       FLOOD = 256, NEIGHBOUR = 512, UDP_SERVE = 1024, UDP_FLOOD = 2048, UDP_RR = 4096, UDP_OVERLOAD = 8192,
       TRANSFER = 16384, CONNECTS = RR | STREAM | CPS | IDLE | WAKE | CALLS,
       UDP = UDP_FLOOD | UDP_RR | UDP_OVERLOAD };

static const struct {
    const char *name;
    unsigned bit;
    /* Options without which the mode does not start. */
    const char *needs[3];
} modes[] = {
    {"serve", SERVE, {"listen"}},
    {"rr", RR, {"connect", "seconds"}},
    {"stream", STREAM, {"connect", "seconds"}},
    {"cps", CPS, {"connect", "seconds"}},
    {"idle", IDLE, {"connect", "connections"}},
    {"wake", WAKE, {"connect", "seconds"}},
    {"create", CALLS, {"connect", "seconds"}},
    {"accept", CALLS, {"connect", "seconds"}},
    {"file", CALLS, {"connect", "seconds"}},
    {"transfer", TRANSFER, {"connect", "seconds", "method"}},
    {"flood", FLOOD, {"connect", "seconds"}},
    {"udp-serve", UDP_SERVE, {"listen"}},
    {"udp-flood", UDP_FLOOD, {"connect", "seconds"}},
    {"udp-rr", UDP_RR, {"connect", "seconds"}},
    {"udp-overload", UDP_OVERLOAD, {"connect", "seconds"}},
    {"null", NULL_MODE, {"seconds"}},
    {"spin", NEIGHBOUR, {NULL}},
    {"eat", NEIGHBOUR, {NULL}},
};

static const struct option {
    const char *name;
    enum kind kind;
    size_t at;
    unsigned modes;
    uint32_t most;
} table[] = {
    {"listen", ADDRESS_PORT, offsetof(struct options, listen), SERVE | UDP_SERVE, 0},
    {"connect", ADDRESS_PORT, offsetof(struct options, connect), CONNECTS | TRANSFER | FLOOD | UDP, 0},
    {"source", ADDRESS, offsetof(struct options, source), CONNECTS, 0},
    /* The server takes the size that the client says; it accepts the option so that both can be given the same. */
    {"size", NUMBER, offsetof(struct options, size), SERVE | RR | CPS | IDLE | WAKE | NULL_MODE | UDP,
     BUFFER},
    {"batch", NUMBER, offsetof(struct options, batch), UDP_SERVE | UDP_FLOOD | UDP_OVERLOAD, 64},
    {"segments", NUMBER, offsetof(struct options, segments), UDP_SERVE | UDP_FLOOD, 64},
    {"beside", BESIDE, offsetof(struct options, beside), UDP_FLOOD, 0},
    {"victim", NUMBER, offsetof(struct options, victim), UDP_SERVE, 1},
    {"work-us", NUMBER, offsetof(struct options, work_us), UDP_SERVE, 1000000},
    {"depth", NUMBER, offsetof(struct options, depth), RR, 65536},
    {"connections", NUMBER, offsetof(struct options, connections), RR | CPS | IDLE, 1000000},
    {"flows", NUMBER, offsetof(struct options, flows), STREAM, 1000000},
    {"interval-us", NUMBER, offsetof(struct options, interval_us), WAKE, 1000000000},
    {"write-size", NUMBER, offsetof(struct options, write_size), STREAM, WRITE_SIZE_MAX},
    {"rate", NUMBER, offsetof(struct options, rate), FLOOD | UDP_FLOOD, 10000000},
    {"seconds", SECONDS, offsetof(struct options, seconds),
     RR | STREAM | CPS | WAKE | NULL_MODE | CALLS | FLOOD | UDP | TRANSFER, 0},
    {"programs", NUMBER, offsetof(struct options, programs), SERVE | RR | CPS, 1024},
    {"each", EACH, offsetof(struct options, each), SERVE, 0},
    {"skip", SECONDS, offsetof(struct options, skip), STREAM, 0},
    {"warmup", SECONDS, offsetof(struct options, warmup),
     RR | STREAM | CPS | WAKE | CALLS | UDP | TRANSFER, 0},
    {"direction", DIRECTION, offsetof(struct options, receive), STREAM | UDP_FLOOD | TRANSFER, 0},
    {"bytes", NUMBER, offsetof(struct options, bytes), TRANSFER, UINT32_MAX},
    {"chunk", NUMBER, offsetof(struct options, chunk), TRANSFER, 1 << 30},
    {"transfers", NUMBER, offsetof(struct options, transfers), TRANSFER, 1000000},
    {"method", TEXT, offsetof(struct options, method), TRANSFER, 0},
    {"native", TEXT, offsetof(struct options, native), TRANSFER, 0},
    {"folder", TEXT, offsetof(struct options, folder), TRANSFER, 0},
};

enum { OPTIONS = sizeof table / sizeof *table, MODES = sizeof modes / sizeof *modes };

static void read_address(const char *name, const char *text, bool with_port, struct sockaddr_in *address)
{
    char host[INET_ADDRSTRLEN] = "";
    const char *colon = strrchr(text, ':');
    size_t length = colon != NULL && with_port ? (size_t)(colon - text) : strlen(text);
    if (length < sizeof host)
        memcpy(host, text, length);
    address->sin_family = AF_INET;
    bool is_right = inet_pton(AF_INET, host, &address->sin_addr) == 1 && (colon != NULL) == with_port;
    if (is_right && with_port) {
        char *end;
        unsigned long port = strtoul(colon + 1, &end, 10);
        is_right = colon[1] != '\0' && *end == '\0' && port >= 1 && port <= 65535;
        address->sin_port = htons((uint16_t)port);
    }
    if (!is_right)
        die("--%s %s: give %s", name, text, with_port ? "IP:PORT, such as 127.0.0.1:7000" : "an IPv4 address");
}

static void read_number(const struct option *option, const char *text, uint32_t *number)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < 1 || value > option->most)
        die("--%s %s: give a number from 1 to %u", option->name, text, option->most);
    *number = (uint32_t)value;
}

static void read_seconds(const char *name, const char *text, double *seconds)
{
    char *end;
    *seconds = strtod(text, &end);
    if (end == text || *end != '\0' || !(*seconds >= 0 && *seconds <= 86400))
        die("--%s %s: give seconds, such as 5 or 0.5", name, text);
}

static void read_value(struct options *options, const struct option *option, const char *text)
{
    void *at = (char *)options + option->at;
    switch (option->kind) {
    case ADDRESS_PORT:
    case ADDRESS:
        read_address(option->name, text, option->kind == ADDRESS_PORT, at);
        options->has_source |= option->kind == ADDRESS;
        break;
    case NUMBER:
        read_number(option, text, at);
        break;
    case SECONDS:
        read_seconds(option->name, text, at);
        break;
    case TEXT:
        memcpy(at, &text, sizeof text);
        break;
    case DIRECTION:
        options->receive = strcmp(text, "receive") == 0;
        if (!options->receive && strcmp(text, "send") != 0)
            die("--direction %s: give send or receive", text);
        break;
    case BESIDE:
        options->beside = strcmp(text, "fragments") == 0 ? BESIDE_FRAGMENTS
            : strcmp(text, "ports") == 0                 ? BESIDE_PORTS
                                                         : BESIDE_SOCKET;
        if (options->beside == BESIDE_SOCKET && strcmp(text, "socket") != 0)
            die("--beside %s: give fragments, ports or socket", text);
        break;
    case EACH:
        options->each = strcmp(text, "thread") == 0 ? EACH_THREAD : EACH_PROCESS;
        if (options->each == EACH_PROCESS && strcmp(text, "process") != 0)
            die("--each %s: give thread or process", text);
        break;
    }
}

/* The option called `name` in this mode. */
static size_t find(const char *name, size_t length, unsigned mode)
{
    for (size_t i = 0; i < OPTIONS; i++)
        if (strlen(table[i].name) == length && strncmp(table[i].name, name, length) == 0 && (table[i].modes & mode))
            return i;
    die("--%.*s is no option of this mode: see toe-load --help", (int)length, name);
}

static size_t find_mode(const char *name)
{
    for (size_t i = 0; i < MODES; i++)
        if (strcmp(modes[i].name, name) == 0)
            return i;
    die("there is no mode %s: see toe-load --help", name);
}

void options_parse(struct options *options, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            exit(EXIT_SUCCESS);
        }
    if (argc < 2)
        die("no mode is given: see toe-load --help");
    size_t mode = find_mode(argv[1]);
    *options = (struct options){.mode = modes[mode].name, .size = modes[mode].bit == IDLE ? 1024 : 64, .depth = 1};
    options->connections = modes[mode].bit == CPS ? 64 : 1;
    options->flows = 1;
    options->interval_us = 5000;
    options->write_size = BUFFER;
    options->rate = modes[mode].bit == FLOOD ? 100000 : 0;
    options->segments = 1;
    options->programs = 1;
    options->batch = 1;
    options->bytes = 1 << 30;
    options->chunk = BUFFER;
    options->transfers = 1;

    bool given[OPTIONS] = {false};
    for (int i = 2; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0)
            die("%s is no option: see toe-load --help", argv[i]);
        const char *name = argv[i] + 2, *equals = strchr(name, '=');
        size_t found = find(name, equals != NULL ? (size_t)(equals - name) : strlen(name), modes[mode].bit);
        if (equals == NULL && i + 1 == argc)
            die("--%s lacks its value", name);
        read_value(options, &table[found], equals != NULL ? equals + 1 : argv[++i]);
        given[found] = true;
    }
    for (size_t i = 0; i < 3 && modes[mode].needs[i] != NULL; i++) {
        const char *need = modes[mode].needs[i];
        if (!given[find(need, strlen(need), modes[mode].bit)])
            die("%s needs --%s: see toe-load --help", options->mode, need);
    }
    if (options->programs > 1 && options->each != EACH_BY_ONE_LOOP)
        die("--each serves all connections in one program: leave out --programs");
    if ((modes[mode].bit & (RR | CPS)) != 0 && options->connections < options->programs)
        die("--programs %u: give each a connection with --connections", options->programs);
    if (options->segments > 1 && (options->batch > 1 || (uint64_t)options->size * options->segments > 65507))
        die("--segments %u: all in one datagram of at most 65507 bytes, and no --batch", options->segments);
    if (options->skip > 0 && !options->receive)
        die("--skip counts at the receiving end: add --direction receive");
}
