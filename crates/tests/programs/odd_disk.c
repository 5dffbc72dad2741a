/* A file system that is slow, or fails, in ways that are chosen: what stands in for a disk that one cannot have in a test. By the kernel's
 * FUSE protocol, without a library; needs root.
 *
 *     odd_disk FOLDER SIZE DELAY_US
 *
 * Mounts itself at FOLDER, says "mounted", and answers one request after another until it is unmounted. Its files have SIZE bytes: number n
 * (from 0 on) is 1 + n * 7 % 251, so that none is zero.
 *
 *     plain    each read takes DELAY_US
 *     short    a read gives a third of what was asked for
 *     failing  a read past the middle fails with EIO
 *     full     takes SIZE / 2 bytes, then says EDQUOT
 *     broken   takes SIZE / 2 bytes, then says EIO
 *     stuck    opened, it answers neither reads nor closes before somebody has changed its mode
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { READ_MAX = 128 << 10, BUFFER = READ_MAX + 4096 };
enum { PLAIN = 2, SHORT, FAILING, FULL, BROKEN, STUCK };
static const char *const names[] = {NULL, NULL, "plain", "short", "failing", "full", "broken", "stuck"};

static int device;
static uint64_t size;
static struct timespec delay;
static unsigned char request[BUFFER], bytes[READ_MAX], written[8 << 20];

static void answer(uint64_t unique, int error, const void *body, size_t length) {
    static struct {
        struct fuse_out_header head;
        unsigned char body[READ_MAX];
    } reply;
    reply.head = (struct fuse_out_header){.len = (uint32_t)(sizeof reply.head + length), .error = -error, .unique = unique};
    memcpy(reply.body, body, length);
    /* ENOENT: whoever asked is gone. */
    if (write(device, &reply, reply.head.len) < 0 && errno != ENOENT) {
        perror("answer");
        exit(1);
    }
}

static struct fuse_attr attributes(uint64_t node) {
    int is_folder = node == FUSE_ROOT_ID, is_sink = node == FULL || node == BROKEN;
    return (struct fuse_attr){.ino = node,
                              .size = is_folder || is_sink ? 0 : size,
                              .mode = is_folder ? S_IFDIR | 0755 : S_IFREG | 0666,
                              .nlink = 1,
                              .blksize = 4096};
}

static void look_up(uint64_t unique, const char *name) {
    struct fuse_entry_out entry = {0};
    for (uint64_t node = PLAIN; node <= STUCK; node++)
        if (strcmp(name, names[node]) == 0)
            entry = (struct fuse_entry_out){.nodeid = node, .attr_valid = 3600, .entry_valid = 3600, .attr = attributes(node)};
    answer(unique, entry.nodeid == 0 ? ENOENT : 0, &entry, entry.nodeid == 0 ? 0 : sizeof entry);
}

static void give(const struct fuse_in_header *head, const struct fuse_read_in *read) {
    uint64_t end = head->nodeid == FAILING && read->offset < size / 2 ? size / 2 : size;
    uint64_t there = read->offset < end ? end - read->offset : 0;
    size_t length = read->size < there ? read->size : (size_t)there;
    if (head->nodeid == FAILING && read->offset >= size / 2) {
        answer(head->unique, EIO, NULL, 0);
        return;
    }
    if (head->nodeid == SHORT && length > 2)
        length /= 3;
    if (head->nodeid == PLAIN)
        nanosleep(&delay, NULL);
    for (size_t i = 0; i < length; i++)
        bytes[i] = (unsigned char)(1 + (read->offset + i) * 7 % 251);
    answer(head->unique, 0, bytes, length);
}

static void take(const struct fuse_in_header *head, const struct fuse_write_in *in) {
    int error = head->nodeid == FULL ? EDQUOT : EIO;
    uint64_t most = size / 2 < sizeof written ? size / 2 : sizeof written;
    uint64_t room = in->offset < most ? most - in->offset : 0;
    struct fuse_write_out out = {.size = in->size < room ? in->size : (uint32_t)room};
    memcpy(written + in->offset * (room > 0), in + 1, out.size);
    answer(head->unique, out.size == 0 ? error : 0, &out, out.size == 0 ? 0 : sizeof out);
}

/* Requests of "stuck" that wait, unless its mode was changed since it was opened. */
enum { WAIT_MAX = 64 };
static struct {
    uint64_t unique;
    int is_read;
    size_t length;
} waiting[WAIT_MAX];
static int waiting_count, is_free;

static void answer_stuck(uint64_t unique, int is_read, size_t length) {
    memset(bytes, 's', sizeof bytes);
    answer(unique, 0, bytes, is_read ? length : 0);
}

/* Whether it was one of these. */
static int stick(const struct fuse_in_header *head, const void *body) {
    int is_read = head->opcode == FUSE_READ;
    if (head->nodeid == STUCK && head->opcode == FUSE_OPEN)
        is_free = 0;
    if (head->nodeid != STUCK || (!is_read && head->opcode != FUSE_FLUSH && head->opcode != FUSE_SETATTR))
        return 0;
    if (head->opcode == FUSE_SETATTR) {
        for (is_free = 1; waiting_count > 0;) {
            waiting_count--;
            answer_stuck(waiting[waiting_count].unique, waiting[waiting_count].is_read, waiting[waiting_count].length);
        }
        return 0;
    }
    size_t length = is_read ? ((const struct fuse_read_in *)body)->size : 0;
    if (is_free || waiting_count == WAIT_MAX) {
        answer_stuck(head->unique, is_read, length);
    } else {
        waiting[waiting_count].unique = head->unique;
        waiting[waiting_count].is_read = is_read;
        waiting[waiting_count++].length = length;
    }
    return 1;
}

static void serve(const struct fuse_in_header *head, const void *body) {
    if (stick(head, body))
        return;
    switch (head->opcode) {
    case FUSE_INIT: {
        const struct fuse_init_in *in = body;
        struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = in->minor, .max_readahead = 0, .max_write = READ_MAX};
        answer(head->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_LOOKUP:
        look_up(head->unique, body);
        break;
    case FUSE_GETATTR: {
        struct fuse_attr_out out = {.attr_valid = 3600, .attr = attributes(head->nodeid)};
        answer(head->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_OPEN: {
        /* Each read and write comes here as it was asked for, and no page is kept. */
        struct fuse_open_out out = {.open_flags = FOPEN_DIRECT_IO};
        answer(head->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_READ:
        if (head->nodeid == FULL || head->nodeid == BROKEN) {
            const struct fuse_read_in *in = body;
            uint64_t most = size / 2, there = in->offset < most ? most - in->offset : 0;
            answer(head->unique, 0, written + in->offset * (there > 0), in->size < there ? in->size : (size_t)there);
        } else {
            give(head, body);
        }
        break;
    case FUSE_WRITE:
        take(head, body);
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        break;
    case FUSE_RELEASE:
    case FUSE_FLUSH:
    case FUSE_SETATTR:
    case FUSE_FSYNC: {
        struct fuse_attr_out out = {.attr = attributes(head->nodeid)};
        answer(head->unique, 0, &out, head->opcode == FUSE_SETATTR ? sizeof out : 0);
        break;
    }
    default:
        answer(head->unique, ENOSYS, NULL, 0);
    }
}

int main(int argc, char **argv) {
    char options[100];
    if (argc != 4)
        return 2;
    size = strtoull(argv[2], NULL, 10);
    uint64_t us = strtoull(argv[3], NULL, 10);
    delay = (struct timespec){.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000 * 1000)};
    if ((device = open("/dev/fuse", O_RDWR | O_CLOEXEC)) < 0) {
        puts("no FUSE here");
        return 0;
    }
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,max_read=%d", device, READ_MAX);
    if (mount("odd_disk", argv[1], "fuse", MS_NOSUID | MS_NODEV, options) != 0) {
        perror("mount");
        return 1;
    }
    puts("mounted");
    fflush(stdout);
    for (;;) {
        ssize_t n = read(device, request, sizeof request);
        if (n >= (ssize_t)sizeof(struct fuse_in_header))
            serve((const struct fuse_in_header *)request, request + sizeof(struct fuse_in_header));
        else if (n < 0 && errno == ENODEV)
            return 0;
        else if (n < 0 && errno != EINTR && errno != EAGAIN && errno != ENOENT)
            return 1;
    }
}
