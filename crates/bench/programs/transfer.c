/* A file to the server's sink, or from its source into a file, again and again, one transfer a connection: by reading and
 * sending in turn, by sendfile, or by OpenTOE's own calls, which the library given with --native has. */
#include "load.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

/* OpenTOE's own calls of a transfer; see include/toe.h. */
static struct {
    ssize_t (*directwrite)(int file, int fd, off_t offset, size_t length);
    ssize_t (*directread)(int fd, int file, off_t offset, size_t length);
    void *(*directwrite_begin)(int file, int fd, off_t offset, size_t length);
    void *(*directread_begin)(int fd, int file, off_t offset, size_t length);
    int (*transfer_end)(void *transfer, size_t *done);
} toe;

/* The socket calls: the C library's, or the same of OpenTOE. */
static struct {
    int (*socket)(int domain, int type, int protocol);
    int (*connect)(int fd, const struct sockaddr *address, socklen_t length);
    int (*setsockopt)(int fd, int level, int name, const void *value, socklen_t length);
    ssize_t (*send)(int fd, const void *from, size_t count, int flags);
    ssize_t (*recv)(int fd, void *to, size_t room, int flags);
    int (*shutdown)(int fd, int how);
    int (*close)(int fd);
} call;

static int file;
static size_t bytes, chunk;
static uint8_t *buffer;
static const uint8_t nothing[BUFFER];

static void find_calls(const char *library)
{
    void *in = library == NULL ? NULL : dlopen(library, RTLD_NOW);
    if (library != NULL && in == NULL)
        die("--native: %s", dlerror());
    const struct {
        void *at;
        const char *name;
        bool is_own;
    } wanted[] = {
        {&call.socket, "socket", false},         {&call.connect, "connect", false},
        {&call.setsockopt, "setsockopt", false}, {&call.send, "send", false},
        {&call.recv, "recv", false},             {&call.shutdown, "shutdown", false},
        {&call.close, "close", false},           {&toe.directwrite, "directwrite", true},
        {&toe.directread, "directread", true},   {&toe.directwrite_begin, "directwrite_begin", true},
        {&toe.directread_begin, "directread_begin", true},
        {&toe.transfer_end, "transfer_end", true},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", library == NULL ? "" : "toe_", wanted[i].name);
        void *found = library == NULL && wanted[i].is_own ? NULL : dlsym(library == NULL ? RTLD_DEFAULT : in, name);
        if (found == NULL && !(library == NULL && wanted[i].is_own))
            die("--native %s: it has no %s", library == NULL ? "" : library, name);
        memcpy(wanted[i].at, &found, sizeof found);
    }
}

static void all_sent(ssize_t sent)
{
    if (sent != (ssize_t)bytes)
        die_errno("%zd of %zu bytes were sent", sent, bytes);
}

static void all_came(ssize_t came)
{
    if (came != (ssize_t)bytes)
        die_errno("%zd of %zu bytes came", came, bytes);
}

static void send_whole(int fd, const uint8_t *from, size_t count)
{
    while (count > 0) {
        ssize_t sent = call.send(fd, from, count, MSG_NOSIGNAL);
        if (sent <= 0)
            die_errno("send");
        from += sent;
        count -= (size_t)sent;
    }
}

static void read_and_send(int fd)
{
    ssize_t n;
    while ((n = read(file, buffer, chunk)) > 0)
        send_whole(fd, buffer, (size_t)n);
    if (n < 0)
        die_errno("read");
}

static void receive_and_write(int fd)
{
    for (size_t came = 0; came < bytes;) {
        ssize_t n = call.recv(fd, buffer, chunk < bytes - came ? chunk : bytes - came, 0);
        if (n <= 0)
            die_errno("recv");
        for (ssize_t written = 0, w; written < n; written += w)
            if ((w = write(file, buffer + written, (size_t)(n - written))) <= 0)
                die_errno("write");
        came += (size_t)n;
    }
}

static void by_sendfile(int fd)
{
    off_t at = 0;
    while (at < (off_t)bytes)
        if (sendfile(fd, file, &at, bytes - (size_t)at) <= 0)
            die_errno("sendfile");
}

static void send_parts(int fd)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t n = toe.directwrite(file, fd, (off_t)at, chunk);
        if (n <= 0)
            die_errno("directwrite");
        at += (size_t)n;
    }
}

static void receive_parts(int fd)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t n = toe.directread(fd, file, (off_t)at, chunk < bytes - at ? chunk : bytes - at);
        if (n <= 0)
            die_errno("directread");
        at += (size_t)n;
    }
}

static void send_all(int fd)
{
    all_sent(toe.directwrite(file, fd, 0, bytes));
}

static void receive_all(int fd)
{
    all_came(toe.directread(fd, file, 0, bytes));
}

static size_t ended(void *transfer)
{
    size_t done = 0;
    if (transfer == NULL || toe.transfer_end(transfer, &done) < 0)
        die_errno("a transfer beside the program");
    return done;
}

static void send_beside(int fd)
{
    all_sent((ssize_t)ended(toe.directwrite_begin(file, fd, 0, bytes)));
}

static void receive_beside(int fd)
{
    all_came((ssize_t)ended(toe.directread_begin(fd, file, 0, bytes)));
}

static const struct method {
    const char *name;
    void (*send)(int fd);
    void (*receive)(int fd);
    bool is_native;
} methods[] = {
    {"rw", read_and_send, receive_and_write, false},
    {"sendfile", by_sendfile, NULL, false},
    {"part", send_parts, receive_parts, true},
    {"whole", send_all, receive_all, true},
    {"beside", send_beside, receive_beside, true},
};

static const struct method *method_of(const struct options *options)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        const struct method *method = &methods[i];
        if (strcmp(options->method, method->name) != 0)
            continue;
        if (method->is_native && options->native == NULL)
            die("--method %s is of OpenTOE's own calls: give the library with --native", method->name);
        if (options->receive && method->receive == NULL)
            die("--method %s only sends", method->name);
        return method;
    }
    die("--method %s: give rw, sendfile, part, whole or beside", options->method);
}

/* The bytes of a stream, from its first on; zeros where they are to come. */
static void make_file(const struct options *options)
{
    file = options->folder == NULL ? memfd_create("transfer", MFD_CLOEXEC)
                                   : open(options->folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0)
        die_errno("a file in %s", options->folder == NULL ? "memory" : options->folder);
    for (size_t at = 0; at < bytes;) {
        size_t part = bytes - at < BUFFER ? bytes - at : BUFFER;
        ssize_t n = write(file, options->receive ? nothing : payload_at(at), part);
        if (n <= 0)
            die_errno("write");
        at += (size_t)n;
    }
}

/* What came is what was sent; what was there before was wiped out, so that nothing passes for it. */
static void check_file(void)
{
    for (size_t at = 0; at < bytes;) {
        size_t part = bytes - at < BUFFER ? bytes - at : BUFFER;
        uint8_t have[BUFFER];
        if (pread(file, have, part, (off_t)at) != (ssize_t)part || memcmp(have, payload_at(at), part) != 0)
            die("what came is not what was sent, within %zu bytes from the %zu. on", part, at);
        at += part;
    }
}

static int connected(const struct options *options)
{
    int fd = call.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0)
        die_errno("socket");
    if (call.setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0)
        die_errno("TCP_NODELAY");
    if (call.connect(fd, (const struct sockaddr *)&options->connect, sizeof options->connect) < 0)
        die_errno("connect");
    return fd;
}

static uint64_t thread_us(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000u
        + (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* One transfer, from the open connection until all bytes are where they belong: at the sink, which says so, or in the file. */
static uint64_t transfer(const struct options *options, const struct method *method)
{
    int fd = connected(options);
    struct header header = {.magic = MAGIC, .mode = options->receive ? MODE_SOURCE : MODE_SINK};
    header.size = options->receive ? (uint32_t)bytes : 0;
    if (lseek(file, 0, SEEK_SET) < 0)
        die_errno("lseek");
    uint64_t began = now_ns();
    send_whole(fd, (const uint8_t *)&header, sizeof header);
    if (options->receive) {
        method->receive(fd);
    } else {
        method->send(fd);
        uint64_t count = 0;
        if (call.shutdown(fd, SHUT_WR) < 0)
            die_errno("shutdown");
        if (call.recv(fd, &count, sizeof count, MSG_WAITALL) != (ssize_t)sizeof count)
            die_errno("the sink does not say what came");
        if (count != bytes)
            die(count == SINK_ALTERED ? "what came is not what was sent" : "other than %zu bytes came", bytes);
    }
    uint64_t took = now_ns() - began;
    call.close(fd);
    return took;
}

int transfer_run(const struct options *options)
{
    const struct method *method = method_of(options);
    uint64_t began = now_ns();
    bytes = options->bytes;
    chunk = options->chunk;
    buffer = allocate(chunk, 1);
    payload_prepare(BUFFER);
    make_file(options);
    find_calls(options->native);
    while (now_ns() < began + seconds_ns(options->warmup))
        transfer(options, method);
    uint64_t now = now_ns(), end = now + seconds_ns(options->seconds), thread_began = thread_us();
    report_begin(now);
    uint32_t done = 0;
    for (; done < options->transfers || now < end; done++) {
        histogram_record(transfer(options, method));
        now = now_ns();
    }
    uint64_t thread = thread_us() - thread_began;
    report_end(now);
    /* A single one came to a file without it. */
    if (options->receive && (done > 1 || options->warmup > 0)) {
        if (ftruncate(file, 0) < 0)
            die_errno("ftruncate");
        transfer(options, method);
    }
    if (options->receive)
        check_file();
    report_transfers(bytes, thread);
    return 0;
}
